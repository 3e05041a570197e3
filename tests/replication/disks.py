"""What a node's disk holds beside the log in the tests' world, and what a full one refuses."""

from dataclasses import dataclass, field

from quire.log import Kind, ResourcesExhausted, walk_frames
from quire.replication import Disk
from quire.replication.core import Reason, actions, events


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
