"""Rule 10: of two processes with one disk, the first that answers stays; the decision, then both over real sockets."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientSession, ClientWebSocketResponse, WSMsgType

from quire.replication.core.messages import HeartbeatEcho, Open, Probe, Promise
from quire.replication.net.duplicate_guard import Caller, DuplicateNodeGuard, ProbeRound
from quire.replication.net.hello import PeerInfo, PeerRefused, dial_hello
from quire.replication.net.links import Link, LinkServer
from quire.replication.net.streams import StreamServer
from quire.replication.net.wire import decode_peer, encode
from tests.replication.loopback import ANYBODY, DEADLINE_S, calling, listening, trusting, until, who
from tests.replication.recorder import Recorder, ended
from tests.replication.running import cluster_of

DISK, OTHER = bytes(16), bytes(range(16))
NONCE = bytes(16)
SECRET = b"a secret of the peers"
ECHO = HeartbeatEcho(3, 1, 3)


# The decision


def test_a_first_connection_is_admitted() -> None:
    assert DuplicateNodeGuard().begin_round(Caller(DISK, 1)) is None


@pytest.mark.parametrize("second", [Caller(DISK, 1), Caller(OTHER, 2)])
def test_the_same_process_or_another_disk_is_admitted(second: Caller) -> None:
    guard = DuplicateNodeGuard()
    guard.opened(7, Caller(DISK, 1))

    assert guard.begin_round(second) is None


def test_another_incarnation_of_a_disk_is_admitted_only_after_every_link_of_the_first_was_probed() -> None:
    guard = DuplicateNodeGuard()
    for link in (7, 8):
        guard.opened(link, Caller(DISK, 1))
    guard.opened(9, Caller(OTHER, 1))

    assert guard.begin_round(Caller(DISK, 2)) == ProbeRound(1, [7, 8])


def test_a_link_that_ended_is_not_probed() -> None:
    guard = DuplicateNodeGuard()
    guard.opened(7, Caller(DISK, 1))
    guard.closed(7)

    assert guard.begin_round(Caller(DISK, 2)) is None


def test_only_an_answer_to_a_probe_sent_after_the_caller_came_refuses_it() -> None:
    guard = DuplicateNodeGuard()
    guard.opened(7, Caller(DISK, 1))
    first = guard.begin_round(Caller(DISK, 2))
    assert first is not None
    guard.end_round(first)
    second = guard.begin_round(Caller(DISK, 3))
    assert second is not None

    assert not guard.is_alive(7, first.nonce)
    assert not guard.is_alive(8, second.nonce)
    assert guard.is_alive(7, second.nonce)


# Over sockets


@asynccontextmanager
async def serving(theirs: Recorder) -> AsyncGenerator[tuple[LinkServer, str, ClientSession]]:
    """A node's server of links and streams, its address, and something to dial it with."""
    server = LinkServer(theirs, ANYBODY)
    streams = StreamServer(theirs, ANYBODY, server.admit)
    async with (
        listening({"/peer": server.serve, "/peer/stream": streams.serve}) as address,
        calling() as session,
    ):
        try:
            yield server, address, session
        finally:
            await streams.close()
            await server.close()


async def hello(
    session: ClientSession, address: str, me: PeerInfo, *, purpose: str = "peer"
) -> ClientWebSocketResponse | str:
    """The socket on which n2 let this process in, or the code of its refusal."""
    path = "/peer" if purpose == "peer" else "/peer/stream"
    socket = await session.ws_connect(f"http://{address}{path}")
    try:
        await dial_hello(socket, me, "n2", purpose, None, NONCE)
    except PeerRefused as error:
        await socket.close()
        return error.code
    return socket


@pytest.mark.parametrize("purpose", ["peer", "stream"])
async def test_a_duplicate_is_refused_with_an_alarm_while_the_first_process_answers(purpose: str) -> None:
    mine, theirs = Recorder(who("n1")), Recorder(who("n2"))
    async with serving(theirs) as (_, address, session):
        link = Link(mine, session, "n2", lambda: [address], trusting(None))
        await until(lambda: theirs.came)

        assert await hello(session, address, who("n1", incarnation=2), purpose=purpose) == "twin"

        link.send(ECHO)
        await until(lambda: theirs.said)
        assert theirs.said == [("n1", ECHO)]
        assert theirs.duplicates == [who("n1", incarnation=2)]
        assert mine.down == []
        assert theirs.replaced == []
        await asyncio.wait_for(link.close(), DEADLINE_S)


async def test_a_first_process_that_does_not_answer_is_replaced_and_heard_no_more() -> None:
    theirs = Recorder(who("n2"))
    async with serving(theirs) as (_, address, session):
        silent = await hello(session, address, who("n1"))
        assert isinstance(silent, ClientWebSocketResponse)

        second = await hello(session, address, who("n1", incarnation=2))
        assert isinstance(second, ClientWebSocketResponse)
        await silent.send_bytes(encode(ECHO))
        await second.send_bytes(encode(HeartbeatEcho(9, 9, 9)))
        await until(lambda: theirs.said)

        assert theirs.said == [("n1", HeartbeatEcho(9, 9, 9))]
        assert theirs.replaced == [who("n1")]
        assert theirs.duplicates == []
        await silent.close()
        await second.close()


async def test_a_restarted_process_is_admitted_as_soon_as_its_first_connection_ends() -> None:
    theirs = Recorder(who("n2"))
    async with serving(theirs) as (_, address, session):
        first = await hello(session, address, who("n1"))
        assert isinstance(first, ClientWebSocketResponse)
        entering = asyncio.create_task(hello(session, address, who("n1", incarnation=2)))
        assert isinstance(decode_peer((await first.receive()).data), Probe)

        await first.close()

        second = await asyncio.wait_for(entering, DEADLINE_S)
        assert isinstance(second, ClientWebSocketResponse)
        assert (theirs.replaced, theirs.duplicates) == ([], [])
        await second.close()


async def test_the_streams_of_a_process_that_was_replaced_end() -> None:
    async with cluster_of("n1", "n2", secret=SECRET) as cluster, calling() as session:
        address = cluster.addresses["n1"]
        silent = who("n9")
        link = await session.ws_connect(f"http://{address}/peer")
        await dial_hello(link, silent, "n1", "peer", SECRET, NONCE)
        stream = await session.ws_connect(f"http://{address}/peer/stream")
        await dial_hello(stream, silent, "n1", "stream", SECRET, NONCE)
        await stream.send_bytes(encode(Open(Promise(0, "n1", 0), ((0, 0),), 1, 1)))
        assert (await stream.receive()).type is WSMsgType.BINARY  # its opening is answered: the stream stands

        second = await session.ws_connect(f"http://{address}/peer")
        await dial_hello(second, who("n9", incarnation=2), "n1", "peer", SECRET, NONCE)

        assert await ended(stream)
        for socket in (link, second):
            await socket.close()


async def test_a_running_cluster_names_a_duplicate_node_in_its_alarms() -> None:
    async with cluster_of("n1", "n2") as cluster, calling() as session:
        duplicate = who("n2", incarnation=1 << 40)
        socket = await session.ws_connect(f"http://{cluster.addresses['n1']}/peer")
        with pytest.raises(PeerRefused, match="twin"):
            await dial_hello(socket, duplicate, "n1", "peer", None, NONCE)
        await socket.close()

        assert len(cluster["n1"].owner.alarms) == 1
        assert "n2" in cluster["n1"].owner.alarms[0]
        assert list(cluster["n1"].replica.network.reports.alarms) == ["n2"]
