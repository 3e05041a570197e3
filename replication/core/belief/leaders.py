"""Rule 19: a second leader of an epoch is refused, and no node halts because of a heartbeat.

One epoch has one leader (rule 1). If two nodes claim the same one, a disk forgot a promise, or one of them lies. A
heartbeat proves nothing, and if nodes halted because of it, one lying node could stop all others. So this node stays
with the leader it knows, and the other gets neither an echo nor an ack. Check quorum (rule 11) ends the leadership that
a majority refuses.
"""

from collections import Counter
from typing import Protocol

from ..messages import NO_PROMISE, Promise
from .epochs import Refusal


class Records(Protocol):
    """The log of the node that judges."""

    @property
    def last_epoch(self) -> int:
        """Epoch of the last frame, 0 if there is none."""
        ...


class OwnState(Protocol):
    """The node that judges: its log, its promise on disk, and where refusals are counted and reported."""

    stored_promise: Promise
    refused: Counter[Refusal]

    @property
    def log(self) -> Records:
        """This node's log."""
        ...

    def alarm(self, subject: str, text: str) -> None:
        """Raise a lasting alarm."""
        ...


class FollowedLeader(Protocol):
    """The leader that a node follows."""

    leader: Promise

    @property
    def hears_leader(self) -> bool:
        """Whether it was heard lately."""
        ...


def refuses(state: OwnState, own: Promise | None, following: FollowedLeader | None, claimed: Promise) -> bool:
    """Whether this node knows another leader of the epoch than `claimed`. `own`: this node leads under that promise.

    It does if it leads or follows another in that epoch, or has records of it and its stored promise is another's. A
    leader that is no longer heard and left no record here is no longer followed: nothing was acknowledged to it.
    """
    has_records = state.log.last_epoch == claimed.epoch
    known = own or (state.stored_promise if has_records else NO_PROMISE)
    if following:
        known = following.leader if has_records or following.hears_leader else NO_PROMISE
    if known.epoch != claimed.epoch or known == claimed:
        return False
    state.refused[Refusal.SECOND_LEADER] += 1
    claim = f"{claimed.candidate} claims to lead epoch {claimed.epoch}, which this node knows as that of"
    why = f"a disk forgot a promise, or another program poses as {claimed.candidate}"
    state.alarm("second leader", f"{claim} {known.candidate}: {why}; it is refused")
    return True
