"""The rules about members that change (rule 15), checked from what the disks hold."""

from collections.abc import Iterable
from typing import NamedTuple

from quire.log import MEMBERSHIP, Frame
from quire.replication.core import events
from quire.replication.core.messages import HeartbeatEcho, PreVoteAnswer, VoteAnswer
from quire.sm import Applied

from ..checks import Checks, Violation
from ..form import Form
from ..machine import Model
from ..observed import ObservedNode
from ..shadow import Named

ANSWERS = HeartbeatEcho | PreVoteAnswer | VoteAnswer


class Begun(NamedTuple):
    """Where a node's records end before its new history, what it knew to be committed, and the first epoch after."""

    end: int
    commit_index: int
    epoch: int
    is_restored: bool = False
    """Its records are a backup's, and not a survivor's."""


class MemberChecks(Checks):
    """The checks of a history, and those of its members."""

    def __init__(self, nodes: Iterable[ObservedNode], form: Form, trace: list[str], model: Model) -> None:
        super().__init__(nodes, form, trace, model)
        self._frames: list[Frame] = []

    def applied(self, node: ObservedNode, frame: Frame, applied: Applied, digest: bytes) -> None:
        """Check a frame that a node applied; keep it for the checks of a later history."""
        if self.of(node).applied_place + 1 == len(self.digests):
            self._frames.append(frame)
        super().applied(node, frame, applied, digest)

    def stepped(self, node: ObservedNode, event: events.Event | events.AppendResult) -> None:
        """Check a node after a step of its core; who has no vote must not have ended its leadership."""
        led = self.of(node).leading
        super().stepped(node, event)
        if self._is_at_rest(node, event, led=led is not None):
            self._members(node)
        if led is None or node.running.core.leading_promise is not None or not isinstance(event, events.Received):
            return
        if isinstance(event.message, ANSWERS) and event.message.held_epoch > led.epoch:
            voters = node.shadow.members_below(node.shadow.end).voters
            if (event.node_id, event.disk_id) not in voters:
                raise Violation("rule 15: who has no vote deposes nobody", node.node_id, event, sorted(voters))

    @staticmethod
    def _is_at_rest(node: ObservedNode, event: events.Event | events.AppendResult, *, led: bool) -> bool:
        """Whether the step appended nothing: a record of members counts from the step that follows."""
        match event:
            case events.AppendResult():
                return True
            case events.Truncated() | events.Installed():
                return event.index == node.running.log.tail.index
            case events.Tick():
                return not led
            case _:
                return False

    def _members(self, node: ObservedNode) -> None:
        """Rule 15: the last record of members in the log counts, from its append until it is truncated."""
        known = frozenset((voter.node_id, voter.disk_id) for voter in node.running.core.members.voters())
        named = node.shadow.members_below(node.shadow.end)
        if known != named.voters:
            raise Violation("rule 15: the members are those in the log", node.node_id, sorted(known), named)

    def members_changed(self, node: ObservedNode, named: Named) -> None:
        """Check a record of members where it stands for the first time: on the leader that appends it."""
        super().members_changed(node, named)
        before, me = node.shadow.members_below(named.first), (node.node_id, node.disk_id)
        if me in before.voters and me not in named.voters:
            raise Violation("rule 15: no leader appends its own removal or demotion", node.node_id, named)
        if again := named.rows & before.removed:
            raise Violation("rule 15: a removed disk is not taken back", node.node_id, sorted(again), named)
        if lost := before.removed - named.removed:
            raise Violation("rule 15: a removed disk is remembered", node.node_id, sorted(lost), named)
        left = {node_id for node_id, _ in named.rows}  # Who has no vote may return with another disk.
        gone = {row for row in before.rows - named.rows if any(row[1]) and (row in before.voters or row[0] not in left)}
        if MEMBERSHIP in node.running.core.features and not gone <= named.removed:
            raise Violation("rule 15: a disk without a row was removed", node.node_id, sorted(gone), named)

    def begin_history(self, node: ObservedNode, begun: Begun) -> "MemberChecks":
        """The checks of the history that a node begins: all its records count, none of another node does.

        Raises:
            Violation: a record below its end is lost that was acknowledged before its last epoch, or that it knew; or
                a restored node has records that were not committed.
        """
        node.shadow.read_all()
        node.shadow.truncated = None
        frames = node.shadow.frames
        ended = next((at for at, held in enumerate(frames) if held.first >= begun.end), len(frames))
        if ended == len(frames) or frames[-1].epoch != begun.epoch:
            raise Violation("a new history begins with a record", node.node_id, frames[-1], begun.end)
        pairs = zip(frames[:ended], self.committed, strict=False)
        shared = next((at for at, (a, b) in enumerate(pairs) if a != b), min(ended, len(self.committed)))
        if begun.is_restored and shared < ended:
            raise Violation("a backup holds committed records only", node.node_id, frames[shared], self.committed[-3:])
        for held, epoch in list(zip(self.committed, self.epochs, strict=True))[shared:]:
            is_known = held.end <= begun.commit_index or epoch <= frames[ended - 1].epoch
            if held.end <= begun.end and is_known:
                raise Violation("what was acknowledged below the survivor's end stays", node.node_id, held, epoch)
        model, applied = Model(self.model.max_sessions), min(shared, len(self.digests))
        model.never |= self.model.never
        for frame in self._frames[:applied]:
            model.apply(frame)
        later = MemberChecks(self.nodes, self._form, self._trace, model)
        later._reached = self._reached
        later.counts, later.digests = self.counts, self.digests[:applied]
        later._frames = self._frames[:applied]
        later.committed, later.ends = list(frames), [held.end for held in frames]
        later.epochs = self.epochs[:shared] + [begun.epoch] * (len(frames) - shared)
        known_to = self.ends[applied - 1] if applied else 0
        later.snapshots = {index: sha256 for index, sha256 in self.snapshots.items() if index <= known_to}
        return later

    def left(self, node: ObservedNode, index: int) -> None:
        """Check a node that stopped because it was removed: that is committed."""
        disk = (node.node_id, node.disk_id)
        for named in node.shadow.named.values():
            place = self.committed_place(named.end)
            is_committed = place is not None and self.committed[place].crc32c == named.crc32c
            if is_committed and named.first == index and disk in named.removed and disk not in named.rows:
                return
        raise Violation("rule 15: a node stops only once its removal is committed", node.node_id, index)
