"""What a node hears from its parts, above all from its replica, and what it knows by that (`PartsOwner`)."""

import asyncio
from typing import assert_never

import structlog

from quire.log import FrameHeader, LogError
from quire.replication import Members, Placed, Reason, Write
from quire.replication.core import NodeRole, actions
from quire.replication.core.changing import Outcome
from quire.replication.net.hello import Who
from quire.sm import EMPTY_DIGEST, Applied, ApplyFailed, MachineError

from ..errors import (
    ClusterError,
    DiskFullError,
    NodeStopping,
    NoLeader,
    NotLeader,
    Overloaded,
    StateUnavailable,
    WrongIndex,
)
from .digests import Difference, Digests
from .leadership import Leadership
from .membership import Promotions
from .metrics import WriteCounts
from .parts import Parts
from .pending import Pending, waiter_of
from .visibility import Visibility

journal = structlog.get_logger(__name__)

OVERLOADED_RETRY_S = 1.0


class Hearing:
    """One node's. Everything but `place_snapshot` is called on the event loop, and nothing blocks."""

    def __init__(self, leadership: Leadership) -> None:
        self.leadership = leadership
        self.parts: Parts | None = None
        self.failure: str | None = None
        self.ended = asyncio.Event()
        self.visibility = Visibility()
        self.digests = Digests(self._digest_compared)
        self.promotions = Promotions()
        self.write_counts = WriteCounts()
        self._pending = Pending(self.write_counts.frame_durations)
        self.stopping = False

    def attach(self, parts: Parts) -> None:
        """From now on these are the node's parts: to be called before they begin, since they tell at once."""
        self.parts = parts
        self.digests.applied(self.applied_index, self.digest)

    def require(self) -> Parts:
        """The parts. Raises StateUnavailable while the cluster is not formed."""
        if self.parts is None:
            raise StateUnavailable("the cluster is not formed yet")
        return self.parts

    def stop(self) -> None:
        """The node is about to stop: it leads no more, and who waits for more to read waits in vain."""
        self.stopping = True
        self.visibility.end()

    def stopped(self) -> None:
        """Nothing is applied any more: what was appended and is not answered has an unknown outcome."""
        self._pending.end("this node is stopping")

    # Who leads

    @property
    def role(self) -> actions.RoleChanged:
        """What this node is, as its core told last."""
        return self.leadership.role

    @property
    def is_leader(self) -> bool:
        """Whether this node leads and may serve. Rule 11 is looked at first, where this process stood still."""
        if self.leadership.role.role is not NodeRole.LEADER or self.failure is not None:
            return False
        if self.parts is not None:
            self.parts.replica.catch_up()
        role = self.leadership.role
        return role.role is NodeRole.LEADER and role.serving

    @property
    def leader_id(self) -> str | None:
        """The leader that this node hears, itself included."""
        return self.role.leader_id

    def not_leader(self) -> ClusterError | None:
        """Why this node may not answer as a leader; None of one that may."""
        if self.stopping:
            return NodeStopping()
        if self.is_leader:
            return None
        return NotLeader(self.leader_id) if self.leader_id not in (None, self.leadership.node_id) else NoLeader()

    # What the parts tell

    @property
    def applied_index(self) -> int:
        """Every record below it has been applied here."""
        return self.parts.applying.applier.applied_index if self.parts else 0

    @property
    def digest(self) -> bytes:
        """The digest at applied_index."""
        return self.parts.applying.applier.digest if self.parts else EMPTY_DIGEST

    def apply_to(self, index: int) -> None:
        """Answer who waits for the commit; apply."""
        self._pending.committed(index)
        if self.parts is not None:
            self.parts.applying.apply_to(index)
        self.visibility.grew()

    def placed(self, placed: Placed) -> None:
        """A frame of writes is in this leader's file."""
        self._pending.placed(placed)
        self.write_counts.placed(placed)

    def rejected(self, write: Write, reason: Reason) -> None:
        """Nothing was written of it."""
        waiter = waiter_of(write)
        match reason:
            case Reason.OVERLOADED:
                waiter.fail(Overloaded(OVERLOADED_RETRY_S))
            case Reason.DISK_FULL:
                waiter.fail(DiskFullError())
            case Reason.WRONG_INDEX:
                waiter.fail(WrongIndex(write.expected_index or 0, self.require().log.tail.index))
            case Reason.NOT_LEADER:
                waiter.fail(self.not_leader() or NoLeader())
            case _:
                assert_never(reason)

    def role_changed(self, role: actions.RoleChanged) -> None:
        """Keep the history; what a lost leadership left uncommitted is unknown."""
        was = self.leadership.moved(role)
        if was.role is NodeRole.LEADER and (role.role is not NodeRole.LEADER or role.epoch != was.epoch):
            self.digests.forget()
            reason = role.reason or f"this node leads epoch {was.epoch} no longer"
            self._pending.lost(self.require().replica.commit_index, reason)

    def read_ready(self, read_id: int, index: int | None) -> None:
        """A read barrier was passed, or cannot be."""
        if self.parts is not None:
            self.parts.reading.barrier_passed(read_id, index)

    def fetch_snapshot(self, action: actions.FetchSnapshot) -> None:
        """What comes next in the leader's log has expired there."""
        self.require().upkeep.installing.fetch(action)

    def place_snapshot(self, index: int) -> None:
        """In the writer's thread: let the snapshot count that was fetched."""
        self.require().upkeep.installing.place(index)

    def snapshot_installed(self, index: int) -> None:
        """The log begins behind it: so does the machine."""
        applier = self.require().upkeep.installed(index)
        self.digests.applied(applier.applied_index, applier.digest)
        self.visibility.grew()

    def members_changed(self, members: Members) -> None:
        """The log names other members."""
        self.leadership.members_changed(members)

    def change_ended(self, ask_id: int, outcome: Outcome) -> None:
        """What became of one step of a promotion."""
        self.promotions.ended(ask_id, outcome)

    def transfer_ended(self, reason: str) -> None:
        """A hand-over came to nothing."""
        self.leadership.transfer_ended(reason)

    def peer_linked(self, node_id: str) -> None:
        """What is sent to a peer arrives."""
        self.leadership.peer_linked(node_id)

    def peer_unlinked(self, node_id: str) -> None:
        """What is sent to a peer is lost."""
        self.leadership.peer_unlinked(node_id)

    def position_reported(self, node_id: str, applied_index: int, digest: bytes) -> None:
        """A follower has applied so far, and stands at this digest; what comes late to a former leader is no news."""
        if self.role.role is NodeRole.LEADER:
            self.digests.reported(node_id, applied_index, digest)

    def control_told(self, peer: Who, data: bytes) -> None:
        """A peer's control plane said something."""
        self.leadership.control_told(peer, data)

    def alarmed(self, text: str) -> None:
        """Tell the operator, in the journal; `/status` has it too (`status.alarms`)."""
        journal.error("alarm", text=text)

    def halted(self, reason: str) -> None:
        """Stop serving for good; whoever runs the node sees `ended`."""
        if self.failure is None:
            self.failure = reason
            journal.error("halted", reason=reason)
            self._pending.end(reason)
            self.visibility.end()
            self.ended.set()

    def failed(self, error: Exception) -> None:
        """Stop serving for good: this node cannot go on, or this program has a fault, whose traceback is told."""
        match error:
            case LogError() | OSError():
                self.halted(f"{type(error).__name__}: {error}")
            case ClusterError() | MachineError():
                self.halted(str(error))
            case _:
                if self.failure is None:
                    journal.error("a fault of this program", exc_info=error)
                self.halted(f"a fault of this program: {error!r}")

    def applied(self, applied: Applied) -> None:
        """Answer the writes of a frame that was applied."""
        self._pending.applied(applied)
        self.digests.applied(applied.next_index, self.digest)

    def apply_failed(self, failure: ApplyFailed) -> None:
        """Nothing can be answered here any more; the log goes on."""
        journal.error("applying stopped", reason=str(failure))
        self._pending.end(str(failure))

    def at_boundary(self, header: FrameHeader) -> None:
        """A frame was applied and answered."""
        if self.parts is not None:
            self.parts.upkeep.at_boundary(header)

    def _digest_compared(self, node_id: str, difference: Difference | None) -> None:
        if difference is None:
            journal.info("digests are equal again", peer=node_id)
        else:
            self.alarmed(difference.alarm(node_id))
