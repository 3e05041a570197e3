"""Tokens and certificates that change while a node runs: what is read, what stays in force, what ends."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import ClientWebSocketResponse, WSMsgType, WSServerHandshakeError

from quire.cluster.access.roles import Role
from quire.cluster.access.tls import load_client_tls
from quire.cluster.http.admission.connections import Connection
from quire.cluster.http.api import API
from quire.cluster.node.node import Node
from tests.cluster.access.issued import CLUSTER, Authority
from tests.cluster.access.locked import Locked, locked_cluster

DEADLINE_S = 60.0
LIFETIMES_S = (2, 8, 32)
"""Of what expires in a test; the first that suffices."""
STAYS = "stays in force"

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def locked(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Locked, None]:
    async with locked_cluster(tmp_path_factory.mktemp("changes"), count=3) as locked:
        yield locked


def node_of(locked: Locked, node_id: str = "n1") -> Node:
    return locked.cluster.nodes[node_id].node


async def until(locked: Locked, condition: Callable[[], bool]) -> None:
    """Wait until it holds; each look at it is a request, since nothing tells."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await locked.cluster.ask("n1", "GET", "/healthz")


async def known(locked: Locked, name: str) -> None:
    """Wait until every node knows a token, or no longer does."""
    is_there = name in locked.token_file.read_text()
    nodes = [running.node.credentials for running in locked.cluster.nodes.values()]

    def is_read() -> bool:
        files = [credentials.tokens for credentials in nodes]
        return all(file is not None and (file.by_name(name) is not None) == is_there for file in files)

    await until(locked, is_read)


async def added(locked: Locked, name: str, role: Role = Role.WRITE, expires_at: float | None = None) -> None:
    locked.add(name, role, expires_at)
    await known(locked, name)


@asynccontextmanager
async def streaming(locked: Locked, node_id: str, name: str) -> AsyncGenerator[ClientWebSocketResponse]:
    """A stream of commands, opened with this token."""
    opened = await locked.ask(node_id, "POST", "/sessions", name)
    tls = load_client_tls(locked.ca)
    async with locked.cluster.session.ws_connect(
        f"{locked.cluster.url(node_id)}/commands/stream?session={opened.document['session']}",
        ssl=tls.context,
        server_hostname=tls.server_name,
        headers=locked.header(name),
    ) as stream:
        yield stream


async def ended(stream: ClientWebSocketResponse) -> bool:
    async with asyncio.timeout(DEADLINE_S):
        return (await stream.receive()).type in (WSMsgType.CLOSE, WSMsgType.CLOSED)


@pytest.mark.parametrize("at", ["n1", "n3"])
async def test_a_revoked_token_ends_its_streams_and_no_others(locked: Locked, at: str) -> None:
    await added(locked, f"gone-{at}")
    async with streaming(locked, at, f"gone-{at}") as gone, streaming(locked, at, "write") as kept:
        locked.revoke(f"gone-{at}")
        assert await ended(gone)
        assert not kept.closed
    reply = await locked.ask(at, "GET", "/status", f"gone-{at}")
    assert (reply.status, reply.problem) == (401, "unauthorized")
    assert reply.document["detail"].startswith(f"{at} does not know the token")


async def test_a_token_that_expires_ends_its_streams(locked: Locked) -> None:
    streams = 0
    for lifetime_s in LIFETIMES_S:
        name = f"short-{lifetime_s}"
        await added(locked, name, Role.WRITE, time.time() + lifetime_s)
        with suppress(KeyError, WSServerHandshakeError):  # It had expired before a busy machine opened the stream.
            async with streaming(locked, "n1", name) as stream:
                streams += 1
                assert await ended(stream)
        assert "has expired" in (await locked.ask("n1", "GET", "/status", name)).document["detail"]
        if streams:
            return
    raise AssertionError("no stream was opened in time")


async def test_a_token_that_is_replaced_under_its_name_ends_the_streams_of_the_old_one(locked: Locked) -> None:
    await added(locked, "again")
    old = node_of(locked).credentials.tokens
    async with streaming(locked, "n1", "again") as stream:
        locked.revoke("again")
        locked.add("again", Role.WRITE)
        await until(locked, lambda: node_of(locked).credentials.tokens is not old)
        assert await ended(stream)


async def test_a_revoked_token_gets_no_answer_to_what_it_waits_for(locked: Locked) -> None:
    await added(locked, "waiting", Role.READ)
    end = node_of(locked).components.log.tail.index
    waits = asyncio.create_task(locked.ask("n1", "GET", f"/records?from={end}&wait_ms=60000", "waiting"))
    app = locked.cluster.nodes["n1"].runner.app
    assert app is not None
    polls = app[API].long_polls
    await until(locked, lambda: len(polls) > 0)
    locked.revoke("waiting")
    await known(locked, "waiting")
    headers = {"Content-Type": "application/json"}
    await locked.ask("n1", "POST", "/commands", "write", body=b'{"commands": [["add", 1]]}', headers=headers)

    assert (await waits).status == 401


async def test_half_a_token_file_changes_nothing_and_is_an_alarm(locked: Locked) -> None:
    whole = locked.token_file.read_bytes()
    locked.token_file.write_bytes(whole[:-20])
    alarms = node_of(locked).credentials.alarms
    await until(locked, lambda: any("half written" in alarm for alarm in alarms()))

    assert (await locked.ask("n1", "GET", "/status", "read")).status == 200
    status = (await locked.ask("n1", "GET", "/status", "read")).document
    assert any("half written" in alarm and STAYS in alarm for alarm in status["alarms"])

    locked.token_file.write_bytes(whole)
    await until(locked, lambda: not any(STAYS in alarm for alarm in alarms()))


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("another key", "is not the key of that certificate"),
        ("half", "cut off"),
        ("another node", "issued to node n2"),
        ("another cluster", "stop this process before it becomes another"),
        ("another CA", "is not accepted by tls_ca"),
        ("expired", "is not accepted by tls_ca"),
        ("not yet", "is not accepted by tls_ca"),
    ],
)
async def test_a_certificate_that_cannot_be_used_changes_nothing_and_is_an_alarm(
    locked: Locked, tmp_path: Path, broken: str, said: str
) -> None:
    certificate, key = locked.folder / "n1.crt", locked.folder / "n1.key"
    whole, trusted = (certificate.read_bytes(), key.read_bytes()), locked.ca.read_bytes()
    foreign = Authority("market")
    tls = node_of(locked).credentials.tls
    match broken:
        case "another key":
            key.write_bytes(locked.authority.issue(tmp_path)[1].read_bytes())
        case "half":
            certificate.write_bytes(whole[0][: len(whole[0]) // 2])
        case "another node":
            issued = locked.authority.issue(tmp_path, "n2")
            certificate.write_bytes(issued[0].read_bytes())
            key.write_bytes(issued[1].read_bytes())
        case "another cluster":
            issued = foreign.issue(tmp_path, "n1")
            locked.ca.write_bytes(foreign.pem)
            certificate.write_bytes(issued[0].read_bytes())
            key.write_bytes(issued[1].read_bytes())
        case "another CA":
            issued = Authority(CLUSTER).issue(tmp_path, "n1")
            certificate.write_bytes(issued[0].read_bytes())
            key.write_bytes(issued[1].read_bytes())
        case _:
            days = {"expired": (-3, -1), "not yet": (1, 5)}[broken]
            issued = locked.authority.issue(tmp_path, "n1", from_day=days[0], to_day=days[1])
            certificate.write_bytes(issued[0].read_bytes())
            key.write_bytes(issued[1].read_bytes())
    alarms = node_of(locked).credentials.alarms
    try:
        await until(locked, lambda: any(said in alarm for alarm in alarms()))
        assert node_of(locked).credentials.tls is tls
        assert (await locked.ask("n1", "GET", "/status", "read")).status == 200
    finally:
        locked.ca.write_bytes(trusted)
        certificate.write_bytes(whole[0])
        key.write_bytes(whole[1])
    every = [running.node.credentials.alarms for running in locked.cluster.nodes.values()]
    await until(locked, lambda: not any(STAYS in alarm for each in every for alarm in each()))


async def test_a_token_is_revoked_even_if_the_certificate_cannot_be_used(locked: Locked) -> None:
    key = locked.folder / "n1.key"
    whole = key.read_bytes()
    await added(locked, "lost", Role.READ)
    key.write_bytes(whole[: len(whole) // 2])
    try:
        locked.revoke("lost")
        await known(locked, "lost")
        assert (await locked.ask("n1", "GET", "/status", "lost")).status == 401
        assert any(STAYS in alarm for alarm in node_of(locked).credentials.alarms())
    finally:
        key.write_bytes(whole)
    await until(locked, lambda: not any(STAYS in alarm for alarm in node_of(locked).credentials.alarms()))


async def test_a_changed_mode_is_seen_and_so_is_its_correction(locked: Locked) -> None:
    alarms = node_of(locked).credentials.alarms
    locked.token_file.chmod(0o644)
    await until(locked, lambda: any("has mode 0644" in alarm for alarm in alarms()))

    locked.token_file.chmod(0o640)
    await until(locked, lambda: not any("has mode" in alarm for alarm in alarms()))


def told_again(calls: list[int], before: int) -> bool:
    return calls.count(-1) > before


async def test_an_error_in_one_reading_ends_no_later_one(locked: Locked) -> None:
    credentials, calls = node_of(locked).credentials, list[int]()

    def changed() -> None:
        calls.append(len(calls))
        if len(calls) < 4:
            raise RuntimeError("not yet")

    credentials.on_change(changed)
    credentials.on_change(lambda: calls.append(-1))
    for name in ("first", "second"):
        told = calls.count(-1)
        await added(locked, name, Role.READ)
        await until(locked, partial(told_again, calls, told))

    assert (await locked.ask("n1", "GET", "/status", "second")).status == 200


async def test_a_changed_token_leaves_the_contexts_as_they_are(locked: Locked) -> None:
    """Else what is being dialled with them would have to be dialled again, and no connection were kept."""
    tls = node_of(locked).credentials.tls
    await added(locked, "one-more", Role.READ)

    assert node_of(locked).credentials.tls is tls


async def test_a_peer_s_connection_ends_when_its_certificate_does(locked: Locked) -> None:
    host, _, port = locked.cluster.address("n1").rpartition(":")
    name = f"n1.{CLUSTER}.quire"
    for lifetime_s in LIFETIMES_S:
        context = locked.context_of(locked.authority, "n2", to_day=lifetime_s / 86_400)
        async with asyncio.timeout(DEADLINE_S):
            with suppress(OSError):  # It had expired before a busy machine began the handshake.
                reader, writer = await asyncio.open_connection(host, int(port), ssl=context, server_hostname=name)
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                is_answered = b" 200 " in await reader.readline()
                while await reader.read(1 << 16):
                    pass
                writer.close()
                if is_answered:
                    return
    raise AssertionError("no connection was answered in time")


async def test_a_certificate_that_expires_within_30_days_is_an_alarm(locked: Locked) -> None:
    """Those of these tests are valid for 5 days, and their CA for 10."""
    status = (await locked.ask("n1", "GET", "/status", "read")).document

    assert status["certificate"]["cluster"] == CLUSTER
    assert time.time() < status["certificate"]["expires_at"] < status["certificate"]["ca_expires_at"]
    assert [alarm.partition(";")[0] for alarm in status["alarms"]] == [
        "a CA's certificate expires in 10 days",
        "this server's certificate expires in 5 days",
    ]


async def test_peers_prove_themselves_again_when_a_ca_is_trusted_no_more(locked: Locked) -> None:
    old, new = locked.authority, Authority(CLUSTER)
    locked.ca.write_bytes(new.pem + old.pem)
    every = [running.node.credentials for running in locked.cluster.nodes.values()]
    await until(locked, lambda: all(len(each.tls.ca_digests) == 2 for each in every if each.tls is not None))
    locked.authority = new
    for node_id in locked.cluster.nodes:
        new.issue(locked.folder, node_id)
    connections = [
        connection
        for running in locked.cluster.nodes.values()
        for connection in (running.runner.server.connections if running.runner.server is not None else ())
        if isinstance(connection, Connection) and connection.peer is not None
    ]
    assert connections

    locked.ca.write_bytes(new.pem)
    await until(locked, lambda: all(len(each.tls.ca_digests) == 1 for each in every if each.tls is not None))
    await until(locked, lambda: all(connection.transport is None for connection in connections))
    await locked.cluster.ready()

    locked.cluster.tls = load_client_tls(locked.ca)
    headers = locked.header("write") | {"Content-Type": "application/json"}
    reply = await locked.cluster.ask("n3", "POST", "/commands", b'{"commands": [["add", 1]]}', headers=headers)
    assert reply.status == 200
