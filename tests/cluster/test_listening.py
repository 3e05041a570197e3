"""Where a process listens: `[::]` is every address, and an IPv4 caller is the same one on every socket."""

import errno
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from typing import Any

import pytest
from aiohttp import ClientSession, web

from quire.cluster.access.credentials import Credentials
from quire.cluster.http.admission.admission import Admission
from quire.cluster.http.admission.authorization import Authorization
from quire.cluster.http.admission.browsers import BrowserGuard
from quire.cluster.http.admission.connections import ConnectionLimit
from quire.cluster.http.app import serve_app
from quire.cluster.serve.process import CannotStart, listen
from tests.ports import HOST, free_port


def can_bind(host: str) -> bool:
    """Whether this machine has the address. One without IPv6 has no `::1`, and not even `::`."""
    try:
        socket.create_server((host, 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def takes(address: str, host: str) -> bool:
    """Whether a socket that listens at this address takes a connection to that host."""
    with closing(listen(address)) as listening:
        try:
            socket.create_connection((host, listening.getsockname()[1])).close()
        except ConnectionRefusedError:
            return False
    return True


def test_every_address_takes_ipv4_and_ipv6_where_there_is_ipv6() -> None:
    if not can_bind("::"):
        with pytest.raises(CannotStart, match="has no IPv6"):
            listen(f"[::]:{free_port()}")
        return
    assert takes(f"[::]:{free_port()}", HOST)
    assert takes(f"[0:0::0]:{free_port()}", HOST)
    assert not can_bind("::1") or takes(f"[::]:{free_port()}", "::1")


def test_one_ipv6_address_takes_no_ipv4() -> None:
    if not can_bind("::1"):
        with pytest.raises(CannotStart, match="cannot listen on"):
            listen(f"[::1]:{free_port()}")
        return
    assert takes(f"[::1]:{free_port()}", "::1")
    assert not takes(f"[::1]:{free_port()}", HOST)


def test_every_ipv4_address_and_one_inside_an_ipv6_one_are_ipv4() -> None:
    assert takes(f"0.0.0.0:{free_port()}", HOST)
    assert takes(f"[::ffff:{HOST}]:{free_port()}", HOST)


@asynccontextmanager
async def telling_origins() -> AsyncGenerator[int]:
    """The port of a server, at `[::]` if there is IPv6, that answers with whom a request counts against."""
    connections, port = ConnectionLimit(), free_port()
    admission = Admission(connections, BrowserGuard((), ()), Authorization(Credentials(), "n1"))

    async def origin(request: web.Request) -> web.Response:
        return web.Response(text=admission.origin_of(request))

    app = web.Application()
    app.router.add_get("/", origin)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    server = await serve_app(runner, connections, listen(f"{'[::]' if can_bind('::') else HOST}:{port}"))
    try:
        yield port
    finally:
        await server.close()
        await runner.cleanup()


async def test_an_ipv4_caller_counts_as_itself_at_every_address() -> None:
    async with (
        telling_origins() as port,
        ClientSession() as session,
        session.get(f"http://{HOST}:{port}/") as answer,
    ):
        assert await answer.text() == HOST


def test_a_machine_without_ipv6_is_told_what_to_use_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)

    with pytest.raises(
        CannotStart, match=r"cannot listen on \[::\]:7001: .* has no IPv6; use --listen 0\.0\.0\.0:7001"
    ):
        listen("[::]:7001")


def test_ipv6_that_is_switched_off_is_told_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_address: Any, **_options: Any) -> socket.socket:
        raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")

    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: True)
    monkeypatch.setattr(socket, "create_server", refuse)

    with pytest.raises(CannotStart, match="has no IPv6"):
        listen("[::]:7001")


def test_a_port_that_is_used_for_ipv4_alone_is_in_use() -> None:
    with socket.create_server((HOST, 0)) as taken, pytest.raises(CannotStart, match=r"already in use|has no IPv6"):
        listen(f"[::]:{taken.getsockname()[1]}")
