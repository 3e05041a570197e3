"""Links over real sockets: what they do when the other side hangs up, sends garbage, or sends nothing."""

import asyncio
import errno
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from aiohttp import (
    ClientConnectorCertificateError,
    ClientConnectorError,
    ClientConnectorSSLError,
    ClientSession,
    RequestInfo,
    WSServerHandshakeError,
    web,
)
from aiohttp.client_reqrep import ConnectionKey
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from quire.replication import Promise
from quire.replication.core import CoreOptions, Identity, Members
from quire.replication.core.members import Removed
from quire.replication.core.messages import (
    Directory,
    GenesisOffer,
    Heartbeat,
    HeartbeatEcho,
)
from quire.replication.net.book import Book
from quire.replication.net.forming import Forming, members_of_genesis
from quire.replication.net.hello import answer_hello, dial, dial_hello
from quire.replication.net.links import Link, LinkServer, failure_of
from quire.replication.net.trust import Trust
from quire.replication.net.wire import MAX_REASON, encode
from tests.replication.loopback import (
    ANYBODY,
    DEADLINE_S,
    Handler,
    calling,
    listening,
    trusting,
    turns,
    unformatted,
    until,
    who,
)
from tests.replication.recorder import HEARTBEAT, NONCE, OPENING, Recorder, ended, failing
from tests.replication.running import Cluster
from tests.replication.world import genesis_frame, voters


def test_why_a_peer_cannot_be_dialled_is_said_in_the_systems_words() -> None:
    key = ConnectionKey("n2.invalid", 7001, False, True, None, None, None)

    refused = ClientConnectorError(key, OSError(errno.ECONNREFUSED, "Connect call failed ('10.0.0.2', 7001)"))
    unresolved = ClientConnectorError(key, OSError(-2, "Name or service not known"))

    assert failure_of(refused) == "connection refused (n2.invalid:7001)"
    assert failure_of(unresolved) == "Name or service not known (n2.invalid:7001)"
    assert failure_of(TimeoutError()) == "no answer in time"
    assert failure_of(ValueError("odd")) == "odd"
    assert failure_of(ValueError("x" * 8_000)) == "x" * MAX_REASON


def test_why_a_peer_did_not_prove_its_name_is_said_with_what_to_do() -> None:
    key = ConnectionKey("n2.invalid", 7001, True, True, None, None, None)
    plain, other, odd = ssl.SSLError(1, "no"), ssl.SSLCertVerificationError(1, "no"), ssl.SSLError(1, "no")
    plain.reason, odd.reason = "WRONG_VERSION_NUMBER", "NO_SHARED_CIPHER"
    other.verify_message = "certificate has expired"

    assert failure_of(ClientConnectorSSLError(key, plain)) == (
        "it does not speak TLS: start it with --tls-cert, --tls-key and --tls-ca (n2.invalid:7001)"
    )
    assert failure_of(ClientConnectorSSLError(key, odd)) == (
        "the TLS handshake failed: no shared cipher (n2.invalid:7001)"
    )
    assert failure_of(ClientConnectorCertificateError(key, other)) == (
        "its certificate is refused: certificate has expired; look at it with `quire certs show`, and at both clocks "
        "(n2.invalid:7001)"
    )


@pytest.mark.parametrize(("scheme", "names_flags"), [("http", True), ("https", False)])
def test_a_peer_that_answers_no_websocket_may_lack_nothing_but_tls_on_this_side(scheme: str, names_flags: bool) -> None:
    url = URL(f"{scheme}://n2.invalid:7001/peer")
    said = failure_of(WSServerHandshakeError(RequestInfo(url, "GET", CIMultiDictProxy(CIMultiDict())), (), status=400))

    assert said.startswith("it answers 400 to a peer")
    assert ("start this node with --tls-cert" in said) == names_flags


@asynccontextmanager
async def linked(mine: Recorder, theirs: Recorder) -> AsyncGenerator[tuple[Link, LinkServer]]:
    """An open link, and the server at its other end."""
    server = LinkServer(theirs, ANYBODY)
    async with listening({"/peer": server.serve}) as address, calling() as session:
        link = Link(mine, session, theirs.info.node_id, lambda: [address], trusting(None))
        try:
            await until(lambda: mine.up)
            yield link, server
        finally:
            await asyncio.wait_for(link.close(), DEADLINE_S)
            await server.close()


async def test_messages_on_a_link_arrive_in_order_with_their_senders_name() -> None:
    mine, theirs = Recorder(who("n1")), Recorder(who("n2"))
    async with linked(mine, theirs) as (link, _):
        messages = [Heartbeat(Promise(3, "n1", 1), number, 0) for number in range(300)]
        for message in messages:
            link.send(message)
        await until(lambda: len(theirs.said) == 300)

        assert theirs.said == [("n1", message) for message in messages]
        assert (mine.up, theirs.came) == ([who("n2")], [who("n1")])


async def test_a_broken_link_is_redialled_and_carries_no_old_message() -> None:
    mine, theirs = Recorder(who("n1")), Recorder(who("n2"))
    server = [LinkServer(theirs, ANYBODY)]

    async def serve(request: web.Request) -> web.StreamResponse:
        return await server[0].serve(request)

    async with listening({"/peer": serve}) as address, calling() as session:
        link = Link(mine, session, "n2", lambda: [address], trusting(None))
        await until(lambda: mine.up)
        await server[0].close()
        await until(lambda: mine.down)
        link.send(HEARTBEAT)
        server[0] = LinkServer(theirs, ANYBODY)
        await until(lambda: len(mine.up) == 2)
        link.send(HeartbeatEcho(3, 1, 3))
        await until(lambda: theirs.said)

        assert theirs.said == [("n1", HeartbeatEcho(3, 1, 3))]
        await asyncio.wait_for(link.close(), DEADLINE_S)
        await server[0].close()


class Away:
    """A peer's link server that refuses whoever dials it until it has come back."""

    def __init__(self, told: Recorder) -> None:
        self.server = LinkServer(told, ANYBODY)
        self.came_back = False
        self.refused = 0

    async def serve(self, request: web.Request) -> web.StreamResponse:
        if not self.came_back:
            self.refused += 1
            raise web.HTTPServiceUnavailable
        return await self.server.serve(request)


async def test_a_peer_that_dials_is_dialled_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the pause has become while it was away."""
    monkeypatch.setattr("quire.replication.net.links.FIRST_REDIAL_S", 1000.0)
    mine, away = Recorder(who("n1")), Away(Recorder(who("n2")))
    async with listening({"/peer": away.serve}) as address, calling() as session:
        link = Link(mine, session, "n2", lambda: [address], trusting(None), election_timeout_s=10_000.0)
        await until(lambda: len(mine.failed) == 2)  # The first pause is none.
        away.came_back = True
        link.redial_now()
        await until(lambda: mine.up)
        await asyncio.wait_for(link.close(), DEADLINE_S)
        await away.server.close()


async def test_a_replica_that_a_peer_dials_dials_it_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.replication.net.links.FIRST_REDIAL_S", 1000.0)
    monkeypatch.setattr("tests.replication.running.OPTIONS", CoreOptions(election_timeout_us=10_000_000_000))
    told, cluster = Recorder(who("n1")), Cluster("n1", "n2")
    away = Away(told)
    async with listening({"/peer": away.serve}) as address, calling() as session:
        cluster.addresses["n1"] = address
        replica = cluster.make("n2").replica
        replica.start(session, nominated=False)
        await until(lambda: away.refused == 2)  # The first pause is none.
        away.came_back = True
        async with listening({"/peer": replica.network.link_server.serve}) as its_address:
            socket, _ = await dial(session, its_address, lambda: who("n1"), "n2", "peer", trusting(None), None)
            await until(lambda: told.came)
            await socket.close()
        await replica.stop()
        await away.server.close()


async def test_a_removed_peer_that_called_is_dialled_until_it_has_heard_why() -> None:
    """It calls once. What it says of other members, before the link back to it is up, must not end that link."""
    told, cluster = Recorder(who("n1")), Cluster("n1", "n2")
    away = Away(told)
    async with listening({"/peer": away.serve}) as address, calling() as session:
        replica = cluster.make("n2").replica
        network, log = replica.network, Members(voters("n2").members, (Removed("n1", b"1" * 16, 3),))
        network.book = Book("n2", lambda: (7, log), {}, {"n1": address})
        replica.start(session, nominated=False)
        async with listening({"/peer": network.link_server.serve}) as its_address:
            socket, _ = await dial(session, its_address, lambda: who("n1"), "n2", "peer", trusting(None), None)
            await until(lambda: away.refused)
            network.message_received(who("n1"), Directory(9, ()))
            away.came_back = True
            await until(lambda: told.came)
            await socket.close()
        await replica.stop()
        await away.server.close()


async def test_no_task_is_left_of_links_and_streams_that_were_being_closed_when_a_replica_stopped() -> None:
    """The other end of each is silent: it neither reads nor closes."""
    cluster, silence = Cluster("n1", "n2", "n3"), asyncio.Event()
    dialled: list[str] = []

    async def serve(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(timeout=1.0)
        await socket.prepare(request)
        await answer_hello(socket, who("n1"), "peer" if request.path == "/peer" else "stream", (), NONCE)
        dialled.append(request.path)
        await silence.wait()
        return socket

    async with listening({"/peer": serve, "/peer/stream": serve}) as address, calling() as session:
        cluster.addresses["n1"] = address
        node = cluster.make("n2")
        network, before = node.replica.network, asyncio.all_tasks()
        node.replica.start(session, nominated=False)
        routes: dict[str, Handler] = {"/peer": network.link_server.serve, "/peer/stream": network.streams.server.serve}
        async with listening(routes) as its_address:
            link, _ = await dial(session, its_address, lambda: who("n3"), "n2", "peer", trusting(None), None)
            stream, _ = await dial(session, its_address, lambda: who("n3"), "n2", "stream", trusting(None), None)
            await stream.send_bytes(encode(OPENING))
            network.message_received(who("n1"), Heartbeat(Promise(3, "n1", 1), 1, 0))
            await until(lambda: "/peer" in dialled and network.reports.stream is not None)
            node.owner.features = frozenset({"fitness"})
            network.enforce_features()
            await node.replica.stop()

            ours = ("link", "stream", "end of", "ticks", "mark")
            left = [task.get_name() for task in asyncio.all_tasks() - before if task.get_name().startswith(ours)]
            silence.set()
            await link.close()
            await stream.close()
    assert left == []


@pytest.mark.parametrize("turn", range(6))
async def test_a_link_can_be_closed_at_the_moment_it_ends_by_itself(turn: int) -> None:
    mine, theirs = Recorder(who("n1")), Recorder(who("n2"))
    async with linked(mine, theirs) as (link, server):
        await server.close()
        await until(lambda: link.peer is None)
        await turns(turn)
        await asyncio.wait_for(link.close(), DEADLINE_S)


@pytest.mark.full
async def test_a_refused_link_reports_why_and_keeps_dialling() -> None:
    mine, theirs = Recorder(who("n1")), Recorder(who("n2", cluster_id=b"another cluster."))
    server = LinkServer(theirs, ANYBODY)
    async with listening({"/peer": server.serve}) as address, calling() as session:
        link = Link(mine, session, "n2", lambda: [address], trusting(None))
        await until(lambda: len(mine.failed) == 2)
        await link.close()

    assert all("foreign_cluster" in reason for reason in mine.failed)
    assert mine.up == []


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x91\x63", encode(OPENING)])
async def test_a_peer_that_sends_garbage_is_disconnected(data: bytes) -> None:
    theirs = Recorder(who("n2"))
    server = LinkServer(theirs, ANYBODY)
    async with listening({"/peer": server.serve}) as address, calling() as session:
        socket = await session.ws_connect(f"http://{address}/peer")
        await dial_hello(socket, who("n1"), "n2", "peer", None, NONCE)
        await socket.send_bytes(encode(HEARTBEAT))
        await socket.send_bytes(data)
        assert await ended(socket)

    assert theirs.said == [("n1", HEARTBEAT)]


# Forming, and the change to a formed node


def forming(node_id: str, *initial: str, urls: dict[str, str] | None = None) -> Forming:
    me = unformatted(node_id)
    book = Book(node_id, lambda: (-1, Members(())), {} if urls is None else urls, {})
    identity = Identity(me.node_id, me.disk_id, me.incarnation)
    trust = Trust((), initial.__contains__)
    return Forming(identity, me.address, list(initial), book, trust, lambda members, _: genesis_frame(members))


async def refused_or_hung_up(session: ClientSession, address: str) -> bool:
    """Whether a dial of `/peer` is refused, before or after the hello."""
    try:
        socket = await session.ws_connect(f"http://{address}/peer")
        await dial_hello(socket, who("n1"), "n2", "peer", None, NONCE)
    except (WSServerHandshakeError, ConnectionError):
        return True
    return await ended(socket)


async def test_a_directory_that_comes_while_the_links_are_closed_adds_none(monkeypatch: pytest.MonkeyPatch) -> None:
    frame, close, closed = genesis_frame(voters("n1")), Link.close, list[Link]()
    node = forming("n2", "n1", "n2", urls={"n1": "127.0.0.1:1"})

    async def told_meanwhile(link: Link) -> None:
        closed.append(link)
        node.message_received(who("n1"), Directory(5, (("n1", "127.0.0.1:1"), ("n3", "127.0.0.1:3"))))
        await close(link)

    monkeypatch.setattr(Link, "close", told_meanwhile)
    async with calling() as session:
        formed = asyncio.create_task(node.run(session))
        await turns(1)
        node.message_received(who("n1"), GenesisOffer(frame, committed=True))
        assert await asyncio.wait_for(formed, DEADLINE_S) == frame
    assert len(closed) == 1


async def test_an_unformatted_node_accepts_the_genesis_that_it_is_shown() -> None:
    frame = genesis_frame(voters("n1"))
    node = forming("n2", "n1", "n2")
    async with listening({"/peer": node.serve}) as address, calling() as session:
        formed = asyncio.create_task(node.run(session))
        link = Link(Recorder(who("n1")), session, "n2", lambda: [address], trusting(None))
        await until(lambda: link.peer is not None)
        link.send(GenesisOffer(frame, committed=False))
        await turns(200)
        assert not formed.done()
        link.send(GenesisOffer(frame, committed=True))
        assert await asyncio.wait_for(formed, DEADLINE_S) == frame
        await link.close()


async def test_a_dial_after_the_genesis_was_accepted_is_refused_and_not_left_unheard() -> None:
    # A link that stood on what served the formation would stand for ever, and nobody would hear what is said on it.
    node = forming("n2", "n1", "n2")
    async with listening({"/peer": node.serve}) as address, calling() as session:
        formed = asyncio.create_task(node.run(session))
        link = Link(Recorder(who("n1")), session, "n2", lambda: [address], trusting(None))
        await until(lambda: link.peer is not None)
        link.send(GenesisOffer(genesis_frame(voters("n1")), committed=True))
        await asyncio.wait_for(formed, DEADLINE_S)

        assert await refused_or_hung_up(session, address)
        await link.close()


async def test_a_hello_during_the_acceptance_of_a_genesis_ends_refused_and_not_unheard() -> None:
    node = forming("n2", "n1", "n2")
    async with listening({"/peer": node.serve}) as address, calling() as session:
        formed = asyncio.create_task(node.run(session))
        socket = await session.ws_connect(f"http://{address}/peer")
        link = Link(Recorder(who("n1")), session, "n2", lambda: [address], trusting(None))
        await until(lambda: link.peer is not None)
        link.send(GenesisOffer(genesis_frame(voters("n1")), committed=True))
        await asyncio.wait_for(formed, DEADLINE_S)

        try:
            await dial_hello(socket, who("n1"), "n2", "peer", None, NONCE)
        except ConnectionError:
            return
        finally:
            await link.close()
        assert await ended(socket)


async def test_all_initial_members_together_form_one_cluster_with_the_lowest_ids_genesis() -> None:
    names = ["n1", "n2", "n3"]
    urls: dict[str, str] = {}
    nodes = {name: forming(name, *names, urls=urls) for name in names}
    async with (
        listening({"/peer": nodes["n1"].serve}) as first,
        listening({"/peer": nodes["n2"].serve}) as second,
        listening({"/peer": nodes["n3"].serve}) as third,
        calling() as session,
    ):
        urls |= zip(names, (first, second, third), strict=True)
        waiting = {name: asyncio.create_task(node.run(session)) for name, node in nodes.items()}
        frame = await asyncio.wait_for(waiting["n1"], DEADLINE_S)
        await turns(200)

        assert not waiting["n2"].done()
        assert not waiting["n3"].done()
        named = {member.node_id: member.disk_id for member in members_of_genesis(frame).members}
        assert named == {name: who(name).disk_id for name in names}
        for name in ("n2", "n3"):
            waiting[name].cancel()
        await asyncio.gather(*waiting.values(), return_exceptions=True)


async def test_a_link_whose_messages_cannot_leave_is_redialled(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, theirs = Recorder(who("n1")), Recorder(who("n2"))
    monkeypatch.setattr(Link, "_send_waiting", failing)
    async with linked(mine, theirs) as (link, _):
        await until(lambda: len(mine.failed) == 2)
        monkeypatch.undo()
        await until(lambda: len(mine.up) > len(mine.down))
        link.send(HEARTBEAT)
        await until(lambda: theirs.said)

    assert mine.failed[0] == "a fault of ours"
