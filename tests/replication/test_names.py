"""Names: what proved itself under one is dialled while it does not resolve, and what a lookup that hangs delays."""

import asyncio
import socket
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientConnectorDNSError, ClientConnectorError, ClientSession, ClientTimeout, hdrs, web

from quire.replication.names import LOOKUPS_LIMIT, NAMES_LIMIT, Connector, Dial, Names, look_up
from quire.replication.net.hello import PeerRefused, dial
from quire.replication.net.links import LinkServer
from quire.replication.net.sockets import close_socket
from quire.replication.net.trust import Trust
from tests.ports import free_ports
from tests.replication.loopback import DEADLINE_S, HOST, listening, until, who
from tests.replication.name_server import UNKNOWN, NameServer
from tests.replication.recorder import Recorder

NAME = "n2.example"
SECRET, OTHER = b"a secret of the peers", b"the secret of other peers"
BEARER: dict[str, str] = {hdrs.AUTHORIZATION: "Bearer quire_secret"}
DIAL_S = 0.1


class Dialled:
    """A connection to any address."""

    def __init__(self, address: str) -> None:
        self._peername = (address, 7001)

    def get_extra_info(self, name: str) -> object:
        return self._peername if name == "peername" else None


@asynccontextmanager
async def dialler(server: NameServer) -> AsyncGenerator[tuple[ClientSession, Names]]:
    """A session whose dials ask this server anew each time."""
    names = Names(server.look_up, fresh_s=0.0)
    async with ClientSession(connector=Connector(names, DIAL_S), timeout=ClientTimeout(total=DEADLINE_S)) as session:
        yield session, names


@asynccontextmanager
async def peer(secret: bytes | None = SECRET) -> AsyncGenerator[str]:
    """A node n2 that answers at `n2.example:PORT`."""
    server = LinkServer(Recorder(who("n2")), trusting(secret))

    async def greet(_: web.Request) -> web.Response:
        return web.Response(text="hello")

    async with listening({"/peer": server.serve, "/": greet}) as address:
        yield f"{NAME}:{address.rpartition(':')[2]}"
        await server.close()


def trusting(secret: bytes | None) -> Trust:
    return Trust(() if secret is None else (secret,), lambda _: True)


async def dial_peer(session: ClientSession, address: str, secret: bytes | None = SECRET) -> None:
    """Dial n2, shake hands, and hang up. Raises as `dial`."""
    dialled, _ = await dial(session, address, lambda: who("n1"), "n2", "peer", trusting(secret), None)
    await close_socket(dialled)


async def greeted(session: ClientSession, address: str, headers: dict[str, str] | None = None) -> str:
    """The answer to a plain request. Raises ClientError."""
    async with session.get(f"http://{address}/", headers=headers) as answer:
        return await answer.text()


# What is remembered, and for whom


@pytest.mark.parametrize("secret", [SECRET, None])
async def test_a_peer_that_proved_itself_under_a_name_is_dialled_while_the_name_does_not_resolve(
    secret: bytes | None,
) -> None:
    server = NameServer()
    async with dialler(server) as (session, _), peer(secret) as address:
        await dial_peer(session, address, secret)
        server.answer = UNKNOWN

        await dial_peer(session, address, secret)
        await dial_peer(session, address.upper(), secret)

    assert server.asked == [NAME] * 3


async def test_a_lookup_that_hangs_delays_a_dial_by_a_part_of_its_time_and_its_late_answer_is_used() -> None:
    server = NameServer()
    async with dialler(server) as (session, names), peer() as address:
        await dial_peer(session, address)
        with server.silent():
            for _ in range(3):
                await dial_peer(session, address)
            server.answer = ("127.0.0.3",)
        dialled = Dial(DEADLINE_S, may_recall=True)

        assert await names.addresses(NAME, dialled) == ["127.0.0.3"]
        assert not dialled.recalls
        assert server.asked == [NAME] * 2, "one lookup of a name at a time: that which hung answered the last dial, too"


async def test_an_address_that_proved_nothing_is_not_remembered() -> None:
    server = NameServer()
    async with dialler(server) as (session, _), peer() as address:
        assert await greeted(session, address) == "hello"
        with pytest.raises(PeerRefused, match="peer_secret"):
            await dial_peer(session, address, None)
        server.answer = UNKNOWN

        for dialled in (dial_peer(session, address), greeted(session, f"{NAME}:{free_ports(1)[0]}")):
            with pytest.raises(ClientConnectorDNSError, match="Temporary failure"):
                await dialled


async def test_a_plain_connection_that_carries_a_token_never_goes_to_a_remembered_address() -> None:
    server = NameServer()
    async with dialler(server) as (session, _), peer() as address:
        await dial_peer(session, address)
        server.answer = UNKNOWN

        for _ in range(2):
            with pytest.raises(ClientConnectorDNSError):
                await greeted(session, address, BEARER)
            assert await greeted(session, address) == "hello", "and its connection is not kept for the next request"


async def test_a_remembered_address_that_no_longer_proves_itself_is_refused_and_forgotten() -> None:
    server = NameServer()
    async with dialler(server) as (session, _), peer() as address, peer(OTHER) as stranger:
        await dial_peer(session, address)
        server.answer = UNKNOWN

        with pytest.raises(PeerRefused, match="peer_secret"):
            await dial_peer(session, stranger)
        for dialled in (dial_peer(session, address), greeted(session, address)):
            with pytest.raises(ClientConnectorDNSError):
                await dialled


async def test_a_remembered_address_that_does_not_answer_is_kept() -> None:
    server = NameServer()
    async with dialler(server) as (session, _), peer() as address:
        await dial_peer(session, address)
        server.answer = UNKNOWN

        with pytest.raises(ClientConnectorError) as refused:
            await dial_peer(session, f"{NAME}:{free_ports(1)[0]}")
        await dial_peer(session, address)

    assert isinstance(refused.value.os_error, ConnectionRefusedError)


@pytest.mark.parametrize(("address", "only_here"), [("192.0.2.7", False), ("127.0.0.3", True), ("::1", True)])
async def test_a_proof_is_remembered(address: str, *, only_here: bool) -> None:
    server = NameServer()
    server.answer, dialled = UNKNOWN, Dial(DIAL_S, may_recall=True)
    names = Names(server.look_up)

    names.proved(NAME, Dialled(address), only_here=only_here)

    assert await names.addresses(NAME, dialled) == [address]
    assert dialled.recalls
    with pytest.raises(socket.gaierror):
        await names.addresses(NAME, Dial(DIAL_S, may_recall=False))


async def test_without_certificates_and_a_secret_no_address_beyond_this_machine_is_remembered() -> None:
    server = NameServer()
    server.answer = UNKNOWN
    names = Names(server.look_up)

    names.proved(NAME, Dialled("192.0.2.7"), only_here=True)

    with pytest.raises(socket.gaierror):
        await names.addresses(NAME, Dial(DIAL_S, may_recall=True))


# Lookups


async def test_lookups_that_hang_keep_no_thread_from_other_work_and_not_the_process_from_its_end() -> None:
    server, loop = NameServer(), asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    names, dialled = Names(server.look_up), Dial(DIAL_S, may_recall=True)
    with server.silent():
        waiting = [asyncio.create_task(names.addresses(f"n{number}.example", dialled)) for number in range(8)]
        await until(lambda: len(server.asked) == len(waiting))

        assert await asyncio.wait_for(asyncio.to_thread(lambda: "done"), DEADLINE_S) == "done"
        assert all(thread.daemon for thread in threading.enumerate() if thread.name == "quire-names")
    assert await asyncio.gather(*waiting) == [[HOST]] * len(waiting)


async def test_one_lookup_more_than_may_run_fails_until_another_ends() -> None:
    server = NameServer()
    names, dialled = Names(server.look_up), Dial(DIAL_S, may_recall=True)
    with server.silent():
        waiting = [asyncio.create_task(names.addresses(f"n{n}.example", dialled)) for n in range(LOOKUPS_LIMIT)]
        await until(lambda: len(server.asked) == LOOKUPS_LIMIT)
        with pytest.raises(socket.gaierror, match="too many"):
            await names.addresses("one-more.example", dialled)
    await asyncio.gather(*waiting)

    assert await names.addresses("one-more.example", dialled) == [HOST]


async def test_of_more_names_than_are_kept_the_oldest_is_forgotten() -> None:
    server = NameServer()
    server.answer = UNKNOWN
    names = Names(server.look_up)
    for number in range(NAMES_LIMIT + 1):
        names.proved(f"n{number}.example", Dialled(HOST))

    assert await names.addresses(f"n{NAMES_LIMIT}.example", Dial(DIAL_S, may_recall=True)) == [HOST]
    assert await names.addresses("n1.example", Dial(DIAL_S, may_recall=True)) == [HOST]
    with pytest.raises(socket.gaierror):
        await names.addresses("n0.example", Dial(DIAL_S, may_recall=True))


async def test_an_answer_is_used_again_and_each_dial_begins_at_the_next_address() -> None:
    all_addresses = ["192.0.2.1", "192.0.2.2", "2001:db8::3"]
    server = NameServer(*all_addresses)
    names = Names(server.look_up)

    found = [await names.addresses(NAME, Dial(DIAL_S, may_recall=True)) for _ in range(4)]

    assert [addresses[0] for addresses in found] == [*all_addresses, all_addresses[0]]
    assert all(sorted(addresses) == all_addresses for addresses in found)
    assert server.asked == [NAME]


@pytest.mark.parametrize("host", ["192.0.2.1", "::1"])
async def test_an_ip_address_is_not_looked_up(host: str) -> None:
    server = NameServer()

    assert await Names(server.look_up).addresses(host, Dial(DIAL_S, may_recall=True)) == [host]
    assert not server.asked


async def test_whatever_a_lookup_raises_each_dial_gets_an_error_of_its_own() -> None:
    server = NameServer()
    server.answer = RuntimeError("no such thing")
    names, dialled = Names(server.look_up), Dial(DIAL_S, may_recall=True)

    asked = [asyncio.create_task(names.addresses(NAME, dialled)) for _ in range(2)]
    first, second = await asyncio.gather(*asked, return_exceptions=True)

    assert isinstance(first, OSError)
    assert str(first) == str(second) == f"{NAME} cannot be resolved: RuntimeError('no such thing')"
    assert first is not second


def test_the_systems_resolver_gives_addresses_and_refuses_what_cannot_be_a_name() -> None:
    assert set(look_up("localhost")) <= {"127.0.0.1", "::1"}
    with pytest.raises(socket.gaierror):
        look_up("n" * 64)
