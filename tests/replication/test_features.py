"""Features: nothing of a new kind is logged or sent before every member has offered it."""

from dataclasses import replace

import pytest
from aiohttp import ClientWebSocketResponse
from aiohttp.web import WebSocketResponse

from quire.cluster.node.membership import error_of
from quire.log import Kind, pack, walk_frames
from quire.replication.core import events
from quire.replication.core.fitness import Level
from quire.replication.core.membership.changing import NotConnected, Promote
from quire.replication.core.messages import Promise
from quire.replication.net.hello import PeerInfo, PeerRefused, answer_hello, check_peer, dial_hello, mac
from quire.replication.net.wire import BadMessage
from tests.packed import unpacked
from tests.replication.loopback import who
from tests.replication.test_hello import DIALLED_NONCE, DIALLER_NONCE, meet
from tests.replication.world import SimNode, World

PROMISE = Promise(7, "n1", 99)
NEW = frozenset({"later"})


def leading(world: World) -> SimNode:
    """A leader whose program offers the feature, after it has served."""
    leader = world.elect("n1")
    leader.state.options = replace(leader.state.options, features=NEW)
    return leader


def offered(leader: SimNode, *node_ids: str) -> None:
    for node_id in node_ids:
        leader.step(events.LinkUp(node_id, leader.state.links[node_id], NEW))


def features_logged(node: SimNode) -> list[list[str]]:
    raw, _ = node.log.read_frames(0, 1 << 20, unflushed=True)
    records = [unpacked(frame.payload) for frame in walk_frames(raw) if frame.header.kind == Kind.SYSTEM]
    return [record["names"] for record in records if record["type"] == "features"]


def ticked(leader: SimNode, features: frozenset[str] = frozenset(), applied_index: int | None = None) -> None:
    applied = leader.state.commit_index if applied_index is None else applied_index
    leader.step(events.Measured(applied, features=features))
    leader.step(events.Tick())


@pytest.fixture
def world() -> World:
    made = World("n1", "n2", "n3")
    made.start()
    return made


def test_features_are_logged_once_when_every_member_offers_them(world: World) -> None:
    leader = leading(world)
    offered(leader, "n2")
    ticked(leader)
    assert features_logged(leader) == []

    offered(leader, "n3")
    ticked(leader)
    ticked(leader)
    ticked(leader, NEW)

    assert features_logged(leader) == [["later"]]


def test_features_that_the_log_had_no_room_for_are_logged_when_there_is_some(world: World) -> None:
    leader = leading(world)
    leader.disk_full, leader.reserve = True, False
    for other in ("n2", "n3"):
        world[other].machine_failed = True  # So the leader does not hand over.
    world.run_for(1)
    offered(leader, "n2", "n3")
    ticked(leader)
    ticked(leader)
    assert (features_logged(leader), leader.state.fitness.holds(Level.NO_ROOM)) == ([], True)

    leader.disk_full = False
    world.run_until(lambda: bool(features_logged(leader)))
    world.run_for(10)

    assert features_logged(leader) == [["later"]]


def test_a_member_that_is_not_connected_may_be_an_earlier_version(world: World) -> None:
    leader = leading(world)
    offered(leader, "n2", "n3")
    leader.step(events.LinkDown("n3"))

    ticked(leader)

    assert features_logged(leader) == []


def test_a_disk_that_the_log_does_not_name_offers_nothing_for_the_one_that_it_names(world: World) -> None:
    leader = leading(world)
    offered(leader, "n2")
    leader.step(events.LinkUp("n3", b"another disk's".ljust(16), NEW))

    ticked(leader)

    assert features_logged(leader) == []


def test_a_leader_that_has_not_applied_what_earlier_ones_logged_logs_no_features(world: World) -> None:
    leader = leading(world)
    offered(leader, "n2", "n3")
    start = leader.state.log.highest_index - 1  # Of its `epoch_start`.

    ticked(leader, applied_index=start)
    assert features_logged(leader) == []
    ticked(leader, NEW)  # It finds that the log names them already.
    assert features_logged(leader) == []
    ticked(leader)
    assert features_logged(leader) == [["later"]]


def test_a_leader_that_transfers_logs_no_features_until_that_has_failed(world: World) -> None:
    leader = leading(world)
    offered(leader, "n2", "n3")
    world.cut(("n3", "n2"), ("n3", "n1"))
    leader.step(events.TransferRequested("n3"))

    ticked(leader)
    assert leader.leading.handover.target == "n3"
    assert features_logged(leader) == []

    world.run_until(lambda: bool(leader.transfers_ended))
    ticked(leader)
    assert features_logged(leader) == [["later"]]


def test_a_node_that_lacks_a_feature_in_use_is_not_promoted(world: World) -> None:
    leader = leading(world)
    ticked(leader, NEW)

    leader.step(events.ChangeRequested(1, Promote("n3", "h:3")))

    assert leader.changes[1] == NotConnected(("n2",), ("later",))
    error = error_of(NotConnected(("n2",), ("later",)), Promote("n3", "h:3"), lambda: None)
    assert str(error) == "n3 lacks later, which this cluster uses; upgrade that node (connected: n2)"


async def hello(dialler: PeerInfo, dialled: PeerInfo, secret: bytes | None = None) -> tuple[object, object]:
    """What two nodes come to."""
    return await meet(
        lambda socket: dial_hello(socket, dialler, "n2", "peer", secret, DIALLER_NONCE),
        lambda socket: answer_hello(socket, dialled, "peer", () if secret is None else (secret,), DIALLED_NONCE),
    )


@pytest.mark.parametrize("secret", [None, b"a secret"])
async def test_the_hello_names_what_each_program_offers(secret: bytes | None) -> None:
    ours, theirs = replace(who("n1"), features=NEW), replace(who("n2"), features=frozenset({"a", "b"}))

    assert await hello(ours, theirs, secret) == (theirs, ours)


async def test_the_proof_covers_the_range_of_protocols_so_that_nobody_on_the_way_can_lower_it() -> None:
    secret, me = b"a secret", replace(who("n1"), features=NEW)

    async def altered(socket: WebSocketResponse) -> bytes:
        await socket.send_bytes(pack([[0, 1], DIALLED_NONCE]))  # The peer said [1, 1].
        _, _, _, _, proof = unpacked((await socket.receive()).data)
        await socket.close()
        return bytes(proof)

    _, proof = await meet(lambda socket: dial_hello(socket, me, "n2", "peer", secret, DIALLER_NONCE), altered)

    spoken = (secret, "dialler", DIALLED_NONCE, DIALLER_NONCE, "peer", me, 1)
    assert proof == mac(*spoken, (0, 1))
    assert proof != mac(*spoken, (1, 1))


async def test_a_peer_that_lacks_a_feature_in_use_is_refused_and_told_what_to_do() -> None:
    ours = replace(who("n2"), features=NEW, requires=NEW)

    for end in await hello(who("n1"), ours):
        assert isinstance(end, PeerRefused)
        assert end.code == "features"
        assert end.reason == "n1 lacks later, which this cluster uses: upgrade that node"


def test_a_dialler_refuses_such_a_peer_as_well() -> None:
    with pytest.raises(PeerRefused, match="n2 lacks later"):
        check_peer(replace(who("n1"), requires=NEW), who("n2"))


CODE = b"c" * 32


@pytest.mark.parametrize("secret", [None, b"a secret"])
async def test_the_hello_names_the_code_of_each_machine(secret: bytes | None) -> None:
    ours, theirs = replace(who("n1"), features=NEW, code=CODE), replace(who("n2"), features=NEW)

    assert await hello(ours, theirs, secret) == (theirs, ours)


@pytest.mark.parametrize("protocol", [0, 2, True, "1", None])
async def test_a_protocol_out_of_the_range_of_the_challenge_is_refused(protocol: object) -> None:
    async def dial(socket: ClientWebSocketResponse) -> object:
        await socket.receive()
        await socket.send_bytes(pack([protocol, "peer", [], DIALLER_NONCE, b""]))
        return unpacked((await socket.receive()).data)[:2]

    said, ours = await meet(dial, lambda socket: answer_hello(socket, who("n2"), "peer", (), DIALLED_NONCE))

    assert said == ["refused", "protocol"]
    assert isinstance(ours, PeerRefused)


@pytest.mark.parametrize("code", [b"short", "c" * 32, None, b"c" * 33])
async def test_a_code_of_another_shape_is_no_hello(code: object) -> None:
    me = who("n1")
    row = [me.cluster_id, me.node_id, me.disk_id, me.incarnation, me.address, [], code]

    async def dial(socket: ClientWebSocketResponse) -> None:
        await socket.receive()
        await socket.send_bytes(pack([1, "peer", row, DIALLER_NONCE, b""]))

    _, dialled = await meet(dial, lambda socket: answer_hello(socket, who("n2"), "peer", (), DIALLED_NONCE))

    assert isinstance(dialled, BadMessage)


@pytest.mark.parametrize("features", [["x"] * 65, ["x" * 33], [""], [1], "fitness"])
async def test_features_of_another_shape_are_no_hello(features: object) -> None:
    me = who("n1")
    row = [me.cluster_id, me.node_id, me.disk_id, me.incarnation, me.address, features, b""]

    async def dial(socket: ClientWebSocketResponse) -> None:
        await socket.receive()
        await socket.send_bytes(pack([1, "peer", row, DIALLER_NONCE, b""]))

    _, dialled = await meet(dial, lambda socket: answer_hello(socket, who("n2"), "peer", (), DIALLED_NONCE))

    assert isinstance(dialled, BadMessage)
