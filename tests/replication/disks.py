"""What a node's disk holds beside the log in the tests' world, and what a full one refuses."""

from dataclasses import dataclass, field

from quire.log import FrameCorrupt, Kind, Log, ResourcesExhausted, walk_frames
from quire.replication import Disk
from quire.replication.core import Reason, actions, events
from quire.replication.driver import ROT_RETRY_US


@dataclass
class Snapshots:
    """The indices of a node's snapshots; in this world none is written."""

    indices: list[int] = field(default_factory=list)
    fetching: int = 0
    members: dict[int, dict[str, object]] = field(default_factory=dict)

    def members_of(self, members_index: int) -> dict[str, object] | None:
        """The fields that a test put there."""
        return self.members.get(members_index)


def truncated(disk: Disk, stream_id: int, index: int) -> events.Truncated | events.TruncateRefused:
    """What comes of a truncation."""
    try:
        disk.truncate(index)
    except ResourcesExhausted as error:
        return events.TruncateRefused(stream_id, str(error))
    return events.Truncated(stream_id, index)


def refusal_of(action: actions.Action, *, reserve: bool) -> events.AppendResult | None:
    """What comes of an append on a full disk; None if it is none. `reserve`: there is room for system records."""
    match action:
        case actions.AppendRequests():
            return events.AppendResult(is_made=False, refused=Reason.DISK_FULL)
        case actions.AppendFrames(_, raw) if reserve and all(f.header.kind == Kind.SYSTEM for f in walk_frames(raw)):
            return None
        case actions.AppendFrames(stream_id):
            return events.AppendResult(stream_id, is_made=False, refused=Reason.DISK_FULL, error="full")
        case actions.AppendSystem() if not reserve:
            return events.AppendResult(is_made=False, refused=Reason.DISK_FULL, is_system=True)
        case _:
            return None


def remove_expired(disk: Disk, floor: int) -> None:
    """Remove all segments below the floor, as the driver does."""
    while (expiry := disk.begin_expiry(max_bytes=0, floor=floor)) is not None:
        expiry.run()
        disk.log.expiry.end(expiry)


def shippable(log: Log, from_index: int, max_bytes: int) -> tuple[bytes, int, int]:
    """The frames of a shipment, the index after them, and how long the driver waits as it cannot read any, in us."""
    try:
        raw, end = log.read_frames(from_index, max_bytes, unflushed=True) if max_bytes else (b"", from_index)
        return raw, end, 0
    except (ResourcesExhausted, FrameCorrupt):
        return b"", from_index, ROT_RETRY_US
