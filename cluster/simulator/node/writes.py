"""The writes that clients propose to a simulated node."""

from typing import Protocol

from quire.replication import Placed, Reason, Write
from quire.replication.core import NodeRole, events

from ...node.writing import Pending, Waiter
from .life import Life
from .role import Health, RoleState


class Proposer(Waiter, Protocol):
    """The owner of a write: a client, which also learns why a write was not appended."""

    def rejected(self, reason: Reason) -> None:
        """No part of the write was appended."""
        ...


class Writes:
    """Proposes writes, and tells their owners what happened to them."""

    def __init__(self, life: Life, pending: Pending, role_state: RoleState, health: Health) -> None:
        self._life = life
        self._pending = pending
        self._role_state = role_state
        self._health = health

    def propose(self, write: Write[Proposer]) -> None:
        """Propose a client's write, or reject it at once if this node does not serve."""
        role = self._role_state.role
        if role.role is not NodeRole.LEADER or not role.serving or self._health.halt_reason:
            write.owner.rejected(Reason.NOT_LEADER)
            return
        self._life.node.step(events.Proposed((write,)))

    def placed(self, placed: Placed[Proposer]) -> None:
        self._pending.placed(placed)

    def rejected(self, write: Write[Proposer], reason: Reason) -> None:
        write.owner.rejected(reason)

    def flushed(self, durable_index: int) -> None:
        self._pending.flushed(durable_index)

    def committed(self, commit_index: int) -> None:
        self._life.checks.commits(self._life.node)
        self._pending.committed(commit_index)
