"""Rule 10: whom a node believes, and what a stranger, or a peer that is no member, leaves behind."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from ssl import SSLContext, create_default_context

import pytest
from aiohttp import ClientSession, web

from quire.log import pack
from quire.replication import Member, Members, Role
from quire.replication.core import MAX_MEMBERS, Identity
from quire.replication.core.messages import GenesisOffer, LagReport, PositionReport
from quire.replication.net.book import Book
from quire.replication.net.forming import Forming, members_of_genesis
from quire.replication.net.hello import FOREIGN_CLUSTER, PATHS, PeerInfo, PeerRefused, dial
from quire.replication.net.links import Link, LinkServer
from quire.replication.net.snapshots import SnapshotServer
from quire.replication.net.streams import StreamServer
from quire.replication.net.trust import Trust
from quire.replication.net.wire import BadMessage
from tests.replication.loopback import DEADLINE_S, HOST, calling, listening, trusting, turns, unformatted, until, who
from tests.replication.recorder import Recorder
from tests.replication.running import Cluster, Running
from tests.replication.strangers import answering, frame, rest
from tests.replication.test_hello_servers import Source
from tests.replication.world import disk_id, genesis_frame, voters

SECRET, OTHER = b"a secret of the peers", b"another secret"
MEMBERS = frozenset({"n1", "n2", "n3"})
FAR = "10.0.0.9"


@pytest.mark.parametrize(
    ("secrets", "believed"),
    [
        ((), {("n1", HOST), ("n1", "::1"), ("n1", "::ffff:127.0.0.1")}),
        ((SECRET,), None),
    ],
)
def test_who_is_believed_without_certificates(
    secrets: tuple[bytes, ...], believed: set[tuple[str, str]] | None
) -> None:
    trust = Trust(secrets, MEMBERS.__contains__)
    callers = {
        (node, host) for node in ("n1", "n9") for host in (HOST, "::1", "::ffff:127.0.0.1", FAR, f"::ffff:{FAR}")
    }

    found = {
        (node, host)
        for node, host in callers
        if not trust.doubt_of_caller(host, None) and not trust.doubt_of_peer(node, None)
    }

    assert found == (callers if believed is None else believed)


def test_a_caller_without_an_address_is_not_believed() -> None:
    assert Trust((), MEMBERS.__contains__).doubt_of_caller(None, None)


class _OfHost:
    """Certificates by which each caller is the node that its address names."""

    def dialling(self, node_id: str) -> tuple[SSLContext, str]:
        return create_default_context(), node_id

    async def node_at(self, address: str) -> str:
        return address

    def node_of(self, request: web.Request) -> str | None:
        return request.remote


@pytest.mark.parametrize("secrets", [(), (SECRET,)])
def test_with_certificates_only_a_caller_that_shows_its_own_is_believed(secrets: tuple[bytes, ...]) -> None:
    trust = Trust(secrets, MEMBERS.__contains__, _OfHost())
    shown = {(node, issued_to) for node in ("n1", "n9") for issued_to in (None, "n1", "n2", "n9")}

    believed = {
        (node, issued_to)
        for node, issued_to in shown
        if not trust.doubt_of_caller(HOST, issued_to) and not trust.doubt_of_peer(node, issued_to)
    }

    assert believed == {("n1", "n1"), ("n9", "n9")}


# At the three paths


@asynccontextmanager
async def serving(
    purpose: str, told: Recorder, trust: Trust, remote: str = HOST
) -> AsyncGenerator[tuple[ClientSession, str]]:
    """A server that takes its callers to come from an address, and what dials it."""
    match purpose:
        case "peer":
            server: LinkServer | StreamServer | SnapshotServer = LinkServer(told, trust)
        case "stream":
            server = StreamServer(told, trust)
        case _:
            server = SnapshotServer(told.me, Source(), trust)

    async def serve(request: web.Request) -> web.StreamResponse:
        return await server.serve(request.clone(remote=remote))

    async with listening({PATHS[purpose]: serve}) as address, calling() as session:
        try:
            yield session, address
        finally:
            await server.close()


@pytest.mark.parametrize("purpose", PATHS)
@pytest.mark.parametrize(("claimed", "remote"), [("n9", HOST), ("n1", FAR)])
async def test_without_a_secret_a_stranger_is_refused_and_told_why(purpose: str, claimed: str, remote: str) -> None:
    told = Recorder(who("n2"))
    async with serving(purpose, told, Trust((), MEMBERS.__contains__), remote) as (session, address):
        for peer in (who(claimed), replace(who(claimed), incarnation=2), unformatted(claimed)):
            with pytest.raises(PeerRefused, match="stranger"):
                await dial(session, address, lambda peer=peer: peer, "n2", purpose, trusting(None), None)  # type: ignore[misc]
    assert (told.came, told.opened, told.duplicates, told.replaced, told.doubts) == ([], [], [], [], [])


@pytest.mark.parametrize("purpose", PATHS)
async def test_with_a_secret_a_peer_that_is_no_member_is_believed_from_anywhere(purpose: str) -> None:
    trust = Trust((OTHER, SECRET), MEMBERS.__contains__)
    async with serving(purpose, Recorder(who("n2")), trust, FAR) as (session, address):
        socket, peer = await dial(session, address, lambda: who("n9"), "n2", purpose, trusting(SECRET), None)
        assert peer == who("n2")
        await socket.close()


async def test_unequal_secrets_are_said_at_both_ends_with_the_peers_name() -> None:
    mine, theirs = Recorder(who("n1")), Recorder(who("n2"))
    async with serving("peer", theirs, Trust((SECRET,), MEMBERS.__contains__)) as (session, address):
        link = Link(mine, session, "n2", lambda: [address], trusting(OTHER))
        await until(lambda: mine.failed and theirs.doubts)
        await asyncio.wait_for(link.close(), DEADLINE_S)
        with pytest.raises(PeerRefused, match="of n9 and"):
            await dial(session, address, lambda: who("n9"), "n2", "peer", trusting(OTHER), None)
    assert "the peer secrets of n1 and of this node do not match: they differ" in mine.failed[0]
    assert {node_id for node_id, _ in theirs.doubts} == {"n1"}, "a stranger's words go nowhere"


async def test_who_goes_under_the_name_of_a_connected_member_is_not_reported_as_that_member() -> None:
    told = Recorder(who("n2"))
    async with serving("peer", told, Trust((SECRET,), MEMBERS.__contains__)) as (session, address):
        socket, _ = await dial(session, address, lambda: who("n1"), "n2", "peer", trusting(SECRET), None)
        await until(lambda: told.came)
        with pytest.raises(PeerRefused):
            await dial(session, address, lambda: who("n1"), "n2", "peer", trusting(OTHER), None)
        assert told.doubts == []

        await socket.close()
        with pytest.raises(PeerRefused):
            await dial(session, address, lambda: who("n1"), "n2", "peer", trusting(OTHER), None)
        assert [node_id for node_id, _ in told.doubts] == ["n1"]


@pytest.mark.parametrize("spoken", [(SECRET,), (OTHER,), (SECRET, OTHER), (OTHER, SECRET)])
@pytest.mark.parametrize("accepted", [(SECRET,), (OTHER,), (SECRET, OTHER), (OTHER, SECRET)])
async def test_a_dialler_that_speaks_one_of_the_accepted_secrets_is_believed_and_believes(
    spoken: tuple[bytes, ...], accepted: tuple[bytes, ...]
) -> None:
    trust = Trust(spoken, MEMBERS.__contains__)
    async with serving("peer", Recorder(who("n2")), Trust(accepted, MEMBERS.__contains__)) as (session, address):
        try:
            socket, _ = await dial(session, address, lambda: who("n1"), "n2", "peer", trust, None)
        except PeerRefused:
            assert spoken[0] not in accepted
        else:
            assert spoken[0] in accepted
            await socket.close()


ROTATION = [(SECRET,), (SECRET, OTHER), (OTHER, SECRET), (OTHER,)]
"""What each node holds before a rotation and after each of its three rolling restarts."""


@pytest.mark.parametrize("step", range(3))
@pytest.mark.parametrize("is_ahead", [False, True])
async def test_at_each_step_of_a_rotation_nodes_before_it_and_after_it_believe_each_other(
    step: int, is_ahead: bool
) -> None:
    spoken, accepted = (Trust(ROTATION[step + ahead], MEMBERS.__contains__) for ahead in (is_ahead, not is_ahead))
    async with serving("peer", Recorder(who("n2")), accepted) as (session, address):
        socket, _ = await dial(session, address, lambda: who("n1"), "n2", "peer", spoken, None)
        await socket.close()


# A node that waits to be formed


def forming(trust: Trust) -> Forming:
    me = unformatted("n2")
    identity = Identity(me.node_id, me.disk_id, me.incarnation)
    book = Book("n2", lambda: (-1, Members(())), {}, {})
    return Forming(identity, me.address, ["n1", "n2"], book, trust, lambda members, _: genesis_frame(members))


@pytest.mark.parametrize("secret", [None, SECRET])
async def test_a_genesis_that_no_member_shows_captures_no_waiting_node(secret: bytes | None) -> None:
    trust = Trust(() if secret is None else (secret,), {"n1", "n2"}.__contains__)
    node, frame = forming(trust), genesis_frame(voters("n1", "n2"))
    async with listening({"/peer": node.serve}) as address, calling() as session:
        formed = asyncio.create_task(node.run(session))
        stranger, told = (
            Link(Recorder(who("n9")), session, "n2", lambda: [address], trusting(secret)),
            Recorder(who("n1")),
        )
        links = [stranger, Link(told, session, "n2", lambda: [address], trusting(secret))]
        await until(lambda: told.up and (secret is None or stranger.peer is not None))
        stranger.send(GenesisOffer(frame, committed=True))
        await turns(200)
        assert not formed.done()
        links[1].send(GenesisOffer(frame, committed=True))
        assert await asyncio.wait_for(formed, DEADLINE_S) == frame
        for link in links:
            await asyncio.wait_for(link.close(), DEADLINE_S)


async def test_a_waiting_node_says_which_member_does_not_prove_its_secret() -> None:
    node = forming(Trust((SECRET,), {"n1", "n2"}.__contains__))
    async with listening({"/peer": node.serve}) as address, calling() as session:
        for claimed in ("n1", "n9"):
            with pytest.raises(PeerRefused):
                await dial(session, address, lambda claimed=claimed: who(claimed), "n2", "peer", trusting(OTHER), None)  # type: ignore[misc]
        assert list(node.failures) == ["link from n1"]
        assert "n1: peer_secret" in node.awaited()
        socket, _ = await dial(session, address, lambda: who("n1"), "n2", "peer", trusting(SECRET), None)
        await until(lambda: not node.failures)
        await socket.close()


def test_a_genesis_whose_members_have_no_address_is_no_genesis() -> None:
    member = Member("n1", disk_id("n1"), "victim/internal/delete?x=1:80", Role.VOTER)
    with pytest.raises(BadMessage, match="HOST:PORT"):
        members_of_genesis(genesis_frame(Members((member,))))


# What a running node keeps of those who dial it


@asynccontextmanager
async def running(
    *node_ids: str, secret: bytes | None = None, unnamed: str = ""
) -> AsyncGenerator[tuple[Running, Cluster]]:
    """n1 of these nodes, alone on the network: nobody listens at the others' addresses.

    `unnamed` is a node that the log names, and its configuration does not.
    """
    cluster = Cluster(*node_ids, secret=secret)
    cluster.addresses = {node: f"{HOST}:{number}" for number, node in enumerate(node_ids, 1) if node != unnamed}
    node = cluster.make("n1")
    async with calling() as session:
        node.replica.start(session, nominated=False)
        try:
            yield node, cluster
        finally:
            await node.replica.stop()


def guests(count: int, first: int = 0) -> list[PeerInfo]:
    return [replace(who(f"guest-{number}"), address=f"{HOST}:{9}") for number in range(first, first + count)]


def dialled() -> set[str]:
    """The nodes to which links are kept."""
    names = (task.get_name() for task in asyncio.all_tasks())
    return {name.removeprefix("link to ") for name in names if name.startswith("link to ")}


async def test_invented_ids_fill_neither_the_links_nor_what_is_reported() -> None:
    async with running("n1", "n2", secret=SECRET) as (node, _):
        network = node.replica.network
        for guest in guests(3_000):
            network.peer_dialled(guest)
            network.message_received(guest, PositionReport(7, 7, bytes(16)))
            network.duplicate_refused(guest)
            network.peer_foreign(guest)
        await until(lambda: len(network.reports.failures) == MAX_MEMBERS)

        assert len(dialled()) == MAX_MEMBERS
        assert "n2" in dialled()
        assert (network.reports.alarms, node.replica.lags.positions, node.owner.positions) == ({}, {}, {})
        assert (len(network.reports.histories), len(node.owner.alarms)) == (MAX_MEMBERS, MAX_MEMBERS)
        assert (network.reports.codes, network.reports.foreign) == ({}, set())


async def test_a_member_that_only_the_log_names_is_dialled_though_guests_fill_the_table() -> None:
    async with running("n1", "n2", secret=SECRET, unnamed="n2") as (node, _):
        network = node.replica.network
        for guest in guests(MAX_MEMBERS + 1):
            network.peer_dialled(guest)
        assert len(dialled()) == MAX_MEMBERS
        network.peer_dialled(replace(who("n2"), address="victim:80"))
        assert network.address_of("n2") == "n2:1"
        await until(lambda: len(dialled()) == MAX_MEMBERS)


async def test_a_guest_that_became_a_member_is_dialled_at_its_own_address() -> None:
    async with running("n1", "n2", secret=SECRET, unnamed="n2") as (node, _):
        network, state = node.replica.network, node.replica.core.state
        members, state.members = state.members, voters("n1")
        network.peer_dialled(replace(who("n2"), address=f"{HOST}:9"))
        assert network.address_of("n2") == f"{HOST}:9"
        state.members = members
        network.peer_dialled(replace(who("n2"), address=f"{HOST}:9"))
        assert network.address_of("n2") == "n2:1"


async def test_a_guest_is_forgotten_when_its_link_has_been_down_for_long_and_a_member_never(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = Recorder(who("guest-0"))
    server = LinkServer(told, Trust((SECRET,), lambda _: True))
    async with listening({"/peer": server.serve}) as address, running("n1", "n2", secret=SECRET) as (node, _):
        network = node.replica.network
        up, down = (replace(who(name), address=at) for name, at in (("guest-0", address), ("guest-1", f"{HOST}:9")))
        for guest in (up, down):
            network.peer_dialled(guest)
        await until(lambda: network.is_linked("guest-0") and "guest-1" in network.reports.failures)
        network.forget_guests()
        assert dialled() == {"guest-0", "guest-1", "n2"}

        monkeypatch.setattr("quire.replication.net.network.GUEST_S", 0.0)
        network.forget_guests()
        assert network.address_of("guest-1") is None
        network.link_failed("guest-1", OSError("late"))
        network.link_down("guest-1", "late")
        assert "guest-1" not in network.reports.failures
        assert network.is_linked("guest-0"), "only those whose link is down are forgotten"
        await server.close()
        await until(lambda: dialled() == {"n2"})
        assert set(network.reports.failures) == {"n2"}
        assert node.owner.linked == set()


async def test_a_member_is_dialled_at_its_own_address_whatever_it_says() -> None:
    async with running("n1", "n2") as (node, cluster):
        network = node.replica.network
        network.peer_dialled(replace(who("n2"), address="victim:80"))
        assert network.address_of("n2") == cluster.addresses["n2"]


async def test_without_a_secret_nobody_but_a_member_is_dialled() -> None:
    async with running("n1", "n2") as (node, _):
        node.replica.network.peer_dialled(replace(who("n9"), address="victim:80"))
        assert node.replica.network.address_of("n9") is None


async def test_an_observer_that_no_configuration_names_gets_its_lag_and_is_named_nowhere() -> None:
    told = Recorder(who("n9"))
    server = LinkServer(told, Trust((SECRET,), lambda _: True))
    cluster = Cluster("n1", secret=SECRET)
    node = cluster.make("n1")
    async with listening({"/peer": server.serve}) as address, calling() as session:
        node.replica.start(session, nominated=True)
        await until(lambda: node.serves)
        observer = replace(who("n9"), address=address)
        node.replica.network.peer_dialled(observer)
        await until(lambda: node.replica.network.is_linked("n9"))
        node.replica.network.message_received(observer, PositionReport(0, 0, bytes(16)))
        await until(lambda: any(isinstance(said, LagReport) and said.lag_bytes for _, said in told.said))
        assert (node.replica.lags.positions, node.owner.positions) == ({}, {})
        await node.replica.stop()
    await server.close()


async def test_who_claims_a_members_id_again_and_again_fills_no_journal() -> None:
    async with running("n1", "n2", secret=SECRET) as (node, _):
        for number in range(1_000):
            node.replica.network.peer_doubted("n2", f"peer_secret: {number}")
        assert node.owner.alarms == ["n2 was refused: peer_secret: 0"]
        assert node.replica.network.reports.failures["link from n2"] == "peer_secret: 999"
        node.replica.network.peer_dialled(who("n2"))
        assert "link from n2" not in node.replica.network.reports.failures


@asynccontextmanager
async def among_strangers(secret: bytes | None) -> AsyncGenerator[tuple[ClientSession, str, Running]]:
    """n1 of three, and its address; who answers at those of the others says that it is of another cluster."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(pack(["refused", FOREIGN_CLUSTER, "n1 is of cluster 00, this is another"])))
        await rest(reader)

    cluster = Cluster("n1", "n2", "n3", secret=secret)
    async with answering(refuse) as second, answering(refuse) as third, calling() as session:
        cluster.addresses = {"n1": f"{HOST}:1", "n2": second, "n3": third}
        node = cluster.make("n1")
        async with listening({"/peer": node.replica.network.link_server.serve}) as address:
            node.replica.start(session, nominated=False)
            try:
                failures = node.replica.network.reports.failures
                await until(lambda: sum(FOREIGN_CLUSTER in why for why in failures.values()) == 2)
                yield session, address, node
            finally:
                await node.replica.stop()


async def test_who_does_not_know_the_secret_halts_nobody_by_saying_that_it_is_of_another_cluster() -> None:
    async with among_strangers(SECRET) as (session, address, node):
        for secret, halts in ((OTHER, 0), (SECRET, 1)):
            for member in ("n2", "n3"):
                foreign = replace(who(member), cluster_id=bytes(reversed(range(16))))
                with pytest.raises(PeerRefused):
                    await dial(session, address, lambda foreign=foreign: foreign, "n1", "peer", trusting(secret), None)  # type: ignore[misc]
            assert len(node.owner.halts) == halts
        assert "another cluster than n2, n3" in node.owner.halts[0]


async def test_without_a_secret_the_word_of_a_majority_that_it_is_another_cluster_is_taken() -> None:
    async with among_strangers(None) as (_, _, node):
        assert "another cluster than n2, n3" in node.owner.halts[0]


# A peer of another history


HISTORY = bytes(reversed(range(16)))


@asynccontextmanager
async def beside(secret: bytes | None) -> AsyncGenerator[tuple[Running, str, Recorder, ClientSession]]:
    """n1 of two and its address; at that of n2 answers a node of another history, which records what it hears."""
    told = Recorder(who("n2", cluster_id=HISTORY))
    server = LinkServer(told, Trust(() if secret is None else (secret,), MEMBERS.__contains__))
    cluster = Cluster("n1", "n2", secret=secret)
    async with listening({"/peer": server.serve}) as second, calling() as session:
        cluster.addresses = {"n1": f"{HOST}:1", "n2": second}
        node = cluster.make("n1")
        async with listening({"/peer": node.replica.network.link_server.serve}) as address:
            try:
                yield node, address, told, session
            finally:
                await node.replica.stop()


async def says(session: ClientSession, address: str, node_id: str, secret: bytes | None) -> None:
    """A caller says that it is this node, of another history; it is refused."""
    with pytest.raises(PeerRefused):
        await dial(session, address, lambda: who(node_id, cluster_id=HISTORY), "n1", "peer", trusting(secret), None)


@pytest.mark.parametrize("secret", [None, SECRET])
async def test_a_node_that_dials_another_history_and_the_one_that_is_dialled_both_hear_of_it(
    secret: bytes | None,
) -> None:
    async with beside(secret) as (node, _, told, session):
        node.replica.start(session, nominated=False)
        reports = node.replica.network.reports
        await until(lambda: reports.histories and told.foreign)
        assert ({met: other.history for met, other in reports.histories.items()}, told.foreign) == (
            {"n2": HISTORY},
            ["n1"],
        )
        assert node.owner.alarms == [reports.histories["n2"].alarm("n2")]


@pytest.mark.parametrize("secret", [None, SECRET])
async def test_an_alarm_of_another_history_is_raised_once_and_ends_when_the_peer_is_of_this_one_or_silent(
    secret: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with beside(secret) as (node, address, _, session):
        network = node.replica.network
        for _ in range(2):
            await says(session, address, "n2", secret)
        await until(lambda: network.reports.histories)
        network.forget_guests()
        assert (list(network.reports.histories), len(node.owner.alarms)) == (["n2"], 1)
        network.link_up(who("n2"))
        assert network.reports.histories == {}

        await says(session, address, "n2", secret)
        await until(lambda: network.reports.histories)
        monkeypatch.setattr("quire.replication.net.network.HISTORY_S", 0.0)
        network.forget_guests()
        assert network.reports.histories == {}


@pytest.mark.parametrize(
    ("secret", "claimed", "given"), [(None, "n9", None), (SECRET, "n2", OTHER), (SECRET, "n2", None)]
)
async def test_a_stranger_that_says_another_history_raises_no_alarm(
    secret: bytes | None, claimed: str, given: bytes | None
) -> None:
    async with beside(secret) as (node, address, _, session):
        await says(session, address, claimed, given)
        await until(lambda: not node.replica.network.link_server._hellos._unproved)  # pyright: ignore[reportPrivateUsage]
        assert node.replica.network.reports.histories == {}
