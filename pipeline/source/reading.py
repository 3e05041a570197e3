"""What both kinds of reading share: where a read begins and ends, and what a task does with its stretch."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from quire.log.packing import Skimmer

from ..archive.files import ArchiveFiles
from ..archive.manifest import is_archive
from ..errors import ForeignLog, OptionRefused, RecordsLost
from ..origin.cluster import Cluster
from ..origin.files import LogFiles
from ..origin.joined import JoinedLog
from ..origin.origin import Bounds, Origin, Stretch
from .columns import batches_of
from .offsets import EARLIEST, LATEST
from .options import SourceOptions

MICROSECONDS = 1000
"""In one of the milliseconds that timestamps are given in, as to the Kafka connector."""

_journal = logging.getLogger(__name__)


class StretchPartition(InputPartition):
    """What one task of Spark reads, of which cluster's log, and from which of its nodes."""

    def __init__(self, stretch: Stretch, cluster_id: str, servers: tuple[str, ...], turn: int) -> None:
        super().__init__((tuple(stretch), cluster_id, servers, turn))
        self.stretch = stretch
        self.cluster_id = cluster_id
        self.servers = servers
        self.turn = turn
        """Tasks of different turns ask different nodes first."""


def open_origin(options: SourceOptions) -> Origin:
    """The log that the options name.

    Raises:
        NoLog: there is none at the path.
    """
    if options.path is not None:
        return _beside_archive(options, files_at(options.path))
    return _beside_archive(options, Cluster(options.bootstrap, options.fetchTimeoutMs / 1000))


def files_at(path: str) -> Origin:
    """The log in a data_dir or in an archive.

    Raises:
        NoLog: there is none of both.
        ArchiveDamaged, ArchiveGap: it is an archive, and not whole.
    """
    return ArchiveFiles(path) if is_archive(path) else LogFiles(path)


def _beside_archive(options: SourceOptions, live: Origin) -> Origin:
    return live if options.archive is None else JoinedLog(ArchiveFiles(options.archive), live)


def servers_of(origin: Origin) -> tuple[str, ...]:
    """The nodes that a task may ask; none where it reads files."""
    live = origin.live if isinstance(origin, JoinedLog) else origin
    return live.servers if isinstance(live, Cluster) else ()


def origin_of(options: SourceOptions, partition: StretchPartition) -> Origin:
    """The log that a task reads from.

    Raises:
        NoLog: there is none at the path here.
        ForeignLog: there is another one.
    """
    if options.path is None:
        timeout_s = options.fetchTimeoutMs / 1000
        live = Cluster(partition.servers, timeout_s, known=partition.cluster_id, turn=partition.turn)
        return _beside_archive(options, live)
    origin = _beside_archive(options, files_at(options.path))
    found = origin.cluster_id()
    if found != partition.cluster_id:
        raise ForeignLog(origin.name, found, partition.cluster_id)
    return origin


def starting_index(options: SourceOptions, origin: Origin, bounds: Bounds) -> int:
    """Where the options say to begin.

    Raises:
        OptionRefused: behind the end of the log, or at a time that it has not come to.
        RecordsLost: what was asked for has expired.
    """
    if options.startingTimestamp is not None:
        index = origin.index_at(options.startingTimestamp * MICROSECONDS, bounds)
        if index == bounds.highest_index and options.startingOffsetsByTimestampStrategy == "error":
            reason = (
                f"no record is as young as {options.startingTimestamp} ms; the log ends at index {index}. "
                "startingOffsetsByTimestampStrategy=latest begins with what comes next"
            )
            raise OptionRefused("startingTimestamp", reason)
        return index
    place = options.startingOffsets
    if place == EARLIEST:
        return bounds.lowest_index
    if place == LATEST:
        return bounds.highest_index
    if place > bounds.highest_index:
        raise OptionRefused("startingOffsets", f"index {place} lies beyond the log's end, {bounds.highest_index}")
    return held_index(options, origin, bounds, place, bounds.highest_index)


def ending_index(options: SourceOptions, origin: Origin, bounds: Bounds) -> int:
    """Where the options say to end; it may lie beyond the log's end, if they name an index."""
    if options.endingTimestamp is not None:
        return origin.index_at(options.endingTimestamp * MICROSECONDS, bounds)
    place = options.endingOffsets
    return bounds.highest_index if isinstance(place, str) else place


def held_index(options: SourceOptions, origin: Origin, bounds: Bounds, index: int, to_index: int) -> int:
    """`index`, or the lowest one held where that has expired and data loss is no failure.

    Raises:
        RecordsLost: it has expired.
    """
    if index >= bounds.lowest_index:
        return index
    lost = RecordsLost(origin.name, index, min(to_index, bounds.lowest_index), "they have expired")
    if options.failOnDataLoss:
        raise lost
    _journal.warning("%s", lost)
    return bounds.lowest_index


def read_stretch(options: SourceOptions, schema: StructType, partition: StretchPartition) -> Iterator[pa.RecordBatch]:
    """The rows of a task's stretch as Arrow batches.

    Raises:
        RecordsLost: some have expired since the stretch was planned, and data loss is a failure.
        FrameCorrupt, ForeignLog, ClusterUnavailable: as the origin finds it.
    """
    arrow_schema = to_arrow_schema(schema, timezone="UTC")
    left = partition.stretch
    while left.from_index < left.to_index:
        try:
            with closing(origin_of(options, partition)) as origin:
                for rows in origin.rows(left, Skimmer()):
                    yield from batches_of(rows, arrow_schema, left.segment)
            return
        except RecordsLost as error:
            if options.failOnDataLoss:
                raise
            _journal.warning("%s", error)
            left = left._replace(from_index=error.to_index)
