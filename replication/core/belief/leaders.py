"""Rule 19: a second leader of an epoch is refused, and nobody halts for a heartbeat.

One epoch has one leader (rule 1). Two nodes that claim the same one mean that a disk forgot a promise, or that somebody
lies. A heartbeat is only a word, and a halt for it would let one liar end all nodes; so this node stays with whom it
knows, and the other gets neither an echo nor an ack. Check quorum (rule 11) ends the one that a majority refuses.
"""

from typing import TYPE_CHECKING

from ..messages import NO_PROMISE, Promise
from .epochs import Refusal

if TYPE_CHECKING:
    from ..following import Following
    from ..state import State


def refuses(state: "State", own: Promise | None, following: "Following | None", claimed: Promise) -> bool:
    """Whether another than `claimed` leads its epoch, as far as this node knows. `own`: it leads under this promise.

    It leads or follows another in that epoch, or has records of it, and its stored promise is another's. Whoever is not
    heard any more, and left no record here, is followed no longer: nothing that counts was acknowledged to it.
    """
    has_records = state.log.last_epoch == claimed.epoch
    known = own or (state.stored_promise if has_records else NO_PROMISE)
    if following:
        known = following.leader if has_records or following.hears_leader else NO_PROMISE
    if known.epoch != claimed.epoch or known == claimed:
        return False
    state.refused[Refusal.SECOND_LEADER] += 1
    claim = f"{claimed.candidate} claims to lead epoch {claimed.epoch}, which this node knows as that of"
    why = f"a disk forgot a promise, or somebody speaks as {claimed.candidate}"
    state.alarm("second leader", f"{claim} {known.candidate}: {why}; it is refused")
    return True
