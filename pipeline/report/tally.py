"""The counts of a report for a piece of a log: records by time and operation, pauses, and leaderships.

No object is made per record: an operation is the text that a command starts with, and numpy finds it in the bytes.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quire.log import HEADER_BYTES, FrameHeader, Kind, decode_system
from quire.log.packing import Skimmer

from ..origin.rows import Rows
from ..source.options import SourceOptions
from ..source.reading import LogPartition, origin_of
from .activity import Activity

NAME_BYTES = 16
"""The maximum length of an operation's name in bytes; longer ones are cut."""
OTHER = "other"
_KIND_NAMES = {Kind.BLOB: "blob", Kind.SYSTEM: "system"}
_ARRAY_HEADS = (0x91, 0x9F)
_TEXT_HEADS = (0xA1, 0xBF)


class EpochStart(NamedTuple):
    """The first record of a leadership."""

    epoch: int
    node_id: str
    index: int  # type: ignore[assignment]
    timestamp: int
    """Microseconds since 1970."""
    pause: int | None
    """Microseconds without commands around it, if writers waited."""


class TallyPiece(NamedTuple):
    """A stretch to count, and the buckets to count it into."""

    options: SourceOptions
    partition: LogPartition
    start: int
    """The start of the first bucket, in microseconds since 1970."""
    width: int
    """The width of a bucket, in microseconds."""


@dataclass(slots=True)
class Tally:
    """Counts by bucket; `operations` by bucket and operation."""

    start: int = 0
    """The start of the first bucket, in microseconds since 1970."""
    width: int = 1
    """The width of a bucket, in microseconds."""
    operations: Counter[tuple[int, str]] = field(default_factory=Counter[tuple[int, str]])
    frames: Counter[int] = field(default_factory=Counter[int])
    log_bytes: Counter[int] = field(default_factory=Counter[int])
    pauses: dict[int, int] = field(default_factory=dict[int, int])
    """The longest pause of writers, in microseconds, by the bucket in which it ended."""
    activity: Activity = field(default_factory=Activity)
    epochs: list[EpochStart] = field(default_factory=list[EpochStart])
    first: int | None = None
    """Timestamp of the first frame."""
    last: int | None = None

    def add(self, other: Tally) -> None:
        """Add the counts of what follows. Any grouping of a log's parts has the same sum."""
        self.operations.update(other.operations)
        self.frames.update(other.frames)
        self.log_bytes.update(other.log_bytes)
        self.epochs += other.epochs
        self.first = other.first if self.first is None else self.first
        self.last = self.last if other.last is None else other.last
        pauses = list(other.pauses.items())
        for begin, end in self.activity.add(other.activity, [each.timestamp for each in self.epochs]):
            pauses.append(((end - self.start) // self.width, end - begin))
            for place, each in enumerate(self.epochs):
                if begin < each.timestamp <= end:
                    self.epochs[place] = each._replace(pause=end - begin)
        for bucket, pause in pauses:
            self.pauses[bucket] = max(pause, self.pauses.get(bucket, 0))


def tally(piece: TallyPiece) -> Tally:
    """Count the records of a stretch. Raises as the origin's `rows`."""
    counted = Tally(piece.start, piece.width)
    stretch = piece.partition.stretch
    with closing(origin_of(piece.options, piece.partition)) as origin:
        for rows in origin.rows(stretch, Skimmer()):
            page = Tally(piece.start, piece.width)
            _count_operations(page, rows)
            for header, offset in rows.frames:
                if stretch.from_index <= header.index < stretch.to_index:
                    _count_frame(page, rows, header, offset)
            counted.add(page)
    return counted


def _count_frame(page: Tally, rows: Rows, header: FrameHeader, offset: int) -> None:
    bucket = (header.timestamp - page.start) // page.width
    page.frames[bucket] += 1
    page.log_bytes[bucket] += header.size
    page.first = header.timestamp if page.first is None else page.first
    page.last = header.timestamp
    if header.kind != Kind.SYSTEM:
        page.activity.note(header.timestamp, header.count)
        return
    body = offset + HEADER_BYTES
    fields = decode_system(bytes(rows.raw[body : body + header.length]))
    if fields["type"] == "epoch_start":
        page.epochs.append(EpochStart(header.epoch, str(fields["node_id"]), header.index, header.timestamp, None))


def _count_operations(page: Tally, rows: Rows) -> None:
    if not len(rows):
        return
    buckets = (rows.timestamp - page.start) // page.width
    names = _names(rows)
    for kind, name in _KIND_NAMES.items():
        names[rows.kind == kind] = name.encode()
    pairs, counts = np.unique(np.rec.fromarrays([buckets, names]), return_counts=True)
    for (bucket, name), count in zip(pairs.tolist(), counts.tolist(), strict=True):
        page.operations[bucket, name.decode(errors="replace")] += count


def _names(rows: Rows) -> NDArray[np.bytes_]:
    """The text at the start of each value that is an array starting with text; `other` for all others."""
    octets = np.frombuffer(rows.raw, np.uint8)
    last = len(octets) - 1
    head = octets[np.minimum(rows.start, last)]
    second = octets[np.minimum(rows.start + 1, last)]
    is_named = (head >= _ARRAY_HEADS[0]) & (head <= _ARRAY_HEADS[1]) & (rows.end - rows.start > 1)
    is_named &= (second >= _TEXT_HEADS[0]) & (second <= _TEXT_HEADS[1])
    length = np.minimum(second & 0x1F, NAME_BYTES)
    places = rows.start[:, None] + 2 + np.arange(NAME_BYTES)
    text = np.where(np.arange(NAME_BYTES) < length[:, None], octets[np.minimum(places, last)], 0).astype(np.uint8)
    names: NDArray[np.bytes_] = np.ascontiguousarray(text).view(f"S{NAME_BYTES}").reshape(-1).copy()
    names[~is_named] = OTHER.encode()
    return names
