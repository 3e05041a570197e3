"""`replay`: apply a log again, from its start or its snapshots, and compare the results with the cluster's.

The stretches between snapshots are independent: each starts from a snapshot and must arrive at the digest and content
of the next one. So they run in parallel, and if all of them are correct, the whole history is.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ..archive.log import gap_reason, recorded_gaps
from ..archive.snapshots import StoredSnapshot, stored_snapshots
from ..errors import ForeignLog, GroundMissing, MachineDiffers, OptionRefused
from ..origin.access import PLAIN, Access
from ..origin.origin import Bounds, Origin
from ..pieces import Progress, absolute, no_progress, refuse_ranges, spread, whole_frames
from ..source.options import SourceOptions
from ..source.reading import open_origin
from .answers import EQUAL, EQUAL_BY_DIGEST, NodeAnswer, ask, place_of
from .difference import Difference
from .genesis import Genesis, genesis_of
from .keys import KeyDifference, KeyPiece, ReplayedKeys, is_by_key, is_crowded, replay_keys
from .stretch import RecordedDigest, Replayed, ReplayPiece, replay_stretch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(slots=True)
class ReplaySummary:
    """What was replayed, and what differs."""

    cluster_id: str
    machine: str
    from_index: int
    to_index: int
    records: int = 0
    stretches: int = 0
    checked: int = 0
    """The number of digests that were compared and are equal."""
    digest: str = ""
    """The digest at the end."""
    compared_to: int = 0
    """The last index at which a digest, or the values of keys, were compared."""
    difference: Difference | None = None
    """The first one."""
    compared_keys: int = 0
    """The number of values compared at all snapshots, if stretches were replayed in parts by key."""
    keys: list[KeyDifference] = field(default_factory=list[KeyDifference])
    """The keys that differ, if stretches were replayed in parts by key."""
    live: dict[str, str] = field(default_factory=dict[str, str])
    """By node: `equal` (perhaps only by its digest), how its answer differs, or why it was not compared."""
    left_out: list[str] = field(default_factory=list[str])
    """What was not replayed: snapshots whose manifest is damaged, whose index a longer stretch spans; records before a
    gap of an archive."""
    seconds: float = 0.0

    @property
    def is_proven(self) -> bool:
        """Whether something was compared, including every node that was asked, and nothing differs."""
        is_right = self.difference is None and not self.keys and set(self.live.values()) <= {EQUAL, EQUAL_BY_DIGEST}
        return is_right and self.compared_to > self.from_index

    @property
    def verdict(self) -> str:
        """The result as text: whether the log is proven, and how far."""
        if self.is_proven and self.compared_to < self.to_index:
            return f"proven up to index {self.compared_to}: nothing was compared from there to {self.to_index}"
        if self.is_proven:
            return "proven: all of it follows from the log"
        if self.difference is not None or self.keys:
            return "NOT proven"
        if self.live:
            return "NOT proven: not every node was compared"
        return "NOT proven: there is nothing to compare with, no snapshot and no node's answer"


class _Span(NamedTuple):
    """A stretch between two snapshots, or the ends of the log."""

    from_index: int
    to_index: int
    start: StoredSnapshot | None
    end: StoredSnapshot | None


def replay(
    options: SourceOptions,
    *,
    machine: str | None = None,
    servers: Sequence[str] = (),
    access: Access = PLAIN,
    key_parts: int = 1,
    spark: SparkSession | None = None,
    progress: Progress = no_progress,
) -> ReplaySummary:
    """Replay the log at `path`, a data_dir or an archive, and compare digests at every snapshot.

    With `servers`, nodes of the cluster, their answers are compared, too (`access` is for them): each node's state and
    digest with those of the replay at the index that the node has applied. With `key_parts` above 1, which only machine
    `kv` supports, each stretch that ends at a snapshot and contains no node's answer is also split into that many parts
    by key, and values are compared instead of digests; unless the state may have reached its limit in it: then it is
    replayed again as a whole. An `archive` in the options is read before `path`.
    Executors must be able to import the machine. Without Spark, this process does all the work.

    Raises:
        OptionRefused: `path` is missing, the options select a part of the log, or the machine does not support
            `key_parts`.
        GenesisMissing, GroundMissing: there is nothing to start from.
        MachineDiffers, MachineUnknown: the cluster's machine is not available here.
        ApplyFailed: the machine failed at an index.
        SnapshotDamaged: a snapshot to start from is damaged.
        ArchiveGap, ArchiveDamaged, FrameCorrupt, RecordsLost, ForeignLog: from the log.
    """
    refuse_ranges(options)
    options = absolute(options)
    began = time.monotonic()
    path = options.archive or options.path
    if path is None or options.path is None:
        raise OptionRefused("path", "a replay reads files: name a data_dir or an archive")
    with closing(open_origin(options)) as origin:
        cluster_id, bounds = origin.cluster_id(), origin.bounds()
        genesis = genesis_of(path, origin)
        # Refuse a machine that is not available before any work starts.
        if not is_by_key(genesis.new_machine(machine)) and key_parts > 1:
            raise OptionRefused("key_parts", f"machine {genesis.machine[0]} does not have independent keys")
        live = [ask(server, cluster_id, access) for server in servers]
        snapshots, left_out = _snapshots(
            sorted({path, options.path}), genesis.cluster_id or cluster_id, genesis.machine
        )
        gaps = recorded_gaps(origin)
        if gaps:  # Nothing leads across a gap, so the log begins after the last one for a replay.
            left_out.append(f"records [{bounds.lowest_index}, {gaps[-1].to_index}): {gap_reason(gaps[-1])}")
            bounds = bounds._replace(lowest_index=gaps[-1].to_index)
        spans = _spans(origin.name, bounds, snapshots, f"; {left_out[-1]}" if gaps else "")
        pieces = [_piece(options, origin, span, genesis, machine, live) for span in spans]
    summary = ReplaySummary(
        cluster_id, " version ".join(map(str, genesis.machine)), *_range(pieces, bounds), left_out=left_out
    )
    work = [part for piece in pieces for part in _parts(piece, key_parts)]
    found, of_keys = _run(work, spark, progress)
    if crowded := _crowded(pieces, of_keys):
        begins = {piece.from_index for piece in crowded}
        of_keys = [part for part in of_keys if part.from_index not in begins]
        found += _run(list(crowded), spark, progress)[0]
    _sum_up(summary, found, of_keys)
    summary.stretches = len(pieces)
    summary.live = _verdicts(live, found, of_keys, Bounds(summary.from_index, summary.to_index))
    summary.seconds = time.monotonic() - began
    return summary


def _run(
    work: list[ReplayPiece | KeyPiece], spark: SparkSession | None, progress: Progress
) -> tuple[list[Replayed], list[ReplayedKeys]]:
    found: list[Replayed] = []
    of_keys: list[ReplayedKeys] = []
    done, total = 0, sum(_length(each) for each in work)
    progress(0, total)
    for outcome in spread(spark, _work, work):
        if isinstance(outcome.result, ReplayedKeys):
            of_keys.append(outcome.result)
        else:
            found.append(outcome.result)
        done += _length(work[outcome.place])
        progress(done, total)
    return found, of_keys


def _verdicts(
    live: list[NodeAnswer], found: list[Replayed], of_keys: list[ReplayedKeys], replayed: Bounds
) -> dict[str, str]:
    """By node: how its answer compares. A difference at a snapshot affects every node that is compared after it."""
    wrong = {each.to_index: f"at index {each.to_index}" for each in of_keys if each.differences}
    servers = {node.server for node in live}
    for difference in (difference for each in found for difference in each.differences):
        if difference.source not in servers:
            wrong[difference.boundary] = place_of(difference)
    return {node.server: node.verdict(found, wrong, replayed) for node in live}


def _parts(piece: ReplayPiece, key_parts: int) -> list[ReplayPiece | KeyPiece]:
    # Parts compare values with the snapshot at the end. To compare a node's answer, one task must replay all keys.
    is_asked = any(not expected.sha256 for expected in piece.digests)
    if key_parts == 1 or piece.end is None or is_asked:
        return [piece]
    return [KeyPiece(piece, part, key_parts) for part in range(key_parts)]


def _crowded(pieces: list[ReplayPiece], of_keys: list[ReplayedKeys]) -> list[ReplayPiece]:
    """The stretches whose parts prove nothing, because a limit on the state may have refused commands of them."""
    parts: dict[int, list[ReplayedKeys]] = {}
    for part in of_keys:
        parts.setdefault(part.from_index, []).append(part)
    return [piece for piece in pieces if piece.from_index in parts and is_crowded(parts[piece.from_index])]


def _work(piece: ReplayPiece | KeyPiece) -> Replayed | ReplayedKeys:
    return replay_keys(piece) if isinstance(piece, KeyPiece) else replay_stretch(piece)


def _length(piece: ReplayPiece | KeyPiece) -> int:
    stretch = piece.stretch if isinstance(piece, KeyPiece) else piece
    return stretch.to_index - stretch.from_index


def _sum_up(summary: ReplaySummary, found: list[Replayed], of_keys: list[ReplayedKeys]) -> None:
    found.sort(key=lambda each: each.from_index)
    of_keys.sort(key=lambda each: (each.from_index, each.part))
    stretches = [each for each in of_keys if each.part == 0]
    summary.records = sum(each.records for each in found) + sum(each.to_index - each.from_index for each in stretches)
    summary.checked = sum(len(each.equal) for each in found)
    boundaries = [boundary for each in found for boundary in each.equal.values()] + [each.to_index for each in of_keys]
    summary.compared_to = max(boundaries, default=summary.from_index)
    summary.digest = found[-1].digest if found else ""
    summary.difference = next((difference for each in found for difference in each.differences), None)
    summary.compared_keys = sum(each.keys for each in of_keys)
    summary.keys = [difference for each in of_keys for difference in each.differences]


def _range(pieces: list[ReplayPiece], bounds: Bounds) -> tuple[int, int]:
    if not pieces:
        return bounds.highest_index, bounds.highest_index
    return pieces[0].from_index, pieces[-1].to_index


def _snapshots(paths: list[str], cluster_id: str, machine: tuple[str, int]) -> tuple[list[StoredSnapshot], list[str]]:
    """The snapshots at the paths, one for each index, ascending; and a text for each damaged one.

    Raises:
        ForeignLog: one is of another cluster.
        MachineDiffers: one is of another machine or version.
    """
    found: dict[int, StoredSnapshot] = {}
    left_out: list[str] = []
    for path in paths:
        stored = stored_snapshots(path)
        left_out += [f"{path}: {error}" for error in stored.damaged]
        for manifest in stored.manifests:
            if manifest.cluster_id.hex() != cluster_id:
                raise ForeignLog(f"{path}, snapshot {manifest.index}", manifest.cluster_id.hex(), cluster_id)
            if manifest.machine != machine:
                raise MachineDiffers(manifest.machine, machine)
            found.setdefault(manifest.index, StoredSnapshot(path, manifest))
    return [found[index] for index in sorted(found)], left_out


def _spans(name: str, bounds: Bounds, snapshots: list[StoredSnapshot], reason: str) -> list[_Span]:
    """The stretches, in order. `reason`: why the log begins where it does. Raises GroundMissing."""
    low, high = bounds
    held = [each for each in snapshots if low <= each.manifest.index <= high and each.manifest.index > 0]
    starts: list[StoredSnapshot | None] = [None, *held] if low == 0 else [*held]
    if not starts:
        raise GroundMissing(name, low, high, [each.manifest.index for each in snapshots], reason)
    ends: list[StoredSnapshot | None] = [*starts[1:], None]
    spans = [
        _Span(start.manifest.index if start else 0, end.manifest.index if end else high, start, end)
        for start, end in zip(starts, ends, strict=True)
    ]
    return [span for span in spans if span.from_index < span.to_index]


def _piece(
    options: SourceOptions, origin: Origin, span: _Span, genesis: Genesis, machine: str | None, live: list[NodeAnswer]
) -> ReplayPiece:
    digests = [
        RecordedDigest(node.index, node.digest, node.server, state=node.state)
        for node in live
        if span.from_index < node.index <= span.to_index
    ]
    if span.end is not None:
        end, path = span.end.manifest, span.end.path
        source = f"the snapshot {end.index} of {path}"
        digests.append(RecordedDigest(end.index, end.boundary.digest.hex(), source, end.sha256.hex()))
    return ReplayPiece(
        options=options,
        partitions=whole_frames(origin, options, span.from_index, span.to_index),
        from_index=span.from_index,
        to_index=span.to_index,
        genesis=genesis,
        machine_spec=machine,
        start=span.start,
        end=span.end,
        digests=sorted(digests, key=lambda expected: expected.index),
    )
