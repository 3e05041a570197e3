"""Rule 18: which node moves nearer to an epoch out of reach, and when.

    hears no leader, and a leading node has it          at once: it lags, and each heartbeat brings it nearer
    hears no leader, and any other node has it          once in three election timeouts, so that campaigns have time
    leads for ten election timeouts, and the echo of    once; so a node that was given a high epoch comes back, at the
    a node that it dialled has one not too far          price of an election
    any other node                                      never

An epoch that is too far, above EPOCH_RETURN, would cost elections without end: a leader raises an alarm instead.
"""

from typing import TYPE_CHECKING

from ..messages import Heartbeat, HeartbeatEcho, Promise
from .epochs import EPOCH_REACH, highest_epoch

if TYPE_CHECKING:
    from ..events import Received
    from ..leading import Leading
    from ..state import State

EPOCH_RETURN = EPOCH_REACH * 32
PAUSE_TIMEOUTS = 3
LED_TIMEOUTS = 10


class Reaching:
    """When this node may store a promise of a higher epoch to nobody."""

    def __init__(self, state: "State") -> None:
        self._state = state
        self._reached_at: int | None = None

    def is_due(self, heard: "Received", live: Promise | None, leading: "Leading | None") -> bool:
        """Whether to move nearer to the epoch out of reach that was heard. `live`: the leader that is heard."""
        state, patience = self._state, self._state.options.election_timeout_us
        if leading:
            is_echo = isinstance(heard.message, HeartbeatEcho) and state.links.get(heard.node_id) == heard.disk_id
            return is_echo and self._may_return(heard) and state.now - leading.began >= LED_TIMEOUTS * patience
        if live is not None:
            return False
        is_rested = self._reached_at is None or state.now - self._reached_at >= PAUSE_TIMEOUTS * patience
        return is_rested or isinstance(heard.message, Heartbeat)

    def _may_return(self, heard: "Received") -> bool:
        ours, epoch = self._state.promise.epoch, highest_epoch(heard.message)
        if epoch <= ours + EPOCH_RETURN:
            return True
        claim = f"{heard.node_id} holds epoch {epoch}, out of reach of {ours}, and no longer takes part"
        self._state.alarm("out of reach", f"{claim}: move its data_dir away; it then rejoins as a new member")
        return False

    def reached(self) -> None:
        """Note that this node moved nearer."""
        self._reached_at = self._state.now
