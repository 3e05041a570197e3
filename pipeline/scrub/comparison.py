"""The nodes of a scrub: how each one's log is opened, and how the logs are compared with each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import NamedTuple

from quire.log import FrameCorrupt, FrameHeader
from quire.log.packing import Skimmer

from ..archive.log import recorded_gaps
from ..errors import ArchiveDamaged, ClusterUnavailable, RecordsLost
from ..origin.access import PLAIN, Access
from ..origin.cluster import ClusterLog
from ..origin.origin import Origin, Stretch
from ..source.reading import log_at
from .walk import Boundary, Finding, WalkedPiece

NODE_TIMEOUT_S = 10.0
"""How long a node may take for a page; records that it does not return in that time are reported as unreadable."""


class ScrubNode(NamedTuple):
    """A log to scrub: a data_dir or an archive by its path, or a node by its address."""

    name: str
    is_server: bool
    access: Access = PLAIN

    def open(self, known: str | None = None) -> Origin:
        """Its log. `known`: the id of a server's cluster, if it was learned before.

        Raises:
            NoLog: there is none at the path.
            ClusterUnavailable: the server does not answer.
        """
        if not self.is_server:
            return log_at(self.name)
        if known is None:
            with closing(ClusterLog([self.name], NODE_TIMEOUT_S, access=self.access)) as asked:
                known = asked.cluster_id()
        # With the cluster known, the other members are not looked up: only this node is asked.
        return ClusterLog([self.name], NODE_TIMEOUT_S, known=known, access=self.access)


class Comparison(NamedTuple):
    """How the logs of some nodes compare."""

    compared_to: dict[str, int]
    """By node: the last boundary at which it was compared with another node. Absent: it shares none with any."""
    findings: list[Finding]
    """One for each node that differs from most of the others, at the first frame that differs."""


def frames_within(origin: Origin, stretch: Stretch) -> Iterator[FrameHeader]:
    """The headers of the frames that start within a stretch. Raises as the origin's `rows`."""
    for rows in origin.rows(stretch, Skimmer()):
        for header, _ in rows.frames:
            if stretch.from_index <= header.index < stretch.to_index:
                yield header


def compare(walks: Mapping[ScrubNode, Sequence[WalkedPiece]], cluster_id: str) -> Comparison:
    """Compare the nodes at the boundaries that their walks kept."""
    kept: dict[int, dict[ScrubNode, Boundary]] = {}
    for node, pieces in walks.items():
        for piece in pieces:
            for index, boundary in piece.boundaries.items():
                kept.setdefault(index, {})[node] = boundary
    comparison = Comparison({}, [])
    equal: dict[ScrubNode, int] = dict.fromkeys(walks, 0)
    differing: set[ScrubNode] = set()
    for index, boundaries in sorted(kept.items()):
        if len(boundaries) == 1:
            continue
        most, _ = Counter(boundaries.values()).most_common(1)[0]
        model = next(node for node, boundary in boundaries.items() if boundary == most)
        for node, boundary in boundaries.items():
            comparison.compared_to[node.name] = boundary.next_index
            if boundary == most:
                equal[node] = boundary.next_index
            elif node not in differing:
                differing.add(node)
                stretch = Stretch(equal[node], index, None)
                comparison.findings.append(_first_difference(node, model, stretch, cluster_id))
    return comparison


def _first_difference(node: ScrubNode, model: ScrubNode, stretch: Stretch, cluster_id: str) -> Finding:
    """The first frame of a stretch that differs between two nodes."""
    with closing(node.open(cluster_id)) as own, closing(model.open(cluster_id)) as other:
        first = max(stretch.from_index, own.bounds().lowest_index, other.bounds().lowest_index)
        for gap in sorted(recorded_gaps(own) + recorded_gaps(other)):  # Nothing is compared within a gap.
            if gap.from_index <= first:
                first = max(first, gap.to_index)
        with suppress(ClusterUnavailable, FrameCorrupt, RecordsLost, ArchiveDamaged):
            for ours, theirs in zip(_all_frames(own, first, stretch), _all_frames(other, first, stretch), strict=False):
                if ours.crc32c != theirs.crc32c:
                    reason = f"its frame has crc32c {ours.crc32c:08x}, that of {model.name} {theirs.crc32c:08x}"
                    return Finding(node.name, "differs", reason, from_index=ours.index, to_index=ours.next_index)
    reason = f"somewhere in these records it differs from {model.name}"
    return Finding(node.name, "differs", reason, from_index=first, to_index=stretch.to_index)


def _all_frames(origin: Origin, from_index: int, stretch: Stretch) -> Iterator[FrameHeader]:
    for each in origin.stretches(from_index, stretch.to_index):
        yield from frames_within(origin, each)
