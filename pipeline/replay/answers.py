"""The answers of nodes, and how they compare with a replay."""

from __future__ import annotations

from contextlib import closing
from typing import NamedTuple

from quire.log.json_text import to_json

from ..errors import ForeignLog
from ..origin.access import PLAIN, Access
from ..origin.cluster import id_of
from ..origin.nodes import Answer, AnswerRefused, Nodes, TryNext, document_of
from ..origin.origin import Bounds
from .difference import Difference
from .stretch import Replayed

NODE_TIMEOUT_S = 30.0
EQUAL = "equal"
EQUAL_BY_DIGEST = "equal by its digest: it does not return its whole state"


class NodeAnswer(NamedTuple):
    """A node's digest and state at the index that it has applied."""

    server: str
    index: int  # type: ignore[assignment]
    digest: str
    state: bytes | None
    """As JSON; None if it is too large for an answer."""

    def verdict(self, found: list[Replayed], wrong: dict[int, str], bounds: Bounds) -> str:
        """How the answer compares with the replay, which covered `bounds`.

        `wrong`: by boundary, from where the snapshots there differ.
        """
        low, high = bounds
        if self.index > high:
            return f"it has applied {self.index}, but the log here ends at {high}: try again in a moment"
        for difference in (difference for each in found for difference in each.differences):
            if difference.source == self.server:
                return f"differs {place_of(difference)}"
        own = next((each for each in found if self.server in each.equal), None)
        if own is None:
            return f"not compared: it has applied {self.index}, but the replay starts at {low}"
        # A correct stretch follows from its snapshot; it follows from the log only if the snapshot does, too.
        before = [boundary for boundary in wrong if boundary <= own.from_index]
        if before:
            return f"follows from a state that differs {wrong[min(before)]}"
        return EQUAL if self.state is not None else EQUAL_BY_DIGEST


def place_of(difference: Difference) -> str:
    """The location of a difference, as part of a sentence."""
    if difference.first_index is None:
        return f"at index {difference.boundary}"
    return f"from index {difference.first_index} on"


def ask(server: str, cluster_id: str, access: Access = PLAIN) -> NodeAnswer:
    """A node's answer at the index that it has applied, without its state if that is too large.

    Raises:
        ForeignLog: the node is of another cluster.
        ClusterUnavailable: it does not answer.
    """
    with closing(Nodes([server], NODE_TIMEOUT_S, access)) as nodes:
        found = id_of(nodes.first("/status", "its status", document_of))
        if found != cluster_id:
            raise ForeignLog(server, str(found), cluster_id)
        try:
            return nodes.first("/state?consistency=local", "its answer", _with_state)
        except AnswerRefused:
            # The digest in its status belongs to the index there: both are read between two frames.
            return nodes.first("/status", "its digest", _with_digest)


def _with_state(answer: Answer) -> NodeAnswer:
    match document_of(answer):
        case {"state": state, "applied_index": int(index), "digest": str(digest)}:
            return NodeAnswer(answer.server, index, digest, to_json(state))
        case _:
            raise TryNext("its answer has no state")


def _with_digest(answer: Answer) -> NodeAnswer:
    match document_of(answer):
        case {"applied_index": int(index), "digest": str(digest)}:
            return NodeAnswer(answer.server, index, digest, None)
        case _:
            raise TryNext("its status has no digest")
