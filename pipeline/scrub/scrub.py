"""`scrub`: verify every frame of some nodes' logs by crc and chain, and compare the nodes with each other.

A node is a data_dir, whether its process runs or not; an archive; or an address, which is asked for raw frames. Faults
are reported as findings, not raised, so a scrub covers everything that can be read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from hashlib import file_digest
from typing import TYPE_CHECKING, NamedTuple

from quire.log import FrameCorrupt, Tail

from ..archive.log import ArchiveLog, gap_reason, part_for, recorded_gaps
from ..archive.manifest import ArchiveManifest, RecordedGap, look_up, open_parquet
from ..errors import ArchiveDamaged, ClusterUnavailable, ForeignLog, RecordsLost
from ..origin.access import PLAIN, Access
from ..origin.origin import Origin, Stretch
from ..pieces import Progress, absolute_path, no_progress, spread
from .comparison import ScrubNode, compare, frames_within
from .segment import scrub_segment
from .walk import Finding, FindingKind, WalkedPiece

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ScrubPiece(NamedTuple):
    """A stretch of one node's log."""

    node: ScrubNode
    cluster_id: str
    stretch: Stretch
    ends: tuple[int, ...]
    """Where each of the logs ends."""
    archived: ArchiveManifest | None
    """Of an archive, the part of its manifest with the file."""


@dataclass(slots=True)
class ScrubbedNode:
    """What was read of one node."""

    from_index: int
    to_index: int
    frames: int = 0
    records: int = 0
    log_bytes: int = 0
    compared_to: int | None = None
    """The last boundary at which it was compared with another node; None if it shares none with any."""


@dataclass(slots=True)
class ScrubSummary:
    """What a scrub read, and what it found."""

    cluster_id: str
    nodes: dict[str, ScrubbedNode] = field(default_factory=dict[str, ScrubbedNode])
    findings: list[Finding] = field(default_factory=list[Finding])
    seconds: float = 0.0

    @property
    def is_whole(self) -> bool:
        """Whether every record that a log should have was read, is intact, and is the same on each node."""
        return all(finding.kind in ("index", "gap") for finding in self.findings)

    @property
    def is_same(self) -> bool:
        """Whether each log was compared with another, and none differs."""
        return self.is_whole and all(node.compared_to is not None for node in self.nodes.values())

    @property
    def verdict(self) -> str:
        """The result as text."""
        if not self.is_whole:
            return "NOT whole"
        gaps = sum(finding.kind == "gap" for finding in self.findings)
        noun = "gap" if gaps == 1 else "gaps"
        whole = f"whole, apart from {gaps} recorded {noun}" if gaps else "whole"
        if self.is_same:
            return f"{whole}, and the same on each"
        alone = ", ".join(name for name, node in self.nodes.items() if node.compared_to is None)
        return f"{whole}; compared with no other: {alone}" if len(self.nodes) > 1 else whole


def scrub(
    paths: Sequence[str] = (),
    servers: Sequence[str] = (),
    *,
    access: Access = PLAIN,
    spark: SparkSession | None = None,
    progress: Progress = no_progress,
) -> ScrubSummary:
    """Verify every committed frame of the data_dirs and archives at `paths` and of the nodes at `servers`.

    Executors must see the paths and reach the servers. Without Spark, this process does all the work.

    Raises:
        OptionRefused: a path is a URL.
        NoLog: there is none at a path.
        ForeignLog: the logs are of different clusters.
        ClusterUnavailable: a node does not answer at all.
        AccessRefused: a file that `access` names cannot be used.
    """
    began = time.monotonic()
    nodes = [*(ScrubNode(absolute_path(path, "path"), False) for path in paths)]
    nodes += [ScrubNode(server, True, access) for server in servers]
    pieces: list[ScrubPiece] = []
    walks: dict[ScrubNode, dict[int, WalkedPiece]] = {node: {} for node in nodes}
    summary = ScrubSummary("")
    for node in nodes:
        with closing(node.open()) as origin:
            cluster_id, (low, high) = origin.cluster_id(), origin.bounds()
            if cluster_id != (summary.cluster_id or cluster_id):
                raise ForeignLog(node.name, cluster_id, summary.cluster_id)
            summary.cluster_id = cluster_id
            summary.nodes[node.name] = ScrubbedNode(low, high)
            walks[node] = {gap.from_index: _walked_gap(node, gap) for gap in recorded_gaps(origin)}
            pieces += [
                ScrubPiece(node, cluster_id, stretch, (), part_for(origin, stretch))
                for stretch in _stretches(origin, low, high)
            ]
    # The chain ends before a gap, too: what is before it is compared there.
    ends = tuple({node.to_index for node in summary.nodes.values()}.union(*walks.values()))
    pieces = [piece._replace(ends=ends) for piece in pieces]
    done, total = 0, sum(piece.stretch.to_index - piece.stretch.from_index for piece in pieces)
    progress(0, total)
    for outcome in spread(spark, _walk, pieces):
        piece = pieces[outcome.place]
        walks[piece.node][piece.stretch.from_index] = outcome.result
        done += piece.stretch.to_index - piece.stretch.from_index
        progress(done, total)
    for node, of_node in walks.items():
        _gather(summary, node.name, [of_node[first] for first in sorted(of_node)])
    comparison = compare({node: list(of_node.values()) for node, of_node in walks.items()}, summary.cluster_id)
    summary.findings += comparison.findings
    for name, index in comparison.compared_to.items():
        summary.nodes[name].compared_to = index
    summary.seconds = time.monotonic() - began
    return summary


def _stretches(origin: Origin, low: int, high: int) -> Sequence[Stretch]:
    if not isinstance(origin, ArchiveLog):
        try:
            return origin.stretches(low, high)
        except ClusterUnavailable:  # Damage may keep a node from saying where frames end: the walk reports what it is.
            return [Stretch(low, high, None)]
    # Every file that the manifest names, missing ones included: the walk reports those.
    return [Stretch(held.from_index, held.to_index, held.segment) for held in origin.manifest.files]


def _walk(piece: ScrubPiece) -> WalkedPiece:
    stretch, name = piece.stretch, piece.node.name
    if not piece.node.is_server and piece.archived is None:
        try:
            return scrub_segment(name, stretch.from_index, stretch.to_index, piece.ends)
        except FileNotFoundError:
            return _missing(piece)
    walked = WalkedPiece(name, piece.ends)
    try:
        with closing(_opened(piece)) as origin:
            if isinstance(origin, ArchiveLog):
                _check_sha256(origin, stretch, walked)
            for header in frames_within(origin, stretch):
                if (broken := walked.add(header)) is not None:
                    _find(walked, "chain", broken, header.index, header.next_index)
    except ArchiveDamaged as error:
        if not any(finding.kind == "corrupt" for finding in walked.findings):
            reached = stretch.from_index if walked.tail is None else walked.tail.index
            _find(walked, "corrupt", error.reason, reached, stretch.to_index, error.file)
    except RecordsLost:
        return WalkedPiece(name)
    except (ClusterUnavailable, FrameCorrupt) as error:
        reached = stretch.from_index if walked.tail is None else walked.tail.index
        _find(walked, "unreadable", str(error), reached, stretch.to_index)
    walked.is_cut = walked.tail is None or walked.tail.index < stretch.to_index
    return walked


def _walked_gap(node: ScrubNode, gap: RecordedGap) -> WalkedPiece:
    walked = WalkedPiece(node.name, tail=gap.tail)
    _find(walked, "gap", gap_reason(gap), gap.from_index, gap.to_index)
    return walked


def _opened(piece: ScrubPiece) -> Origin:
    """The log of a piece. Raises NoLog, and as `ScrubNode.open`."""
    if piece.archived is not None:
        return ArchiveLog(piece.node.name, piece.archived)
    return piece.node.open(piece.cluster_id)


def _missing(piece: ScrubPiece) -> WalkedPiece:
    """A segment whose file was there when the scrub began. It has expired, unless an older one is still there."""
    stretch, walked = piece.stretch, WalkedPiece(piece.node.name)
    with closing(piece.node.open()) as origin:
        if origin.bounds().lowest_index < stretch.from_index:
            _find(walked, "corrupt", "its segment is missing", stretch.from_index, stretch.to_index)
    return walked


def _check_sha256(origin: ArchiveLog, stretch: Stretch, walked: WalkedPiece) -> None:
    held = origin.manifest.files[origin.manifest.place_of(stretch.from_index)]
    with suppress(OSError), look_up(origin.name, held, open_parquet) as file:
        if os.fstat(file.fileno()).st_size != held.file_bytes:
            return  # The walk says so.
        if file_digest(file, "sha256").hexdigest() != held.sha256:
            reason = "its sha256 differs from the manifest's"
            _find(walked, "corrupt", reason, held.from_index, held.to_index, held.file)


def _find(walked: WalkedPiece, kind: FindingKind, reason: str, from_index: int, to_index: int, file: str = "") -> None:
    walked.findings.append(Finding(walked.node, kind, reason, file, from_index=from_index, to_index=to_index))


def _gather(summary: ScrubSummary, node: str, pieces: list[WalkedPiece]) -> None:
    """Add up the pieces of one node, in order, and check the chain from each piece to the next."""
    scrubbed = summary.nodes[node]
    tail: Tail | None = None
    for walked in pieces:
        scrubbed.frames += walked.frames
        scrubbed.records += walked.records
        scrubbed.log_bytes += walked.log_bytes
        summary.findings += walked.findings
        before = walked.before
        if tail is not None and before is not None and (before.index, before.crc32c) != (tail.index, tail.crc32c):
            reason = f"a segment follows index {before.index}, crc32c {before.crc32c:08x}; the previous one ends at "
            reason += f"{tail.index}, {tail.crc32c:08x}"
            summary.findings.append(Finding(node, "chain", reason, from_index=tail.index, to_index=before.index + 1))
        tail = None if walked.is_cut else walked.tail
