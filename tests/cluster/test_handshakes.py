"""Connections with TLS: counted from the first moment, paced, and started with the contexts in force."""

import asyncio
import io
import json
import socket
import ssl
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from aiohttp import ClientSession, web

from quire.cluster.access.tls import Tls
from quire.cluster.http import handshakes
from quire.cluster.http.admission.client_hello import HELLO_BYTES, dialled_name
from quire.cluster.http.admission.connections import Connection, ConnectionLimit, Place
from quire.cluster.http.handshakes import HANDSHAKES_IN_TURN, USE_TLS
from tests.cluster.access.issued import Issuer
from tests.cluster.test_client_hello import hello_to
from tests.cluster.test_garbage import LASTING
from tests.cluster.test_reading_turns import CountedTurns
from tests.cluster.tls_server import (
    DEADLINE_S,
    GET,
    LONG,
    OF_CLUSTER,
    OWN,
    NewLoop,
    answer_to,
    journal,
    on_both_loops,
    run,
    tls_server,
    trusting,
)
from tests.garbage import garbage
from tests.ports import HOST
from tests.replication.loopback import turns, until

CALLERS = 6 * HANDSHAKES_IN_TURN


@pytest.fixture
def authority(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path / "ours")


@pytest.fixture
def foreign(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path / "theirs")


async def received(caller: socket.socket) -> bytes:
    """All that a caller gets until the other end closes or resets the connection."""
    caller.setblocking(False)
    loop, pieces = asyncio.get_running_loop(), list[bytes]()
    try:
        while piece := await loop.sock_recv(caller, 1 << 16):
            pieces.append(piece)
    except ConnectionResetError:
        pass
    return b"".join(pieces)


# Counting


@on_both_loops
def test_silent_connections_are_counted_and_those_that_leave_are_not(new_loop: NewLoop, authority: Issuer) -> None:
    async def test() -> None:
        async with tls_server(authority.tls()) as server:
            with ExitStack() as opened:
                callers = [opened.enter_context(server.silent()) for _ in range(CALLERS)]
                await until(lambda: len(server.connections) == CALLERS)
                for caller in callers[1:]:
                    caller.sendall(hello_to(OF_CLUSTER))
                assert b"<None>" in await answer_to(server, trusting(authority))
                for caller in callers[:2]:
                    caller.close()
                await until(lambda: len(server.connections) == CALLERS - 2)
            await until(lambda: not len(server.connections))

    run(test(), new_loop)


@on_both_loops
def test_silent_connections_take_the_room_of_others_as_served_ones_do(new_loop: NewLoop, authority: Issuer) -> None:
    async def test() -> None:
        async with tls_server(authority.tls(), reserve=2) as server:
            server.connections.limit = 3
            with ExitStack() as opened:
                for _ in range(3):
                    opened.enter_context(server.silent())
                await until(lambda: len(server.connections) == 3)
                assert b"429" in await answer_to(server, trusting(authority)), "above the limit, in the reserve"
                await until(lambda: len(server.connections) == 3)
                for _ in range(2):
                    opened.enter_context(server.silent())
                await until(lambda: len(server.connections) == 5)
                with server.silent() as too_many:
                    assert await received(too_many) == b"", "closed without an answer"
                assert len(server.connections) == 5

    run(test(), new_loop)


def test_a_place_is_released_once(authority: Issuer) -> None:
    limit = ConnectionLimit()
    first, second = limit.admit("a"), limit.admit("a")
    assert first is not None
    assert second is not None
    limit.release(first)
    limit.release(first)
    assert len(limit) == 1


# Pacing


class Begun:
    """The handshakes that a server begins, each with the turn of the loop and the contexts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, turns: CountedTurns) -> None:
        self.in_turns: list[int] = []
        self.places: list[Place] = []

        def noted(server: web.Server, limit: ConnectionLimit, place: Place, tls: Tls | None) -> Connection:
            self.in_turns.append(turns.number)
            self.places.append(place)
            return Connection(server, limit, place, tls)

        monkeypatch.setattr(handshakes, "Connection", noted)


@on_both_loops
def test_so_many_handshakes_begin_in_a_turn_and_all_in_the_end(
    new_loop: NewLoop, authority: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with tls_server(authority.tls()) as server, CountedTurns() as counted:
            begun = Begun(monkeypatch, counted)
            with ExitStack() as opened:
                callers = [opened.enter_context(server.silent()) for _ in range(CALLERS)]
                await until(lambda: len(server.connections) == CALLERS)
                for caller in callers:
                    caller.sendall(hello_to(OF_CLUSTER))
                await until(lambda: len(begun.in_turns) == CALLERS)
            # What is counted as one turn here may be parts of two.
            assert max(Counter(begun.in_turns).values()) <= 2 * HANDSHAKES_IN_TURN

    run(test(), new_loop)


@on_both_loops
def test_so_many_hellos_are_looked_at_in_a_turn(
    new_loop: NewLoop, authority: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "HELLOS_IN_TURN", 2)
    looked: list[int] = []

    async def test() -> None:
        async with tls_server(authority.tls()) as server, CountedTurns() as counted:

            def noted(sent: bytes) -> str | None:
                looked.append(counted.number)
                return dialled_name(sent)

            monkeypatch.setattr(handshakes, "dialled_name", noted)
            with ExitStack() as opened:
                callers = [opened.enter_context(server.silent()) for _ in range(CALLERS)]
                await until(lambda: len(server.connections) == CALLERS)
                for caller in callers:
                    caller.sendall(hello_to(OF_CLUSTER))
                await until(lambda: len(looked) == CALLERS)
            assert max(Counter(looked).values()) <= 2 * 2

    run(test(), new_loop)


@on_both_loops
def test_a_peer_does_not_wait_behind_clients_that_came_first(
    new_loop: NewLoop, authority: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "HANDSHAKES_IN_TURN", 1)

    async def test() -> None:
        async with tls_server(authority.tls()) as server, CountedTurns() as counted:
            begun = Begun(monkeypatch, counted)
            with ExitStack() as opened:
                callers = [opened.enter_context(server.silent()) for _ in range(CALLERS)]
                await until(lambda: len(server.connections) == CALLERS)
                *clients, peer = callers
                server.connections.limit = 0  # The next one is marked.
                peer.close()
                await until(lambda: len(server.connections) == CALLERS - 1)
                peer = opened.enter_context(server.silent())
                await until(lambda: len(server.connections) == CALLERS)
                for client in clients:
                    client.sendall(hello_to(OF_CLUSTER))
                peer.sendall(hello_to(OWN))
                await until(lambda: len(begun.places) == CALLERS)
                [came] = [number for number, place in enumerate(begun.places) if place.is_surplus]
                assert came < CALLERS // 2

    run(test(), new_loop)


# Hellos


@on_both_loops
def test_a_hello_in_pieces_is_waited_for(new_loop: NewLoop, authority: Issuer) -> None:
    async def test() -> None:
        async with tls_server(authority.tls()) as server:
            tls = trusting(authority)
            arrived, to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
            end = tls.wrap_bio(arrived, to_send, server_hostname=OF_CLUSTER)
            with pytest.raises(ssl.SSLWantReadError):
                end.do_handshake()
            hello, loop = to_send.read(), asyncio.get_running_loop()
            with server.silent() as caller:
                caller.setblocking(False)
                caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for part in (hello[:1], hello[1:100], hello[100:]):
                    await loop.sock_sendall(caller, part)
                    for _ in range(100):
                        await asyncio.sleep(0)
                while True:
                    arrived.write(await loop.sock_recv(caller, 1 << 16))
                    try:
                        end.do_handshake()
                    except ssl.SSLWantReadError:
                        continue
                    break
            assert end.version() == "TLSv1.3"

    run(test(), new_loop)


@on_both_loops
@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"", "it sent no whole hello in 0.2 s"),
        (hello_to(OF_CLUSTER)[:-1], "it sent no whole hello in 0.2 s"),
        (hello_to(OF_CLUSTER), "its handshake was not complete after 0.2 s"),
        (b"\x16\x03\x01\x40\x00\x01\x00\xff\xff" + bytes(2 * HELLO_BYTES), "its hello is longer than 16384 bytes"),
    ],
    ids=["nothing", "part", "hello", "long"],
)
def test_a_caller_that_does_not_get_on_is_cut_off_and_the_journal_says_why(
    new_loop: NewLoop, authority: Issuer, monkeypatch: pytest.MonkeyPatch, sent: bytes, why: str
) -> None:
    monkeypatch.setattr(handshakes, "HANDSHAKE_TIMEOUT_S", 0.2)

    async def test() -> None:
        async with tls_server(authority.tls()) as server, journal() as entries:
            with server.silent() as caller:
                caller.sendall(sent)
                await received(caller)
            await until(lambda: not len(server.connections))
            assert [(entry["event"], entry["why"], entry["peer"]) for entry in entries] == [
                ("a TLS connection failed", why, HOST)
            ]

    run(test(), new_loop)


# What is not TLS, and what is


@on_both_loops
@pytest.mark.parametrize("body", [0, len(LONG)])
def test_plain_http_on_the_tls_port_is_told_what_to_use(new_loop: NewLoop, authority: Issuer, body: int) -> None:
    async def test() -> None:
        async with (
            tls_server(authority.tls()) as server,
            journal() as entries,
            ClientSession() as session,
            session.post(f"http://{HOST}:{server.port}/", data=io.BytesIO(bytes(body))) as answer,
        ):
            problem = json.loads(await answer.read())
            assert (answer.status, problem["type"]) == (400, "urn:quire:problem:tls-required")
            assert problem["detail"] == USE_TLS
            await until(lambda: not len(server.connections))
            assert [(entry["event"], entry["peer"]) for entry in entries] == [("plain HTTP on the TLS port", HOST)]

    run(test(), new_loop)


@on_both_loops
def test_a_plain_caller_that_keeps_its_end_open_sees_the_answer_end(
    new_loop: NewLoop, authority: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "LINGER_S", 10 * DEADLINE_S)

    async def test() -> None:
        async with tls_server(authority.tls()) as server:
            with server.silent() as caller:
                caller.sendall(GET)
                assert USE_TLS.encode() in await received(caller)
            await until(lambda: not len(server.connections))

    run(test(), new_loop)


@on_both_loops
def test_a_plain_caller_that_never_closes_is_cut_off(
    new_loop: NewLoop, authority: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "LINGER_S", 0.2)

    async def test() -> None:
        async with tls_server(authority.tls()) as server:
            with server.silent() as caller:
                caller.sendall(GET)
                await until(lambda: len(server.connections))
                await until(lambda: not len(server.connections))

    run(test(), new_loop)


@on_both_loops
def test_a_tls_client_on_a_plain_port_is_logged_with_the_flags_that_are_missing(
    new_loop: NewLoop, authority: Issuer
) -> None:
    async def test() -> None:
        async with tls_server(None) as server, journal() as entries:
            with pytest.raises(ssl.SSLError):
                await server.call(trusting(authority))
            await until(lambda: not len(server.connections))
            [entry] = entries
            assert (entry["event"], entry["peer"]) == ("a TLS client on the plain port", HOST)
            assert "--tls-cert, --tls-key and --tls-ca" in entry["fix"]

    run(test(), new_loop)


# Who is let in


@on_both_loops
def test_who_dials_the_node_shows_a_certificate_and_who_dials_the_cluster_is_not_asked(
    new_loop: NewLoop, authority: Issuer
) -> None:
    async def test() -> None:
        async with tls_server(authority.tls()) as server:
            peer = authority.tls("n2").dialling
            assert b"<n2>" in await answer_to(server, peer, OWN)
            assert b"<None>" in await answer_to(server, peer), "it has one, and is not asked"
            assert b"<None>" in await answer_to(server, trusting(authority))
            await until(lambda: not len(server.connections))

    run(test(), new_loop)


def test_a_server_without_peers_asks_nobody_for_a_certificate(authority: Issuer) -> None:
    async def test() -> None:
        async with tls_server(authority.tls(), reserve=0) as server:
            assert b"<None>" in await answer_to(server, trusting(authority), OWN)
            assert b"<None>" in await answer_to(server, authority.tls("n2").dialling, OWN)

    run(test())


def refused(case: str, authority: Issuer, foreign: Issuer) -> tuple[ssl.SSLContext, str]:
    """A caller's context that is no good, and the name that it dials."""
    match case:
        case "none":
            return trusting(authority), OWN
        case "expired":
            context, files = trusting(authority), authority.issue("n2", ended=True)
        case "foreign":
            context, files = trusting(authority), foreign.issue("n2")
        case "distrust":
            return trusting(foreign), OF_CLUSTER
        case _:
            return trusting(authority, maximum_version=ssl.TLSVersion.TLSv1_2), OF_CLUSTER
    context.load_cert_chain(files.certificate, files.key)
    return context, OWN


@on_both_loops
@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("none", "it dialled this node's own name, as peers do, and showed no certificate"),
        ("expired", "its certificate is refused: certificate has expired"),
        ("foreign", "its certificate is refused: unable to get local issuer certificate"),
        ("distrust", "it refuses the certificate of this node: unknown ca"),
        ("old", "it does not offer TLS 1.3"),
    ],
)
def test_a_handshake_that_fails_is_one_line_in_the_journal_and_nothing_is_served(
    new_loop: NewLoop, authority: Issuer, foreign: Issuer, case: str, why: str
) -> None:
    async def test() -> None:
        async with tls_server(authority.tls()) as server, journal() as entries:
            context, name = refused(case, authority, foreign)

            def call() -> None:  # Not by asyncio, which sends no alert when it refuses a server's certificate.
                with (
                    suppress(ssl.SSLError, ConnectionError),
                    server.silent() as caller,
                    context.wrap_socket(caller, server_hostname=name) as end,
                ):
                    end.sendall(GET)
                    assert not end.recv(1)

            await asyncio.to_thread(call)
            await until(lambda: not len(server.connections))
            assert [(entry["why"], entry["peer"]) for entry in entries] == [(why, HOST)]

    run(test(), new_loop)


@pytest.mark.slow
def test_connections_that_fail_or_end_leave_nothing_to_the_garbage_collector(
    authority: Issuer, foreign: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "HANDSHAKE_TIMEOUT_S", 0.2)
    kinds = [refused(case, authority, foreign) for case in ("none", "expired", "foreign", "distrust", "old")]
    kinds.append((trusting(authority), OF_CLUSTER))

    async def test() -> None:
        async with tls_server(authority.tls()) as server:

            def call() -> None:
                for context, name in kinds:
                    with (
                        suppress(ssl.SSLError, ConnectionError),
                        server.silent() as caller,
                        context.wrap_socket(caller, server_hostname=name) as end,
                    ):
                        end.sendall(GET)
                        end.recv(1)
                for sent in (b"", hello_to(OF_CLUSTER), hello_to(OF_CLUSTER)[:-1], GET):
                    with server.silent() as caller:
                        caller.sendall(sent)
                        caller.shutdown(socket.SHUT_WR)
                        with suppress(ConnectionError):
                            caller.recv(1)

            async def all_gone() -> None:
                await asyncio.to_thread(call)
                await until(lambda: not len(server.connections))
                await turns(100)  # In which the handlers of lost connections end.

            await all_gone()  # What is made once only.
            with garbage() as found:
                await all_gone()
            assert [each for each in found if isinstance(each, LASTING)] == []

    run(test())
