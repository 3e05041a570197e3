"""Connections with TLS once they are served: what passes, how they end, and what a reload changes."""

import asyncio
import io
import ssl
from pathlib import Path

import pytest
from aiohttp import ClientSession, TCPConnector

from quire.cluster.http import handshakes
from tests.cluster.access.issued import Issuer
from tests.cluster.tls_server import (
    GET,
    LONG,
    OF_CLUSTER,
    OWN,
    STRANGER_BYTES,
    NewLoop,
    on_both_loops,
    run,
    tls_server,
    trusting,
)
from tests.ports import HOST
from tests.replication.loopback import until


@pytest.fixture
def authority(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path / "ours")


@pytest.fixture
def foreign(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path / "theirs")


@on_both_loops
def test_long_bodies_answers_and_sockets_pass(
    new_loop: NewLoop, authority: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with (
            tls_server(authority.tls()) as server,
            ClientSession(
                f"https://{HOST}:{server.port}", connector=TCPConnector(ssl=trusting(authority, check_hostname=False))
            ) as session,
        ):
            for _ in range(3):
                async with session.post("/", data=io.BytesIO(LONG)) as answer:
                    assert await answer.read() == LONG
                async with session.get("/long") as answer:
                    assert await answer.read() == LONG
            async with session.ws_connect("/socket") as opened:
                await opened.send_bytes(b"hello")
                assert await opened.receive_bytes() == b"hello"

    run(test(), new_loop)
    assert not caplog.records


@on_both_loops
def test_what_a_stranger_may_send_is_bounded_and_then_it_is_no_stranger(new_loop: NewLoop, authority: Issuer) -> None:
    async def test() -> None:
        async with (
            tls_server(authority.tls()) as server,
            ClientSession(connector=TCPConnector(ssl=authority.tls("n2").dialling)) as session,
        ):
            url = f"https://{HOST}:{server.port}/hello"
            async with session.ws_connect(url, server_hostname=OWN) as opened:
                for message in (b"hello", bytes(10 * STRANGER_BYTES)):
                    await opened.send_bytes(message)
                    assert await opened.receive_bytes() == message
            async with session.ws_connect(url, server_hostname=OWN) as opened:
                await opened.send_bytes(bytes(10 * STRANGER_BYTES))
                await opened.receive()
                assert opened.closed
            assert server.refused == 1

    run(test(), new_loop)


@on_both_loops
def test_the_caller_s_end_of_a_tls_connection_closes_it_without_a_complaint(
    new_loop: NewLoop, authority: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with tls_server(authority.tls()) as server:
            loop, context = asyncio.get_running_loop(), trusting(authority)

            def call() -> None:
                with server.silent() as caller, context.wrap_socket(caller, server_hostname=OF_CLUSTER) as end:
                    end.sendall(b"GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    end.unwrap()  # Sends close_notify and waits for the server's.

            await loop.run_in_executor(None, call)
            server.may_answer.set()
            await until(lambda: not len(server.connections))

    run(test(), new_loop)
    assert not caplog.records


@on_both_loops
def test_a_tls_caller_that_does_not_confirm_the_end_is_cut_off(
    new_loop: NewLoop, authority: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "CLOSE_TIMEOUT_S", 0.2)

    async def test() -> None:
        async with tls_server(authority.tls()) as server:
            with server.silent() as caller:
                request = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
                end = await asyncio.to_thread(trusting(authority).wrap_socket, caller, server_hostname=OF_CLUSTER)
                end.sendall(request)
                await until(lambda: not len(server.connections))
                end.close()

    run(test(), new_loop)


# Reloading


@on_both_loops
def test_a_connection_is_started_with_the_contexts_of_the_moment_and_keeps_them(
    new_loop: NewLoop, authority: Issuer, foreign: Issuer
) -> None:
    async def test() -> None:
        async with tls_server(authority.tls()) as server:
            reader, writer = await server.call(trusting(authority))
            with server.silent() as waiting:
                await until(lambda: len(server.connections) == 2)
                server.tls = foreign.tls()
                waiting.setblocking(False)
                reader_2, writer_2 = await asyncio.open_connection(
                    sock=waiting, ssl=trusting(foreign), server_hostname=OF_CLUSTER
                )
                for to, answers in ((writer, reader), (writer_2, reader_2)):
                    to.write(GET)
                    assert b"<None>" in await answers.readuntil(b">")
                    to.close()
                    await to.wait_closed()

    run(test(), new_loop)


@on_both_loops
def test_peers_of_a_ca_that_is_gone_are_ended_when_they_are_answered_and_clients_are_not(
    new_loop: NewLoop, authority: Issuer, foreign: Issuer
) -> None:
    async def test() -> None:
        async with tls_server(authority.tls()) as server:
            peer = authority.tls("n2").dialling
            idle, idle_writer = await server.call(peer, OWN)
            busy, busy_writer = await server.call(peer, OWN)
            client, client_writer = await server.call(trusting(authority))
            busy_writer.write(b"GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await until(lambda: server.waiting)
            async with ClientSession(connector=TCPConnector(ssl=peer)) as session:
                stream = await session.ws_connect(f"https://{HOST}:{server.port}/socket", server_hostname=OWN)
                server.tls = foreign.tls()
                server.connections.end_peers_before(server.tls)
                assert await idle.read() == b""
                assert (await stream.receive()).data is None or stream.closed
            server.may_answer.set()
            assert (await busy.read()).endswith(b"waited")
            client_writer.write(GET)
            assert b"<None>" in await client.readuntil(b">")
            for writer in (idle_writer, busy_writer, client_writer):
                writer.close()
                await writer.wait_closed()
            await until(lambda: not len(server.connections))

    run(test(), new_loop)


@on_both_loops
def test_a_peer_whose_handshake_was_under_way_when_its_ca_went_is_not_served(
    new_loop: NewLoop, authority: Issuer, foreign: Issuer
) -> None:
    async def test() -> None:
        async with tls_server(authority.tls()) as server:
            peer, loop = authority.tls("n2").dialling, asyncio.get_running_loop()
            arrived, to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
            end = peer.wrap_bio(arrived, to_send, server_hostname=OWN)
            with server.silent() as caller:
                caller.setblocking(False)
                with pytest.raises(ssl.SSLWantReadError):
                    end.do_handshake()
                await loop.sock_sendall(caller, to_send.read())
                arrived.write(await loop.sock_recv(caller, 1 << 16))
                end.do_handshake()
                server.tls = foreign.tls()
                server.connections.end_peers_before(server.tls)
                end.write(b"GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n")
                await loop.sock_sendall(caller, to_send.read())
                await until(lambda: not len(server.connections))
                assert not server.waiting

    run(test(), new_loop)
