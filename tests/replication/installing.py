"""Expiry and snapshots in a `World`, where nobody writes any: what a leader offers, and what a fetch of it gives."""

from quire.replication.core import actions, events
from quire.replication.core.messages import Snapshot
from tests.replication.disks import remove_expired
from tests.replication.world import SimNode, World

DEEP = 40


def expire(leader: SimNode) -> None:
    """All segments but the last go; snapshots stand where the log begins, and at its end."""
    end = leader.log.durable_index
    remove_expired(leader.running, end)
    leader.snapshots.indices = [leader.log.bounds.lowest_index, end]
    leader.step(events.Expired())


def snapshot_at(leader: SimNode, index: int) -> Snapshot:
    """What a fetch of the leader's snapshot gives."""
    header = leader.log.reader.frame(index - 1).header if index > leader.log.bounds.lowest_index else None
    tail = leader.log.origin if header is None else None
    epochs = tuple(pair for pair in leader.running.epochs if pair[1] < index)
    if tail is not None:
        return Snapshot(*tail, 0, epochs)
    assert header is not None
    return Snapshot(header.next_index, header.epoch, header.timestamp, header.crc32c, 0, epochs)


def deep() -> World:
    """n3 was down while n1 wrote over several segments."""
    world = World("n1", "n2", "n3")
    world.start()
    world.elect("n1")
    world["n1"].write("before")
    world.run_for(0.3)
    world["n3"].crash()
    for number in range(DEEP):
        world["n1"].write(f"{number}" * 4_000)
        world.run_for(0.05)
    assert len(world["n1"].log.segments.bases) > 2
    return world


def behind() -> World:
    """As `deep`, and the leader's log begins above what n3 has, with a snapshot at its lowest index."""
    world = deep()
    leader = world["n1"]
    expire(leader)
    assert leader.log.bounds.lowest_index > 5
    return world


def fetching(world: World) -> tuple[SimNode, actions.FetchSnapshot]:
    """n3 is back, and was told to fetch a snapshot."""
    world.start("n3")
    node = world["n3"]
    world.run_until(lambda: bool(node.fetches))
    return node, node.fetches[-1]


def fetched(node: SimNode, fetch: actions.FetchSnapshot) -> None:
    """The fetch succeeds."""
    snapshot = snapshot_at(node.world["n1"], fetch.index)
    node.step(events.SnapshotFetched(fetch.stream_id, snapshot))
