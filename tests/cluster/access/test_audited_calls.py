"""What the audit log of a node says: whose token it was, even one that is refused, and what a call was about."""

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncGenerator, Callable, MutableMapping
from typing import Any

import pytest
import pytest_asyncio
from structlog.testing import capture_logs
from typer.testing import CliRunner

from quire.cluster.access.roles import Role
from quire.cluster.access.tls import load_client_tls
from quire.cluster.access.tokens import read_tokens, renew_token
from quire.cluster.cli.credentials import token_app
from tests.cluster.access.locked import Locked, locked_cluster

Lines = list[MutableMapping[str, Any]]
DEADLINE_S = 60.0
JSON = {"Content-Type": "application/json"}
TOKEN = "0123456789abcdef" * 2

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def locked(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Locked, None]:
    async with locked_cluster(tmp_path_factory.mktemp("audited")) as locked:
        yield locked


@pytest.fixture
async def lines() -> AsyncGenerator[Lines]:
    with capture_logs() as lines:
        yield lines


async def until(locked: Locked, condition: Callable[[], bool]) -> None:
    """Wait until it holds; each look at it is a request, since nothing tells."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await locked.cluster.ask("n1", "GET", "/healthz")


async def read_again(locked: Locked) -> None:
    """Wait until the node has the token file as it is now."""
    credentials, tokens = locked.cluster.nodes["n1"].node.credentials, read_tokens(locked.token_file).tokens

    def has_it() -> bool:
        file = credentials.tokens
        return file is not None and [(t.label, t.digest) for t in file.tokens] == [(t.label, t.digest) for t in tokens]

    await until(locked, has_it)


def listed(locked: Locked, name: str) -> str:
    """The digits that `quire token list` shows."""
    shown = CliRunner().invoke(token_app, ["list", "--file", str(locked.token_file), "--json"]).stdout
    [digits] = [str(row["sha256"]) for row in map(json.loads, shown.splitlines()) if row["name"] == name]
    return digits


def calls(lines: Lines) -> list[tuple[str, str, str, str]]:
    """(who, what, subject, action) of each call that was logged as an operator's."""
    return [
        (line["who"], line["what"], line.get("subject", ""), line.get("action", ""))
        for line in lines
        if line["event"] in ("admin call", "call")
    ]


async def test_a_refused_token_is_named_by_the_digits_that_the_list_shows(locked: Locked, lines: Lines) -> None:
    text = locked.add("leaver", Role.READ)
    locked.add("expired", Role.READ, time.time() - 1)
    await read_again(locked)
    digits = {name: listed(locked, name) for name in ("leaver", "expired")}
    locked.revoke("leaver")
    await read_again(locked)

    for name in ("leaver", "expired"):
        assert (await locked.ask("n1", "GET", "/status", name)).status == 401
    locked.tokens["unheard-of"] = "quire_" + "A" * 43
    await locked.ask("n1", "GET", "/status", "unheard-of")

    refused = [line["token"] for line in lines if line["event"] == "refused"]
    assert refused == [digits["leaver"], digits["expired"], hashlib.sha256(b"quire_" + b"A" * 43).hexdigest()[:12]]
    assert not any(text[6:12] in repr(line) for line in lines), "no part of a token itself"


async def test_what_is_no_token_of_quire_has_no_digits_which_could_be_guessed(locked: Locked, lines: Lines) -> None:
    for value in ("Basic YW5hOnNlY3JldA==", "Bearer secret", "Bearer", ""):
        await locked.ask("n1", "GET", "/cursors/chosen-by-a-stranger", None, headers={"Authorization": value})

    refused = [line for line in lines if line["event"] == "refused"]
    assert len(refused) == 4
    assert [line for line in refused if "token" in line or "subject" in line or "chosen" in repr(line)] == []


async def test_who_still_uses_an_old_token_is_in_the_log_and_so_is_the_end_of_its_stream(
    locked: Locked, lines: Lines
) -> None:
    locked.add("worker", Role.WRITE)
    await read_again(locked)
    session = (await locked.ask("n1", "POST", "/sessions", "worker")).document["session"]
    tls, path = load_client_tls(locked.ca), f"/commands/stream?session={session}"
    async with locked.cluster.session.ws_connect(
        locked.cluster.url("n1") + path,
        ssl=tls.context,
        server_hostname=tls.server_name,
        headers=locked.header("worker"),
    ) as stream:
        digits = listed(locked, "worker")
        renew_token(locked.token_file, "worker", None)
        await until(locked, lambda: any(line.get("who") == "worker+old" for line in lines))
        await locked.ask("n1", "GET", "/status", "worker")
        locked.revoke("worker+old")
        async with asyncio.timeout(DEADLINE_S):
            await stream.receive()

    used = [(line["who"], line["what"]) for line in lines if line["event"] == "token used from a new address"]
    assert used == [("worker", "POST /sessions"), ("worker+old", "GET /commands/stream")]
    [ended] = [line for line in lines if line["event"] == "stream ended with its token"]
    assert (ended["token"], ended["what"], ended["address"]) == (digits, "GET /commands/stream", "127.0.0.1")


async def test_a_cursor_s_changes_are_logged_with_its_name_but_not_its_consumer_s_commits(
    locked: Locked, lines: Lines
) -> None:
    bodies: list[dict[str, Any]] = [
        {"index": 0},
        {"index": 0},  # A reader without a token commits like this: only its first is logged.
        {"index": 0, "take": True, "token": TOKEN},
        {"index": 0, "token": TOKEN},
        {"index": 0, "token": TOKEN},
        {"index": 0, "rewind": True},
    ]
    for body in bodies:
        reply = await locked.ask("n1", "PUT", "/cursors/audit%2Forders", "write", body=json.dumps(body), headers=JSON)
        assert reply.status == 200, reply.document
    await locked.ask("n1", "DELETE", "/cursors/audit%2Forders", "admin")

    assert calls(lines) == [
        ("write", "PUT /cursors/{name}", "audit/orders", "set"),
        ("write", "PUT /cursors/{name}", "audit/orders", "take"),
        ("write", "PUT /cursors/{name}", "audit/orders", "rewind to 0"),
        ("admin", "DELETE /cursors/{name}", "audit/orders", ""),
    ]


async def test_a_change_of_a_member_and_of_the_leader_is_logged_with_the_node(locked: Locked, lines: Lines) -> None:
    for path, method, body in (
        ("/members/n1", "PATCH", {"drained": True}),
        ("/members/n1", "PATCH", {"drained": False}),
        ("/members", "POST", {"members": {"n1": locked.cluster.address("n1")}}),
        ("/members/n8", "DELETE", None),
        ("/admin/transfer", "POST", {"target": "n1"}),
    ):
        await locked.ask("n1", method, path, "admin", body=b"" if body is None else json.dumps(body), headers=JSON)

    assert calls(lines) == [
        ("admin", "PATCH /members/{node}", "n1", "drain"),
        ("admin", "PATCH /members/{node}", "n1", "end of the drain"),
        ("admin", "POST /members", "n1", "voters"),
        ("admin", "DELETE /members/{node}", "n8", ""),
        ("admin", "POST /admin/transfer", "n1", ""),
    ]


async def test_a_backup_is_logged_once_for_each_snapshot_and_not_for_each_chunk(locked: Locked, lines: Lines) -> None:
    await locked.ask("n1", "POST", "/commands", "write", body=b'{"commands": [["add", 1]]}', headers=JSON)
    index = (await locked.ask("n1", "POST", "/admin/snapshot", "admin")).document["index"]
    lines.clear()
    for path in ("genesis", f"snapshots/{index}", *[f"snapshots/{index}/0"] * 5):
        assert (await locked.ask("n1", "GET", f"/admin/{path}", "admin")).status == 200

    assert calls(lines) == [
        ("admin", "GET /admin/genesis", "", ""),
        ("admin", "GET /admin/snapshots/{index}", str(index), ""),
        ("admin", "GET /admin/snapshots/{index}/{chunk}", str(index), ""),
    ]


async def test_an_admin_that_closes_a_session_is_logged_and_its_owner_is_not(locked: Locked, lines: Lines) -> None:
    sessions = [(await locked.ask("n1", "POST", "/sessions", "write")).document["session"] for _ in range(2)]
    for session, caller in zip(sessions, ("write", "admin"), strict=True):
        assert (await locked.ask("n1", "DELETE", f"/sessions/{session}", caller)).status == 200

    assert calls(lines) == [("admin", "DELETE /sessions/{session}", str(sessions[1]), "")]


async def test_an_admin_that_opens_a_session_is_not_logged_and_one_that_closes_several_is(
    locked: Locked, lines: Lines
) -> None:
    sessions = [(await locked.ask("n1", "POST", "/sessions", "admin")).document["session"] for _ in range(2)]
    assert calls(lines) == []

    body = json.dumps({"sessions": sessions}).encode()
    assert (await locked.ask("n1", "POST", "/sessions/close", "admin", body=body, headers=JSON)).status == 200

    assert calls(lines) == [("admin", "POST /sessions/close", ", ".join(map(str, sessions)), "")]
