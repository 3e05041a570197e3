"""Rule 17, detection: compare the digests that other nodes report with this node's own at the same index.

A digest covers everything applied below its index, so a replica that differs once differs at every later index, and
comparing the last report is enough. A report ahead of this node is kept until this node has caught up. A report for an
index that this node no longer remembers is ignored; a later one serves as well.

Every node compares, so it also finds out whether its own state is the one in doubt (`is_doubted`).
"""

from collections import deque
from collections.abc import Callable, Collection
from typing import NamedTuple

REMEMBERED_FRAMES = 16_384  # About 2 MB, seconds of a busy cluster. Every flush and heartbeat brings a report.


class Difference(NamedTuple):
    """The first difference seen: at `index` another node reported `digest`, and this one has `own_digest`."""

    index: int  # type: ignore[assignment]  # It hides tuple.index, which nobody needs here.
    digest: bytes
    own_digest: bytes

    def alarm(self, node_id: str) -> str:
        """The alarm about that node."""
        theirs, ours = self.digest.hex(), self.own_digest.hex()
        return f"{node_id} has digest {theirs} at index {self.index}, and this node has {ours}: their states differ"


class Parting(NamedTuple):
    """Where the state of `node_id` parts from a majority's: at `index` a majority has `digest`, and it another.

    `after` is the last index at which a report was equal, 0 if none was: they part above it.
    """

    after: int
    index: int  # type: ignore[assignment]  # It hides tuple.index, which nobody needs here.
    digest: bytes
    node_id: str


class Digests:
    """One node's own digests, and the nodes that differ. `on_change(node_id, difference or None)` reports a change."""

    def __init__(self, on_change: Callable[[str, Difference | None], None]) -> None:
        self.differing: dict[str, Difference] = {}
        self._on_change = on_change
        self._agreed: dict[str, int] = {}
        """The highest index at which a node that does not differ was equal."""
        self._was_equal: dict[str, int] = {}
        """The same of a node that differs, before it did."""
        self._own: dict[int, bytes] = {}
        self._order: deque[int] = deque()
        self._ahead: dict[str, tuple[int, bytes]] = {}
        self._index = 0

    def applied(self, index: int, digest: bytes) -> None:
        """This node has applied everything below `index`, a frame boundary, and has `digest` there."""
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

    def installed(self, index: int, digest: bytes) -> None:
        """This node now has another node's state at `index`: its own earlier digests no longer count."""
        self._own.clear()
        self._order.clear()
        self.applied(index, digest)

    def reported(self, node_id: str, index: int, digest: bytes) -> None:
        """Another node reports that it applied everything below `index` and has `digest` there."""
        if index > self._index:
            # Keep the lowest: if each later one replaced it, a node that applies late would never compare; and one that
            # this node never reaches must not keep it from comparing the others.
            if node_id not in self._ahead or index < self._ahead[node_id][0]:
                self._ahead[node_id] = (index, digest)
        else:
            self._compare(node_id, index, digest)

    def is_doubted(self, node_id: str, leader_id: str | None, voters: Collection[str]) -> bool:
        """Whether the state of `node_id`, this node, is in doubt rather than the states that differ from it.

        It is in doubt if it differs from a majority of the voters. It is also in doubt if it differs from its leader,
        whose answers clients have seen, unless a majority including itself has agreed with it since.
        """
        if not self.differing:
            return False
        majority = len(voters) // 2 + 1
        if sum(1 for voter in voters if voter in self.differing) >= majority:
            return True
        if leader_id is None or (difference := self.differing.get(leader_id)) is None:
            return False
        return not self.is_shared(node_id, voters, difference.index)

    def is_shared(self, node_id: str, voters: Collection[str], index: int) -> bool:
        """Whether a majority of the voters, `node_id`, this node, included, was equal at `index` or later."""
        alike = sum(1 for voter in voters if voter == node_id or self._agreed.get(voter, -1) >= index)
        return alike >= len(voters) // 2 + 1

    def parting(self, node_id: str, voters: Collection[str]) -> Parting | None:
        """Where a voter first parts from a majority; None if that is not known. `node_id` is this node.

        A majority is known to have this node's digest, or to have reported another one at the same index.
        """
        majority = len(voters) // 2 + 1
        differing = sorted((self.differing[voter].index, voter) for voter in voters if voter in self.differing)
        if not differing:
            return None
        index, first = differing[0]
        after, digest = self._was_equal.get(first, 0), self.differing[first].digest
        alike = [voter for voter in voters if voter == node_id or self._agreed.get(voter, -1) >= index]
        if len(alike) >= majority:
            return Parting(after, index, self.differing[first].own_digest, first)
        others = [voter for _, voter in differing if self.differing[voter][:2] == (index, digest)]
        return Parting(after, index, digest, node_id) if len(others) >= majority else None

    def _compare(self, node_id: str, index: int, digest: bytes) -> None:
        own = self._own.get(index)
        if own is None:
            return
        if own == digest:
            self._agreed[node_id] = index
            if self.differing.pop(node_id, None):
                self._on_change(node_id, None)
        else:
            agreed = self._agreed.pop(node_id, 0)
            if node_id not in self.differing:
                self._was_equal[node_id] = agreed
                difference = self.differing[node_id] = Difference(index, digest, own)
                self._on_change(node_id, difference)
