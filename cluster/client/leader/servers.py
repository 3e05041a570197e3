"""In which order a client dials its servers: the leader first, and those last that were silent.

A server that is silent does not refuse: its machine is lost, its process is frozen, or the packets to it are dropped.
Nobody says so, and each dial of it costs its whole timeout.
"""

import math
import time
from collections.abc import Callable, Sequence

AVOIDED_FOR_S = 30.0  # A server that was silent, or a leader's address that cannot be reached, as from another network.


class Servers:
    """The servers that a caller named, the leader as far as it is known, and when each was heard."""

    def __init__(self, named: Sequence[str], drop_kept: Callable[[str], None] = lambda _server: None) -> None:
        """`drop_kept` closes the idle connections to a server that was lost."""
        self.named = tuple(dict.fromkeys(named))
        self._drop_kept = drop_kept
        self.leader: str | None = None
        self.leader_id: str | None = None  # Of the last that was heard of, even if it is lost since.
        self.served_at = 0.0  # By any server: it answered with anything but "not now".
        self._heard_at: dict[str, float] = {}
        self._avoided_until: dict[str, float] = {}

    def in_order(self) -> list[str]:
        """The servers to try."""
        leader = self.leader
        if leader is None or (leader not in self.named and self.is_avoided(leader)):
            return sorted(self.named, key=self.is_avoided)
        return sorted((leader, *(server for server in self.named if server != leader)), key=self.is_avoided)

    def is_avoided(self, server: str) -> bool:
        """Whether it was silent lately."""
        return self._avoided_until.get(server, 0.0) > time.monotonic()

    def learn_leader(self, header: str | None) -> None:
        """An answer had this `Quire-Leader`."""
        node_id, _, address = (header or "").partition("=")
        self.leader, self.leader_id = address or None, node_id or self.leader_id

    def answered(self, server: str) -> None:
        """It answered something, just now."""
        self._heard_at[server] = time.monotonic()
        self._avoided_until.pop(server, None)

    def heard_since(self, server: str, since: float) -> bool:
        """Whether it has answered something since then (`time.monotonic()`)."""
        return self._heard_at.get(server, -math.inf) >= since

    def lost(self, server: str, *, silent: bool = False) -> None:
        """It did not serve. What is no server of the caller's is avoided for any reason, the others if `silent`."""
        self._heard_at.pop(server, None)
        self._drop_kept(server)
        if server == self.leader:
            self.leader = None
        if silent or server not in self.named:
            self._avoided_until[server] = time.monotonic() + AVOIDED_FOR_S
