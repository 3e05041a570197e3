"""The changes of members of one leadership (rule 15): those that an operator asks for, and those that follow from them.

At most one record is uncommitted. An operator's change is answered once its record is committed. What then remains to
be done stands in the log alone: a row without a disk, a node that joins, a voter whose disk was lost. `tick` does the
next of these, one record at a time.

A voter's lost disk is replaced without an operator only if that is configured (`auto_replace_us`): the disk was not
heard for that long, its node is connected with another disk and level, all other voters are heard, and no disk of that
node was removed within a day.
"""

from collections.abc import Callable
from typing import NamedTuple

from quire.log import MEMBERSHIP

from .. import actions, events
from ..downstreams import Downstreams
from ..members import Member, Members, Role
from ..messages import Promise
from ..state import NotReadableNow, State
from .changing import (
    ChangeContext,
    Changed,
    Full,
    Lost,
    NotConnected,
    Outcome,
    Promote,
    lost_disk,
    next_change,
    next_step,
)

REPLACED_AGAIN_US = 24 * 3600 * 1_000_000
NO_ASK = 0


class Change(NamedTuple):
    """A change that is not committed yet: who asked for it, and the index of its record."""

    ask_id: int
    index: int  # type: ignore[assignment]  # It hides tuple.index, which nobody needs here.


class Leadership(NamedTuple):
    """What the changes need to know of their leadership."""

    promise: Promise
    serving: Callable[[], bool]
    start_index: Callable[[], int | None]
    transferring_to: Callable[[], str | None]
    is_heard: Callable[[], Callable[[Member], bool]]
    wanted_features: Callable[[], frozenset[str]]


class Changes:
    """The change under way, and what is to be done next."""

    def __init__(self, state: State, downstreams: Downstreams, leadership: Leadership) -> None:
        self._state = state
        self._downstreams = downstreams
        self._leadership = leadership
        self.under_way: Change | None = None
        """The change whose record is not committed yet."""
        self._unheard_since: dict[tuple[str, bytes], int] = {}
        self._paused_until = 0  # After the log refused a record.

    # An operator's

    def request(self, asked: events.ChangeRequested) -> None:
        """Append the next change on the way to what is wanted, or say why there is none.

        It counts for every majority as soon as it is in the log, even for its own commit; `ChangeEnded` follows when it
        is committed. No other change is appended before that: `next_change` checks the log.
        """
        state, wanted = self._state, asked.wanted
        if isinstance(wanted, Promote) and (lacking := self._lacking(wanted.node_id)):
            connected = tuple(sorted(state.links.keys() - {wanted.node_id}))  # As it will be once they are committed.
            state.act(actions.ChangeEnded(asked.ask_id, NotConnected(connected, lacking)))
            return
        answer = next_change(self._context(), wanted)
        if isinstance(answer, Members):
            self._append(asked.ask_id, answer)
        else:
            state.act(actions.ChangeEnded(asked.ask_id, answer))

    def _lacking(self, node_id: str) -> tuple[str, ...]:
        """The features in use, or about to be, that a connected node does not offer."""
        state = self._state
        if node_id not in state.links:
            return ()
        used = self._leadership.wanted_features() | state.features
        return tuple(sorted(used - state.offers.get(node_id, frozenset())))

    def _append(self, ask_id: int, members: Members) -> None:
        state = self._state
        self.under_way = Change(ask_id, state.end_index)
        record = {"type": "members", **members.to_record()}
        state.act(actions.AppendSystem(self._leadership.promise.epoch, state.majority_clock, record))

    # What follows

    def tick(self) -> None:
        """Append the next change that nobody needs to ask for, if there is one."""
        state = self._state
        self._note_unheard()
        if self.under_way is not None or state.now < self._paused_until:
            return
        if any(m.role is not Role.VOTER for m in state.members.members):
            context = self._context()
            behind = [node_id for node_id in context.disks if self._lacking(node_id)]  # They will be disconnected.
            disks = {node_id: disk for node_id, disk in context.disks.items() if node_id not in behind}
            if (members := next_step(context._replace(disks=disks))) is not None:
                self._append(NO_ASK, members)
                return
        if state.options.auto_replace_us:
            self._replace_lost_disk()

    def _note_unheard(self) -> None:
        """Note since when which voter is not heard, by the time for which this process ran."""
        state, is_heard = self._state, self._leadership.is_heard()
        silent = [(m.node_id, m.disk_id) for m in state.members.voters() if not is_heard(m)]
        self._unheard_since = {disk: self._unheard_since.get(disk, state.awake) for disk in silent}

    def _replace_lost_disk(self) -> None:
        state, voters = self._state, self._state.members.voters()
        lost = [voter for voter in voters if (voter.node_id, voter.disk_id) in self._unheard_since]
        if len(lost) != 1:
            return
        (voter,) = lost
        if state.awake - self._unheard_since[(voter.node_id, voter.disk_id)] < state.options.auto_replace_us:
            return
        if self._lacking(voter.node_id) or (members := lost_disk(self._context(), voter)) is None:
            return
        if not self._was_replaced_lately(voter.node_id):
            self._append(NO_ASK, members)

    def _was_replaced_lately(self, node_id: str) -> bool:
        """Whether a disk of this node was removed within a day, by the time of the log, as far as the log reaches."""
        state = self._state
        removals = [gone.index for gone in state.members.removed if gone.node_id == node_id]
        if not removals:
            return False
        try:
            removed_at = state.log.timestamp_of(max(removals))
        except NotReadableNow:
            return True  # Perhaps.
        return removed_at is not None and state.majority_clock - removed_at < REPLACED_AGAIN_US

    def _context(self) -> ChangeContext:
        state, leadership, me = self._state, self._leadership, self._state.me

        def lag_of(node_id: str, disk_id: bytes) -> int | None:
            match_index = self._downstreams.match_index(node_id, disk_id)
            lag_bytes = None if match_index is None else state.log.bytes_from(match_index)
            if lag_bytes is None or lag_bytes > state.options.promotable_bytes:
                return lag_bytes
            return lag_bytes if self._downstreams.keeps_up(node_id, disk_id) else None

        lacking = [m.node_id for m in state.members.members if not state.is_me(m) and not self._offers_membership(m)]
        return ChangeContext(
            me=me.node_id,
            serving=leadership.serving(),
            start_index=leadership.start_index(),
            commit_index=state.commit_index,
            record_index=state.end_index,
            members=state.members,
            members_index=state.log.members_index or 0,
            transferring_to=leadership.transferring_to(),
            disks={**state.links, me.node_id: me.disk_id},
            lag_of=lag_of,
            promotable_bytes=state.options.promotable_bytes,
            is_heard=leadership.is_heard(),
            lacking=None if MEMBERSHIP in state.features else tuple(lacking),
        )

    def _offers_membership(self, member: Member) -> bool:
        return self._state.is_linked(member) and MEMBERSHIP in self._state.offers.get(member.node_id, frozenset())

    # The end of a change

    def committed(self, index: int) -> None:
        """Everything below `index` is committed."""
        if self.under_way and index > self.under_way.index:
            self._end(Changed(self.under_way.index))

    def refused(self) -> None:
        """An append was refused: if it was that of the change, its record is not in the log."""
        if self.under_way and self._state.log.members_index != self.under_way.index:
            self._paused_until = self._state.now + self._state.options.election_timeout_us
            self._end(Full())

    def lost(self) -> None:
        """The leadership is over."""
        self._end(Lost())

    def _end(self, outcome: Outcome) -> None:
        if self.under_way and self.under_way.ask_id != NO_ASK:
            self._state.act(actions.ChangeEnded(self.under_way.ask_id, outcome))
        self.under_way = None
