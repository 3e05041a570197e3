"""`report`: the history of a cluster from its log: commands, throughput over time, changes of leader.

The log does not record how far followers lagged, so the report has only the current lag, if nodes are given. For the
past, the log shows the pauses of those who wrote, which is what clients noticed of a failover (`activity`).
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from quire.log.json_text import to_json
from quire.log.packing import Skimmer

from ..origin.access import Access
from ..origin.nodes import Nodes, document_of
from ..origin.origin import Bounds, Origin, Stretch
from ..pieces import Progress, absolute, no_progress, refuse_ranges, spread, whole_frames
from ..source.options import SourceOptions, parse_path
from ..source.reading import open_origin
from .activity import SECOND
from .figures import NodeLag, Report
from .page import page_of
from .tally import OTHER, Tally, TallyPiece, tally

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUCKETS = 120
SHOWN_OPERATIONS = 7
"""The others are counted as `other`: more colours cannot be distinguished."""
NODE_TIMEOUT_S = 10.0
WIDTHS_S = [0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800, 3600, 6 * 3600, 86_400, 7 * 86_400]


def report(
    options: SourceOptions,
    folder: str,
    *,
    servers: Sequence[str] = (),
    spark: SparkSession | None = None,
    progress: Progress = no_progress,
) -> Report:
    """Report on the log that the options name; write report.html, report-light.png, report-dark.png and report.json.

    With `servers`, the report includes their current lag. Without Spark, this process does all the work.

    Raises:
        OptionRefused: the options select a part of the log, or a path is a URL.
        ArchiveGap, ArchiveDamaged, FrameCorrupt, RecordsLost, ClusterUnavailable: from the log.
        OSError: the folder cannot be written.
    """
    refuse_ranges(options)
    options, folder = absolute(options), parse_path(folder, "folder")
    from .plot import DARK, LIGHT, plot  # noqa: PLC0415  # Matplotlib, which no other job needs.

    began = time.monotonic()
    with closing(open_origin(options)) as origin:
        cluster_id, bounds = origin.cluster_id(), origin.bounds()
        start, width = _buckets(origin, bounds)
        partitions = whole_frames(origin, options, *bounds)
    pieces = [TallyPiece(options, partition, start, width) for partition in partitions]
    found: dict[int, Tally] = {}
    done, total = 0, bounds.highest_index - bounds.lowest_index
    progress(0, total)
    for outcome in spread(spark, tally, pieces):
        found[outcome.place] = outcome.result
        stretch = partitions[outcome.place].stretch
        done += stretch.to_index - stretch.from_index
        progress(done, total)
    counted = Tally(start, width)
    for place in sorted(found):
        counted.add(found[place])
    made = _made(cluster_id, bounds, counted)
    made.lag = [_lag(server, options.access) for server in servers]
    made.seconds = time.monotonic() - began
    _write(made, folder, plot(made, LIGHT), plot(made, DARK))
    return made


def _buckets(origin: Origin, bounds: Bounds) -> tuple[int, int]:
    """The start of the first bucket and the width of all, in microseconds: at most BUCKETS, of a customary width."""
    low, high = bounds
    if low == high:
        return 0, SECOND
    first, last = _timestamp(origin, low), _timestamp(origin, high - 1)
    for width_s in WIDTHS_S:
        width = int(width_s * SECOND)
        start = first // width * width
        if (last - start) // width < BUCKETS:
            return start, width
    days = 86_400 * SECOND
    width = ((last - first) // days // (BUCKETS - 1) + 1) * days
    return first // width * width, width


def _timestamp(origin: Origin, index: int) -> int:
    [stretch] = origin.stretches(index, index + 1)
    rows = next(iter(origin.rows(Stretch(index, index + 1, stretch.segment), Skimmer())))
    return int(rows.timestamp[0])


def _made(cluster_id: str, bounds: Bounds, counted: Tally) -> Report:
    count = max(counted.frames, default=-1) + 1
    totals: Counter[str] = Counter()
    for (_, name), number in counted.operations.items():
        totals[name] += number
    shown = [name for name, _ in totals.most_common() if name != OTHER][:SHOWN_OPERATIONS]
    operations = {name: [counted.operations[bucket, name] for bucket in range(count)] for name in shown}
    if len(totals) > len(shown):
        rest = [0] * count
        for (bucket, name), number in counted.operations.items():
            rest[bucket] += 0 if name in operations else number
        operations[OTHER] = rest
    return Report(
        cluster_id=cluster_id,
        from_index=bounds.lowest_index,
        to_index=bounds.highest_index,
        records=sum(totals.values()),
        frames=sum(counted.frames.values()),
        log_bytes=sum(counted.log_bytes.values()),
        first=None if counted.first is None else counted.first / SECOND,
        last=None if counted.last is None else counted.last / SECOND,
        start=counted.start / SECOND,
        bucket_s=counted.width / SECOND,
        operations=operations,
        pauses_s=[counted.pauses.get(bucket, 0) / SECOND for bucket in range(count)],
        fullest_second=counted.activity.fullest,
        epochs=counted.epochs,
        lag=[],
    )


def _lag(server: str, access: Access) -> NodeLag:
    with closing(Nodes([server], NODE_TIMEOUT_S, access)) as nodes:
        status = nodes.first("/status", "its status", document_of)
    match status:
        case {
            "role": str(role),
            "lag": {"records": int(records), "bytes": int(size), "seconds": float() | int() as lag},
        }:
            return NodeLag(server, role, records, size, float(lag))
        case _:
            return NodeLag(server, str(status.get("role", "unknown")), None, None, None)


def _write(made: Report, folder: str, light: bytes, dark: bytes) -> None:
    os.makedirs(folder, exist_ok=True)
    contents = {
        "report.html": page_of(made, light, dark).encode(),
        "report-light.png": light,
        "report-dark.png": dark,
        "report.json": to_json(made.document()),
    }
    for name, content in contents.items():
        with open(os.path.join(folder, name), "wb") as file:
            file.write(content)
    made.files = sorted(os.path.join(folder, name) for name in contents)
