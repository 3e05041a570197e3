"""`scrub`: every frame of some nodes' logs looked at, by crc and chain, and the nodes compared with each other.

Nodes are data_dirs, of nodes that run or do not, archives, or addresses, which are asked for raw frames. What is wrong
is found, not raised: a scrub goes over everything that can be read.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from hashlib import file_digest
from typing import TYPE_CHECKING, NamedTuple

from quire.log import FrameCorrupt, FrameHeader, Tail
from quire.log.packing import Skimmer

from ..archive.files import ArchiveFiles
from ..archive.manifest import is_archive
from ..errors import ArchiveDamaged, ClusterUnavailable, ForeignLog, RecordsLost
from ..jobs.progress import Progress, untold
from ..jobs.spread import spread
from ..origin.cluster import Cluster
from ..origin.origin import Origin, Stretch
from ..source.reading import files_at
from .finding import Finding, FindingKind
from .segment import scrub_segment
from .walked import Boundary, Walked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NODE_TIMEOUT_S = 10.0
"""How long a node may take for a page; what it does not give then is found unreadable."""


class ScrubPiece(NamedTuple):
    """A stretch of one node's log."""

    node: str
    is_server: bool
    cluster_id: str
    stretch: Stretch
    ends: tuple[int, ...]
    """Where the logs end, each of them."""


@dataclass(slots=True)
class ScrubbedNode:
    """What was gone over of one node."""

    from_index: int
    to_index: int
    frames: int = 0
    records: int = 0
    log_bytes: int = 0
    compared_to: int | None = None
    """The last boundary at which it was compared with another; None: they have no record in common that was read."""


@dataclass(slots=True)
class ScrubSummary:
    """What a scrub went over, and what it found."""

    cluster_id: str
    nodes: dict[str, ScrubbedNode] = field(default_factory=dict[str, ScrubbedNode])
    findings: list[Finding] = field(default_factory=list[Finding])
    seconds: float = 0.0

    @property
    def is_whole(self) -> bool:
        """Whether all records were read, are what was written, and differ nowhere."""
        return all(finding.kind == "index" for finding in self.findings)

    @property
    def is_same(self) -> bool:
        """Whether each log was compared with another, and none differs."""
        return self.is_whole and all(node.compared_to is not None for node in self.nodes.values())

    @property
    def verdict(self) -> str:
        """For people."""
        if not self.is_whole:
            return "NOT whole"
        if self.is_same:
            return "whole, and the same on each"
        alone = ", ".join(name for name, node in self.nodes.items() if node.compared_to is None)
        return f"whole; compared with no other: {alone}" if len(self.nodes) > 1 else "whole"


def scrub(
    paths: Sequence[str] = (),
    servers: Sequence[str] = (),
    *,
    spark: SparkSession | None = None,
    progress: Progress = untold,
) -> ScrubSummary:
    """Look at every committed frame of the data_dirs and archives at `paths` and of the nodes at `servers`.

    Executors must see the paths and reach the servers. Without a Spark this process does it all.

    Raises:
        NoLog: there is none at a path.
        ForeignLog: they are not all of one cluster.
        ClusterUnavailable: a node does not answer at all.
    """
    began = time.monotonic()
    paths = [os.path.abspath(path) for path in paths]
    pieces: list[ScrubPiece] = []
    summary = ScrubSummary("")
    for node, is_server in [*((path, False) for path in paths), *((server, True) for server in servers)]:
        with closing(_open(node, is_server=is_server)) as origin:
            cluster_id, (low, high) = origin.cluster_id(), origin.bounds()
            if cluster_id != (summary.cluster_id or cluster_id):
                raise ForeignLog(node, cluster_id, summary.cluster_id)
            summary.cluster_id = cluster_id
            summary.nodes[node] = ScrubbedNode(low, high)
            stretches = _stretches(origin, low, high)
            pieces += [ScrubPiece(node, is_server, cluster_id, stretch, ()) for stretch in stretches]
    ends = tuple({node.to_index for node in summary.nodes.values()})
    pieces = [piece._replace(ends=ends) for piece in pieces]
    walks: dict[str, dict[int, Walked]] = {node: {} for node in summary.nodes}
    done, total = 0, sum(piece.stretch.to_index - piece.stretch.from_index for piece in pieces)
    progress(0, total)
    for outcome in spread(spark, _walk, pieces):
        piece = pieces[outcome.place]
        walks[piece.node][piece.stretch.from_index] = outcome.result
        done += piece.stretch.to_index - piece.stretch.from_index
        progress(done, total)
    for node, of_node in walks.items():
        _gather(summary, node, [of_node[first] for first in sorted(of_node)])
    _compare(summary, {node: list(of_node.values()) for node, of_node in walks.items()}, servers)
    summary.seconds = time.monotonic() - began
    return summary


def _open(node: str, *, is_server: bool, known: str | None = None) -> Origin:
    if not is_server:
        return files_at(node)
    if known is None:
        with closing(Cluster([node], NODE_TIMEOUT_S)) as asked:
            known = asked.cluster_id()
    # Of a server whose cluster is known no others are learnt: this very node is asked.
    return Cluster([node], NODE_TIMEOUT_S, known=known)


def _stretches(origin: Origin, low: int, high: int) -> Sequence[Stretch]:
    if not isinstance(origin, ArchiveFiles):
        return origin.stretches(low, high)
    # Of an archive, those of files that are gone, too: that is for the walk to find.
    return [Stretch(held.from_index, held.to_index, held.segment) for held in origin.manifest.files]


def _walk(piece: ScrubPiece) -> Walked:
    stretch = piece.stretch
    if not piece.is_server and not is_archive(piece.node):
        try:
            return scrub_segment(piece.node, stretch.from_index, stretch.to_index, piece.ends)
        except FileNotFoundError:
            return Walked(piece.node)  # It has expired meanwhile.
    walked = Walked(piece.node, piece.ends)
    try:
        with closing(_open(piece.node, is_server=piece.is_server, known=piece.cluster_id)) as origin:
            if isinstance(origin, ArchiveFiles):
                _check_sha256(origin, stretch, walked)
            for header in _frames(origin, stretch):
                if (broken := walked.add(header)) is not None:
                    _find(walked, "chain", broken, header.index, header.next_index)
    except ArchiveDamaged as error:
        if not any(finding.kind == "corrupt" for finding in walked.findings):
            reached = stretch.from_index if walked.tail is None else walked.tail.index
            _find(walked, "corrupt", error.reason, reached, stretch.to_index, error.file)
    except RecordsLost:
        return Walked(piece.node)
    except (ClusterUnavailable, FrameCorrupt) as error:
        reached = stretch.from_index if walked.tail is None else walked.tail.index
        _find(walked, "unreadable", str(error), reached, stretch.to_index)
    walked.is_cut = walked.tail is None or walked.tail.index < stretch.to_index
    return walked


def _frames(origin: Origin, stretch: Stretch) -> Iterator[FrameHeader]:
    """The frames whose first record lies in a stretch."""
    for rows in origin.rows(stretch, Skimmer()):
        for header, _ in rows.frames:
            if stretch.from_index <= header.index < stretch.to_index:
                yield header


def _check_sha256(origin: ArchiveFiles, stretch: Stretch, walked: Walked) -> None:
    held = origin.manifest.files[origin.manifest.place_of(stretch.from_index)]
    with suppress(FileNotFoundError), open(os.path.join(origin.name, held.file), "rb") as file:
        if file_digest(file, "sha256").hexdigest() != held.sha256:
            _find(walked, "corrupt", "its sha256 is not the manifest's", held.from_index, held.to_index, held.file)


def _find(walked: Walked, kind: FindingKind, reason: str, from_index: int, to_index: int, file: str = "") -> None:
    walked.findings.append(Finding(walked.node, kind, reason, file, from_index=from_index, to_index=to_index))


def _gather(summary: ScrubSummary, node: str, pieces: list[Walked]) -> None:
    """Add up one node's pieces, and look at the chain where they meet."""
    told = summary.nodes[node]
    tail: Tail | None = None
    for walked in pieces:
        told.frames += walked.frames
        told.records += walked.records
        told.log_bytes += walked.log_bytes
        summary.findings += walked.findings
        before = walked.before
        if tail is not None and before is not None and (before.index, before.crc32c) != (tail.index, tail.crc32c):
            reason = f"a segment follows index {before.index}, crc32c {before.crc32c:08x}; the one before ends at "
            reason += f"{tail.index}, {tail.crc32c:08x}"
            summary.findings.append(Finding(node, "chain", reason, from_index=tail.index, to_index=before.index + 1))
        tail = None if walked.is_cut else walked.tail


def _compare(summary: ScrubSummary, walks: dict[str, list[Walked]], servers: Sequence[str]) -> None:
    """Add a finding for each node whose frames are others than most nodes', with the first that is."""
    told: dict[int, dict[str, Boundary]] = {}
    for node, of_node in walks.items():
        for walked in of_node:
            for index, boundary in walked.boundaries.items():
                told.setdefault(index, {})[node] = boundary
    is_server = {node: node in servers for node in walks}
    equal: dict[str, int] = dict.fromkeys(walks, 0)
    differing: set[str] = set()
    for index, boundaries in sorted(told.items()):
        if len(boundaries) == 1:
            continue
        most, _ = Counter(boundaries.values()).most_common(1)[0]
        model = next(node for node, boundary in boundaries.items() if boundary == most)
        for node, boundary in boundaries.items():
            summary.nodes[node].compared_to = boundary.next_index
            if boundary == most:
                equal[node] = boundary.next_index
            elif node not in differing:
                differing.add(node)
                stretch = Stretch(equal[node], index, None)
                summary.findings.append(_difference(node, model, stretch, is_server, summary.cluster_id))


def _difference(node: str, model: str, stretch: Stretch, servers: Mapping[str, bool], cluster_id: str) -> Finding:
    """The first frame of a stretch that two nodes have differently."""
    with (
        closing(_open(node, is_server=servers[node], known=cluster_id)) as own,
        closing(_open(model, is_server=servers[model], known=cluster_id)) as other,
    ):
        first = max(stretch.from_index, own.bounds().lowest_index, other.bounds().lowest_index)
        with suppress(ClusterUnavailable, FrameCorrupt, RecordsLost, ArchiveDamaged):
            for ours, theirs in zip(_all_frames(own, first, stretch), _all_frames(other, first, stretch), strict=False):
                if ours.crc32c != theirs.crc32c:
                    reason = f"its frame has crc32c {ours.crc32c:08x}, that of {model} {theirs.crc32c:08x}"
                    return Finding(node, "differs", reason, from_index=ours.index, to_index=ours.next_index)
    reason = f"somewhere in these records it differs from {model}"
    return Finding(node, "differs", reason, from_index=first, to_index=stretch.to_index)


def _all_frames(origin: Origin, from_index: int, stretch: Stretch) -> Iterator[FrameHeader]:
    for each in origin.stretches(from_index, stretch.to_index):
        yield from _frames(origin, each)
