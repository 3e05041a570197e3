"""Rule 18: which node moves nearer to an epoch out of reach, and when.

    hears no leader, and a leading node has it          at once: it lags, and each heartbeat brings it nearer
    hears no leader, and any other node has it          once in three election timeouts, so that campaigns have time
    leads for ten election timeouts, and the echo of    once; so a node that was given a high epoch comes back, at the
    a node that it dialled has one not too far          price of an election
    any other node                                      never

An epoch that is too far, above EPOCH_RETURN, would cost elections without end: a leader raises an alarm instead.
"""

from collections.abc import Mapping
from typing import Protocol

from ..events import Received
from ..messages import Heartbeat, HeartbeatEcho, Promise
from .epochs import EPOCH_REACH, highest_epoch

EPOCH_RETURN = EPOCH_REACH * 32
PAUSE_TIMEOUTS = 3
LED_TIMEOUTS = 10


class OwnState(Protocol):
    """The node that may move: its time in microseconds, its promise, and the alarms that it raises."""

    now: int
    promise: Promise

    @property
    def links(self) -> Mapping[str, bytes]:
        """The disk of each peer that this node dialled and reached."""
        ...

    def alarm(self, subject: str, text: str) -> None:
        """Raise a lasting alarm."""
        ...


class Reaching:
    """When this node may store a promise of a higher epoch to nobody."""

    def __init__(self, node: OwnState, patience_us: int) -> None:
        """All times are multiples of `patience_us`, an election timeout."""
        self._node = node
        self._patience_us = patience_us
        self._reached_at: int | None = None

    def is_due(self, heard: Received, live: Promise | None, led_since: int | None) -> bool:
        """Whether to move nearer to the epoch out of reach that was heard. `live`: the leader that is heard.

        `led_since`: when this node began to lead; None if it does not.
        """
        node, patience = self._node, self._patience_us
        if led_since is not None:
            is_echo = isinstance(heard.message, HeartbeatEcho) and node.links.get(heard.node_id) == heard.disk_id
            return is_echo and self._may_return(heard) and node.now - led_since >= LED_TIMEOUTS * patience
        if live is not None:
            return False
        is_rested = self._reached_at is None or node.now - self._reached_at >= PAUSE_TIMEOUTS * patience
        return is_rested or isinstance(heard.message, Heartbeat)

    def _may_return(self, heard: Received) -> bool:
        ours, epoch = self._node.promise.epoch, highest_epoch(heard.message)
        if epoch <= ours + EPOCH_RETURN:
            return True
        claim = f"{heard.node_id} holds epoch {epoch}, out of reach of {ours}, and no longer takes part"
        self._node.alarm("out of reach", f"{claim}: move its data_dir away; it then rejoins as a new member")
        return False

    def reached(self) -> None:
        """Note that this node moved nearer."""
        self._reached_at = self._node.now
