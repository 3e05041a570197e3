"""Shared by reads and jobs: opening the log, where a read starts and ends, and a task's partition.

Jobs run without Spark, so this module imports nothing of it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from ..archive.log import ArchiveLog, JoinedLog, gap_reason, part_for, recorded_gap
from ..archive.manifest import ArchiveManifest, is_archive
from ..errors import ForeignLog, OptionRefused, RecordsLost
from ..origin.cluster import ClusterLog, cursor_index
from ..origin.data_dir import DataDirLog
from ..origin.nodes import CursorUnknown
from ..origin.origin import Bounds, Origin, Stretch
from .offsets import EARLIEST, LATEST, CursorPlace
from .options import SourceOptions

MICROSECONDS = 1000
"""Per millisecond, the unit of timestamp options, as in the Kafka connector."""

_journal = logging.getLogger(__name__)


class LogPartition(NamedTuple):
    """The input of one task: a stretch of the log of one cluster, and the nodes to ask for it."""

    stretch: Stretch
    cluster_id: str
    servers: tuple[str, ...]
    """In the order in which the task asks them, which differs between tasks."""
    archived: ArchiveManifest | None = None
    """The part of the archive's manifest that the task needs, if there is an archive."""
    follows: int | None = None
    """The crc32c of the frame that holds the record before the stretch, if a stream has read that record."""


def partitions_of(origin: Origin, cluster_id: str, stretches: Sequence[Stretch]) -> list[LogPartition]:
    """Each stretch as a partition, whose task asks the nodes in an order of its own."""
    return [
        LogPartition(stretch, cluster_id, origin.servers_of(number), part_for(origin, stretch))
        for number, stretch in enumerate(stretches)
    ]


def open_origin(options: SourceOptions) -> Origin:
    """The log that the options name.

    Raises:
        NoLog: there is none at the path.
    """
    if options.path is not None:
        return _with_archive(options, log_at(options.path))
    return _with_archive(options, ClusterLog(options.bootstrap, options.fetchTimeoutMs / 1000, access=options.access))


def log_at(path: str) -> Origin:
    """The log in a data_dir or in an archive.

    Raises:
        NoLog: the path holds neither.
        ArchiveDamaged, ArchiveGap: it is an archive whose manifest is damaged or has a gap.
    """
    return ArchiveLog(path) if is_archive(path) else DataDirLog(path)


def _with_archive(options: SourceOptions, live: Origin, part: ArchiveManifest | None = None) -> Origin:
    return live if options.archive is None else JoinedLog(ArchiveLog(options.archive, part), live)


def origin_of(options: SourceOptions, partition: LogPartition) -> Origin:
    """The log that a task reads from.

    Raises:
        NoLog: there is none at the path on this machine.
        AccessRefused: the token's file, or the CA's, cannot be used on this machine.
        ForeignLog: the path holds the log of another cluster.
    """
    if options.path is None:
        timeout_s = options.fetchTimeoutMs / 1000
        live = ClusterLog(partition.servers, timeout_s, known=partition.cluster_id, access=options.access)
        return _with_archive(options, live, partition.archived)
    if options.archive is None and partition.archived is not None:
        return ArchiveLog(options.path, partition.archived)
    origin = _with_archive(options, log_at(options.path), partition.archived)
    found = origin.cluster_id()
    if found != partition.cluster_id:
        raise ForeignLog(origin.name, found, partition.cluster_id)
    return origin


def starting_index(options: SourceOptions, origin: Origin, bounds: Bounds) -> int:
    """The first index to read.

    Raises:
        OptionRefused: it is past the end of the log, no record is as recent as the starting timestamp, or there is no
            such cursor.
        ClusterUnavailable: no node said in time where the cursor is.
        RecordsLost: the record has expired, or may be one of a segment that is missing.
    """
    if options.startingTimestamp is not None:
        index = _index_at(options, origin, options.startingTimestamp, bounds)
        if index == bounds.highest_index and options.startingOffsetsByTimestampStrategy == "error":
            reason = (
                f"no record is as recent as {options.startingTimestamp} ms; the log ends at index {index}. "
                "startingOffsetsByTimestampStrategy=latest starts with the next record"
            )
            raise OptionRefused("startingTimestamp", reason)
        gap = recorded_gap(origin, index - 1)  # Its records may be as recent, too.
        return index if gap is None else held_index(options, origin, bounds, gap.from_index, index)
    place = options.startingOffsets
    if place == EARLIEST:
        return bounds.lowest_index
    if place == LATEST:
        return bounds.highest_index
    if isinstance(place, CursorPlace):
        index = _cursor_index(options, origin, place.name)
        return held_index(options, origin, bounds, index, max(index, bounds.highest_index))
    if place > bounds.highest_index:
        raise OptionRefused("startingOffsets", f"index {place} is past the end of the log, {bounds.highest_index}")
    return held_index(options, origin, bounds, place, bounds.highest_index)


def _cursor_index(options: SourceOptions, origin: Origin, name: str) -> int:
    """Where a cursor is. Its consumer may have committed since the bounds were read, so it may be past their end."""
    try:
        return cursor_index(origin.servers, options.fetchTimeoutMs / 1000, options.access, name)
    except CursorUnknown:
        raise OptionRefused("startingOffsets", f"the cluster has no cursor {name}") from None


def ending_index(options: SourceOptions, origin: Origin, bounds: Bounds) -> int:
    """The index to stop before; if the options name an index, it may be past the end of the log.

    Raises:
        RecordsLost: it is a time among the records of a segment that is missing.
    """
    if options.endingTimestamp is not None:
        return _index_at(options, origin, options.endingTimestamp, bounds)
    place = options.endingOffsets
    return bounds.highest_index if isinstance(place, str) else place


def _index_at(options: SourceOptions, origin: Origin, timestamp_ms: int, bounds: Bounds) -> int:
    """The first index that is not older than a time. Records that are lost there end a read, or are skipped."""
    try:
        return origin.index_at(timestamp_ms * MICROSECONDS, bounds)
    except RecordsLost as lost:
        if options.failOnDataLoss:
            raise
        _journal.warning("%s", lost)
        return lost.to_index


def held_index(options: SourceOptions, origin: Origin, bounds: Bounds, index: int, to_index: int) -> int:
    """`index`; or, if it has expired, or is in a gap of an archive, and failOnDataLoss is false, the next one held.

    Raises:
        RecordsLost: it is not held.
    """
    gap = recorded_gap(origin, index)
    held = bounds.lowest_index if gap is None else gap.to_index
    if index >= held:
        return index
    lost = RecordsLost(origin.name, index, min(to_index, held), "they have expired" if gap is None else gap_reason(gap))
    if options.failOnDataLoss:
        raise lost
    _journal.warning("%s", lost)
    return held


def held_stretches(
    options: SourceOptions, origin: Origin, from_index: int, to_index: int, least: int = 1
) -> list[Stretch]:
    """The origin's stretches, without those in a recorded gap of an archive if failOnDataLoss is false.

    What nodes have lost between other records is a stretch then, too: its task looks for it once more, and skips it.

    Raises:
        RecordsLost: a gap is among the records, or they are lost.
    """
    if from_index >= to_index:
        return []
    bounds = Bounds(from_index, to_index)
    try:
        found = origin.stretches(from_index, to_index, least)
    except RecordsLost as lost:
        if options.failOnDataLoss:
            raise
        before = held_stretches(options, origin, from_index, lost.from_index, least)
        after = held_stretches(options, origin, lost.to_index, to_index, least)
        return [*before, Stretch(lost.from_index, lost.to_index, None), *after]
    return [each for each in found if held_index(options, origin, bounds, each.from_index, to_index) == each.from_index]
