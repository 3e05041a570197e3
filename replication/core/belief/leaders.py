"""Rule 19: a second leader of an epoch is refused, and no node halts because of a heartbeat.

One epoch has one leader (rule 1). If two nodes claim the same one, a disk forgot a promise, or one of them lies. A
heartbeat proves nothing, and if nodes halted because of it, one lying node could stop all others. So this node stays
with the leader it knows, and the other gets neither an echo nor an ack. Check quorum (rule 11) ends the leadership that
a majority refuses.
"""

from typing import TYPE_CHECKING

from ..messages import NO_PROMISE, Promise
from .epochs import Refusal

if TYPE_CHECKING:
    from ..following import Following
    from ..state import State


def refuses(state: "State", own: Promise | None, following: "Following | None", claimed: Promise) -> bool:
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
