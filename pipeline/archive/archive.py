"""`archive`: append the committed log to an archive, each record once, even if runs are interrupted.

Tasks write files, one or more for each piece of the log; only this process adds them to the archive, in the order of
the log. A run continues where the archive ends.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from ..errors import ArchiveGap, RecordsLost
from ..origin.origin import Bounds, Origin, Stretch
from ..pieces import Progress, absolute, absolute_path, no_progress, refuse_ranges, spread, whole_frames
from ..source.options import SourceOptions
from ..source.reading import LogPartition, open_origin, origin_of
from .appender import ArchiveAppender, open_archive
from .log import GAP_ADVICE, recorded_gaps
from .manifest import is_archive
from .snapshots import copy_genesis, copy_snapshots
from .writer import Written, write_stretch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .hold import LogHold


@dataclass(frozen=True, slots=True)
class ArchiveSummary:
    """What a run added: the records [from_index, to_index)."""

    archive: str
    cluster_id: str
    from_index: int
    to_index: int
    files: int
    log_bytes: int
    file_bytes: int
    snapshots: list[int]
    """Indices of the snapshots that were copied."""
    seconds: float
    gaps: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """The gaps [from, to) before and between these records that were accepted and recorded."""

    @property
    def records(self) -> int:
        """The number of records added."""
        return self.to_index - self.from_index - sum(last - first for first, last in self.gaps)


def archive(
    options: SourceOptions,
    path: str,
    *,
    accept_gap: bool = False,
    hold: LogHold | None = None,
    spark: SparkSession | None = None,
    progress: Progress = no_progress,
) -> ArchiveSummary:
    """Append to the archive at `path` all that the log has committed after the archive's end.

    The options name the log (`path` or `bootstrap`). Executors must see the archive, too. Each file is durable and part
    of the archive as soon as it is appended. With `accept_gap`, records that were lost before they were archived are
    recorded in the archive as a gap: they have expired, or their segment is missing in a data_dir. `hold` keeps the log
    after the archive's end from expiring; a process uses one for all its runs. Without Spark, this process does all the
    work.

    Raises:
        OptionRefused: the options select a part of the log, a path is a URL, or `path` holds something other than an
            archive.
        ArchiveGap: the log has lost records after the archive's end, and `accept_gap` is false.
        ForeignLog, ArchiveDiverges: the archive is of another cluster, or of another history.
        LogLocked: another process appends to the archive.
        FrameCorrupt, ClusterUnavailable: from the log.
        RecordsLost: records have expired during this run; the next one finds a gap.
        HoldRefused: from `hold`.
    """
    refuse_ranges(options)
    options, path = absolute(options), absolute_path(path, "archive")
    began = time.monotonic()
    with closing(open_origin(options)) as origin, open_archive(path) as keeper:
        cluster_id, bounds = origin.cluster_id(), origin.bounds()
        keeper.check_cluster(origin.name, cluster_id)
        start = bounds.lowest_index if keeper.tail is None else keeper.tail.index
        end = max(start, bounds.highest_index)
        for gap in _gaps(origin, bounds, start, end):
            _accept(keeper, gap.from_index, gap.to_index, accept_gap=accept_gap)
        if hold is not None:
            hold.commit(max(start, bounds.lowest_index), origin.servers)
        written: list[Written] = []
        progress(0, end - start)
        for each in _new_files(options, origin, keeper, Bounds(start, end), spark, accept_gap=accept_gap):
            keeper.commit(origin.name, cluster_id, each)
            written.append(each)
            progress(each.held.to_index - start, end - start)
            if hold is not None:
                hold.commit(each.held.to_index, origin.servers)
        copied = _copy_snapshots(options, keeper, path)
    return ArchiveSummary(
        archive=path,
        cluster_id=cluster_id,
        from_index=start,
        to_index=written[-1].held.to_index if written else start,
        files=len(written),
        log_bytes=sum(each.held.log_bytes for each in written),
        file_bytes=sum(each.held.file_bytes for each in written),
        snapshots=copied,
        seconds=time.monotonic() - began,
        gaps=[(gap.from_index, gap.to_index) for gap in keeper.recorded],
    )


def _gaps(origin: Origin, bounds: Bounds, start: int, end: int) -> list[Stretch]:
    """What the log lacks of the records [start, end): those that have expired, and an archive's recorded gaps."""
    expired = [Stretch(start, bounds.lowest_index, None)] if start < bounds.lowest_index else []
    begin = max(start, bounds.lowest_index)
    clipped = [Stretch(max(gap.from_index, begin), min(gap.to_index, end), None) for gap in recorded_gaps(origin)]
    return expired + [gap for gap in clipped if gap.from_index < gap.to_index]


def _accept(keeper: ArchiveAppender, from_index: int, to_index: int, *, accept_gap: bool) -> None:
    """Let the archive go on after a gap. Raises ArchiveGap: gaps are not accepted."""
    if not accept_gap:
        raise ArchiveGap(keeper.path, from_index, to_index, GAP_ADVICE)
    keeper.accept_gap(from_index, to_index)


def _new_files(
    options: SourceOptions,
    origin: Origin,
    keeper: ArchiveAppender,
    bounds: Bounds,
    spark: SparkSession | None,
    *,
    accept_gap: bool,
) -> Iterator[Written]:
    """The files of the records within the bounds that are in no gap, in order; each is committed before the next."""
    reached, end = bounds
    while True:
        try:
            parts = keeper.beside_gaps(reached, end)
            pieces = [piece for part in parts for piece in whole_frames(origin, options, *part)]
            for each in _in_order(options, keeper.path, pieces, spark):
                yield each
                reached = each.held.to_index
            return
        except RecordsLost as error:
            if origin.bounds().lowest_index > error.from_index:
                raise  # They have expired meanwhile.
            # A segment is missing, which only reading finds: what is beside it is planned again.
            _accept(keeper, max(reached, error.from_index), error.to_index, accept_gap=accept_gap)


def _in_order(
    options: SourceOptions, path: str, pieces: list[LogPartition], spark: SparkSession | None
) -> Iterator[Written]:
    """The files of all pieces in the order of the log. Files that are written out of order wait for earlier ones."""
    waiting: dict[int, list[Written]] = {}
    next_place = 0
    for outcome in spread(spark, partial(_write, options, path), pieces):
        waiting[outcome.place] = outcome.result
        while next_place in waiting:
            yield from waiting.pop(next_place)
            next_place += 1


def _write(options: SourceOptions, path: str, piece: LogPartition) -> list[Written]:
    with closing(origin_of(options, piece)) as origin:
        return write_stretch(origin, path, piece.stretch)


def _copy_snapshots(options: SourceOptions, keeper: ArchiveAppender, path: str) -> list[int]:
    """Copy a data_dir's genesis and the snapshots within the archived log. Nodes do not serve theirs over HTTP."""
    if options.path is None or is_archive(options.path) or keeper.tail is None:
        return []
    copy_genesis(options.path, path)
    return copy_snapshots(options.path, path, keeper.tail.index)
