"""The role of a simulated node among the members, and whether it must stop."""

from collections.abc import Callable

from quire.replication.core import Core, Members, NodeRole, actions
from quire.replication.core.membership.changing import Outcome

from ...node.writing import Pending
from ..checks import Violation
from .life import Life


class RoleState:
    """The role of a running node. A leader that loses it answers the writes that wait."""

    def __init__(self, core: Core, pending: Pending, changed: Callable[[int, Outcome], None]) -> None:
        self.role = actions.RoleChanged(NodeRole.FOLLOWER, 0, None, False, "")
        self._changed = changed
        self._core = core
        self._pending = pending

    def role_changed(self, role: actions.RoleChanged) -> None:
        was, self.role = self.role, role
        if was.role is NodeRole.LEADER and (role.role is not NodeRole.LEADER or role.epoch != was.epoch):
            self._pending.lost(self._core.commit_index, role.reason)

    def members_changed(self, members: Members) -> None:
        """There is no control plane to rebuild: the plan nominates."""

    def change_ended(self, ask_id: int, outcome: Outcome) -> None:
        self._changed(ask_id, outcome)

    def transfer_ended(self, reason: str) -> None:
        """Nobody waits for a transfer here."""


class Health:
    """Gets what an operator must know. An alarm is a finding unless something is wrong."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self.halt_reason = ""
        """Why the node must stop; empty while it need not."""
        self.removed_at: int | None = None
        """The index of the record that removed this node, once it may stop."""

    def alarmed(self, text: str) -> None:
        node, checks = self._life.node, self._life.checks
        if node.condition.is_faulty or (checks.is_lied_to and "used up" not in text):
            return
        raise Violation("nothing here should alarm an operator", node.node_id, text)

    def halted(self, reason: str) -> None:
        self.halt_reason = self.halt_reason or reason

    def removed(self, index: int) -> None:
        self.removed_at = index
        self.halt_reason = self.halt_reason or f"removed at index {index}"

    def failed(self, error: Exception) -> None:
        """The error is raised as well, and becomes the history's outcome."""
