"""Rule 17, as far as telling goes: the digests that others report, compared with this node's own at the same index.

A digest covers all that was applied below it, so a replica that differs once differs at every later index: it is enough
to compare what was reported last. A report ahead of this node waits until this one has come as far. One that is farther
behind than this node remembers says nothing; the next one will.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

REMEMBERED_FRAMES = 16_384  # About 2 MB, and seconds of a busy cluster: reports come with every flush and heartbeat.


class Difference(NamedTuple):
    """At `index`, the first at which this was seen, another node reported `digest` and this one has `own_digest`."""

    index: int  # type: ignore[assignment]  # It hides tuple.index, which nobody needs here.
    digest: bytes
    own_digest: bytes

    def alarm(self, node_id: str) -> str:
        """What a leader tells an operator of that node."""
        theirs, ours = self.digest.hex(), self.own_digest.hex()
        return f"{node_id} has digest {theirs} at {self.index}, and this leader {ours}: states differ"


class Digests:
    """One node's own digests, and who differs from them. `on_change(node_id, difference or None)` tells of both."""

    def __init__(self, on_change: Callable[[str, Difference | None], None]) -> None:
        self.differing: dict[str, Difference] = {}
        self._on_change = on_change
        self._own: dict[int, bytes] = {}
        self._order: deque[int] = deque()
        self._ahead: dict[str, tuple[int, bytes]] = {}
        self._index = 0

    def applied(self, index: int, digest: bytes) -> None:
        """This node has applied all below `index`, a frame's boundary, and stands at `digest`."""
        if len(self._order) >= REMEMBERED_FRAMES:
            del self._own[self._order.popleft()]
        self._order.append(index)
        self._own[index] = digest
        self._index = index
        if self._ahead:
            for node_id, (other, reported) in list(self._ahead.items()):
                if other <= index:
                    del self._ahead[node_id]
                    self._compare(node_id, other, reported)

    def reported(self, node_id: str, index: int, digest: bytes) -> None:
        """Another node says that it stands at `digest`, having applied all below `index`."""
        if index > self._index:
            # The first one waits: were it replaced by each later one, a leader that applies behind would never compare.
            self._ahead.setdefault(node_id, (index, digest))
        else:
            self._compare(node_id, index, digest)

    def forget(self) -> None:
        """Forget what others reported: this node leads no longer, and hears them no more."""
        self._ahead.clear()
        self.differing.clear()

    def _compare(self, node_id: str, index: int, digest: bytes) -> None:
        own = self._own.get(index)
        if own is None:
            return
        if own == digest:
            if self.differing.pop(node_id, None):
                self._on_change(node_id, None)
        elif node_id not in self.differing:
            difference = self.differing[node_id] = Difference(index, digest, own)
            self._on_change(node_id, difference)
