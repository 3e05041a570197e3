"""The scenes in which these tests begin. Details are tested in tests/replication; here a reader follows the rule."""

from quire.replication.core import Promise, events
from quire.replication.core.messages import CoreMessage, Last, VoteRequest
from tests.replication.world import SimNode, World, disk_id

FAR = Last(1 << 20, 1 << 40)
"""A durable last that no voter exceeds."""


def started(*node_ids: str) -> World:
    """Nodes that hold the genesis and know no leader."""
    world = World(*(node_ids or ("n1", "n2", "n3")))
    world.start()
    return world


def led(*node_ids: str) -> World:
    """The first node leads and serves, all follow, and none is nominated any more."""
    world = started(*node_ids)
    leader = world.elect(next(iter(world.nodes)))
    settled(world, leader)
    suggested(leader, by_control_plane=False)
    return world


def suggested(node: SimNode, *, by_control_plane: bool) -> None:
    """Set the control plane's nomination of a node."""
    node.nominated = by_control_plane
    node.step(events.Nominated(by_control_plane))


def settled(world: World, leader: SimNode) -> None:
    """Run until every running node has applied all that the leader wrote."""
    others = [node for node in world.nodes.values() if node.core is not None]
    world.run_until(lambda: all(node.apply_to == leader.log.tail.index for node in others))
    world.run_for(0.2)


def hear(node: SimNode, sender: str, message: CoreMessage) -> None:
    """Deliver a message."""
    node.step(events.Received(sender, disk_id(sender), message))


def ask(node: SimNode, epoch: int, candidate: str, *, last: Last = FAR, incarnation: int = 1) -> bool:
    """Whether a node promises this epoch to this candidate, once its disk has answered."""
    promise = Promise(epoch, candidate, incarnation)
    hear(node, candidate, VoteRequest(promise, last))
    node.world.run_for(0.005)
    return node.running.promises.promise == promise


def divided(world: World) -> tuple[SimNode, SimNode]:
    """n1 was cut off and wrote what no other has; n2 leads the others and wrote what n1 lacks. Returns both."""
    old = world["n1"]
    world.isolate("n1")
    old.write("lost")
    world.run_for(3)
    suggested(world["n2"], by_control_plane=True)
    world.run_until(lambda: world.leader() is world["n2"])
    world["n2"].write("kept")
    world.run_until(lambda: world["n2"].state.commit_index == world["n2"].log.tail.index)
    return old, world["n2"]
