"""Expiry and snapshots in a `World`, where nobody writes any: what a leader offers, and what a fetch of it gives."""

from quire.replication.core import events
from quire.replication.core.messages import Snapshot
from tests.replication.world import SimNode


def expire(leader: SimNode) -> None:
    """All segments but the last go; snapshots stand where the log begins, and at its end."""
    end = leader.log.durable_index
    leader.running.remove_expired(max_bytes=0, floor=end)
    leader.snapshots.indices = [leader.log.bounds.lowest_index, end]
    leader.step(events.Expired())


def snapshot_at(leader: SimNode, index: int) -> Snapshot:
    """What a fetch of the leader's snapshot gives."""
    header = leader.log.read_frame(index - 1).header if index > leader.log.bounds.lowest_index else None
    tail = leader.log.origin if header is None else None
    epochs = tuple(pair for pair in leader.running.epochs if pair[1] < index)
    if tail is not None:
        return Snapshot(*tail, 0, epochs)
    assert header is not None
    return Snapshot(header.next_index, header.epoch, header.timestamp, header.crc32c, 0, epochs)
