"""What nodes answer, and what that is beside a replay."""

from __future__ import annotations

from contextlib import closing
from typing import NamedTuple

from quire.log.json_text import to_json

from ..errors import ForeignLog
from ..origin.nodes import Answer, AnswerRefused, Nodes, TryNext, document_of
from ..origin.origin import Bounds
from .difference import Difference
from .stretch import Replayed

NODE_TIMEOUT_S = 30.0
EQUAL = "equal"
EQUAL_BY_DIGEST = "equal by its digest: it does not tell its whole state"


class NodeAnswer(NamedTuple):
    """What a node answers."""

    server: str
    index: int  # type: ignore[assignment]
    digest: str
    state: bytes | None
    """As JSON; None where it is too large to be told."""

    def told(self, found: list[Replayed], wrong: dict[int, str], bounds: Bounds) -> str:
        """What its answer is beside the replay's, which went over `bounds`.

        `wrong`: by boundary, from where on the snapshots there differ.
        """
        low, high = bounds
        if self.index > high:
            return f"it has applied {self.index}, and the log here ends at {high}: try again in a moment"
        for difference in (difference for each in found for difference in each.differences):
            if difference.source == self.server:
                return f"differs {place_of(difference)}"
        own = next((each for each in found if self.server in each.equal), None)
        if own is None:
            return f"not compared: it has applied {self.index}, and the replay begins at {low}"
        # A stretch that is right follows from its snapshot: from the log only if that one does, too.
        before = [boundary for boundary in wrong if boundary <= own.from_index]
        if before:
            return f"follows from what differs {wrong[min(before)]}"
        return EQUAL if self.state is not None else EQUAL_BY_DIGEST


def place_of(difference: Difference) -> str:
    """Where it differs, as a part of a sentence."""
    if difference.first_index is None:
        return f"at index {difference.boundary}"
    return f"from index {difference.first_index} on"


def ask(server: str, cluster_id: str) -> NodeAnswer:
    """What a node answers, at the index that it has applied; without its state where that is too large to be told.

    Raises:
        ForeignLog: it is of another cluster.
        ClusterUnavailable: it does not answer.
    """
    with closing(Nodes([server], NODE_TIMEOUT_S)) as nodes:
        found = nodes.first("/status", "its status", document_of).get("cluster_id")
        if found != cluster_id:
            raise ForeignLog(server, str(found), cluster_id)
        try:
            return nodes.first("/state?consistency=local", "its answer", _state_told)
        except AnswerRefused:
            # The digest in its status is that of the index there: both are read between two frames.
            return nodes.first("/status", "its digest", _digest_told)


def _state_told(answer: Answer) -> NodeAnswer:
    match document_of(answer):
        case {"state": state, "applied_index": int(index), "digest": str(digest)}:
            return NodeAnswer(answer.server, index, digest, to_json(state))
        case _:
            raise TryNext("it does not tell its state")


def _digest_told(answer: Answer) -> NodeAnswer:
    match document_of(answer):
        case {"applied_index": int(index), "digest": str(digest)}:
            return NodeAnswer(answer.server, index, digest, None)
        case _:
            raise TryNext("it does not tell its digest")
