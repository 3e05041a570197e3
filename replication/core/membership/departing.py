"""What follows once a removal is committed (rule 15): the removed node stops, and those that know of it tell it.

A removed node is shipped to as before. It stops once it knows that the record is committed: by its own log, or because
a peer says so (`Removal`), if it was away. A peer says so when its link to that disk comes up, and to one that stays
connected without following for ten election timeouts.
"""

from ..actions import LeaveCluster, Send
from ..members import Members
from ..messages import Removal
from ..state import State

PATIENCE_TIMEOUTS = 10


class Departures:
    """The removals that concern this node: its own, and those of the disks that are connected to it."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.members: Members | None = None
        """Those that were looked at last."""
        self.own_removal: int | None = None
        """The index of the record in which they removed this disk."""
        self._seen_at: dict[tuple[str, bytes], int] = {}

    def settle(self) -> None:
        """At the end of a step: leave if this node was removed by a committed record."""
        state = self._state
        if state.members is not self.members:
            self.members = state.members
            self.own_removal = state.members.removal_of(state.me.node_id, state.me.disk_id)
        if self.own_removal is not None and self._is_committed:
            self._leave(self.own_removal)

    @property
    def _is_committed(self) -> bool:
        return self._state.commit_index > (self._state.log.members_index or 0)

    def told(self, sender: str, disk_id: bytes, message: Removal) -> None:
        """A peer says that this disk was removed. A later record here that names it as a member knows better.

        A peer that is no member of this log is believed only if no other voter of it is connected: then this node may
        have been away since all of them were replaced.
        """
        state, me = self._state, self._state.me
        connected = any(state.is_linked(voter) for voter in state.members.voters())
        if connected and not state.members.names(sender, disk_id):
            return
        is_newer = message.index > (state.log.members_index or 0)
        if is_newer or state.members.removal_of(me.node_id, me.disk_id) is not None:
            self._leave(message.index)

    def _leave(self, index: int) -> None:
        state = self._state
        if state.halted is None:
            state.halted = f"{state.me.node_id} was removed at index {index}"
            state.act(LeaveCluster(index))

    def linked(self, node_id: str, disk_id: bytes) -> None:
        """A link came up: tell the disk at its end if it was removed."""
        state = self._state
        if not state.members.removed or not self._is_committed:
            return
        if (index := state.members.removal_of(node_id, disk_id)) is not None:
            self._seen_at[(node_id, disk_id)] = state.now
            state.act(Send(node_id, Removal(index)))

    def tick(self) -> None:
        """Tell a removed disk that stays connected."""
        state = self._state
        if not state.members.removed or not self._is_committed:
            self._seen_at.clear()
            return
        gone = {
            (node_id, disk_id): index
            for node_id, disk_id in state.links.items()
            if (index := state.members.removal_of(node_id, disk_id)) is not None
        }
        self._seen_at = {disk: self._seen_at.get(disk, state.now) for disk in gone}
        patience = PATIENCE_TIMEOUTS * state.options.election_timeout_us
        for (node_id, disk_id), index in gone.items():
            if state.now - self._seen_at[(node_id, disk_id)] >= patience:
                self._seen_at[(node_id, disk_id)] = state.now
                state.act(Send(node_id, Removal(index)))
