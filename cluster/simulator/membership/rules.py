"""The rules about members that change (rule 15), checked from what the disks hold."""

from quire.log import MEMBERSHIP
from quire.replication.core import events
from quire.replication.core.messages import HeartbeatEcho, PreVoteAnswer, VoteAnswer

from ..checks import Checks, Violation
from ..observed import ObservedNode
from ..shadow import Named

ANSWERS = HeartbeatEcho | PreVoteAnswer | VoteAnswer


class MemberChecks(Checks):
    """The checks of a history, and those of its members."""

    def stepped(self, node: ObservedNode, event: events.Event | events.AppendResult) -> None:
        """Check a node after a step of its core; who has no vote must not have ended its leadership."""
        led = self.of(node).leading
        super().stepped(node, event)
        if led is None or node.running.core.leading_promise is not None or not isinstance(event, events.Received):
            return
        if isinstance(event.message, ANSWERS) and event.message.held_epoch > led.epoch:
            voters = node.shadow.members_below(node.shadow.end).voters
            if (event.node_id, event.disk_id) not in voters:
                raise Violation("rule 15: who has no vote deposes nobody", node.node_id, event, sorted(voters))

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
        gone = {(node_id, disk) for node_id, disk in before.rows - named.rows if any(disk)}
        if MEMBERSHIP in node.running.core.state.features and not gone <= named.removed:
            raise Violation("rule 15: a disk without a row was removed", node.node_id, sorted(gone), named)

    def left(self, node: ObservedNode, index: int) -> None:
        """Check a node that stopped because it was removed: that is committed."""
        disk = (node.node_id, node.disk_id)
        for named in node.shadow.named.values():
            place = self.committed_place(named.end)
            is_committed = place is not None and self.committed[place].crc32c == named.crc32c
            if is_committed and named.first == index and disk in named.removed and disk not in named.rows:
                return
        raise Violation("rule 15: a node stops only once its removal is committed", node.node_id, index)
