"""Write one piece of a log as Parquet files, one for each day. `manifest` describes their contents."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, BinaryIO, NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from quire.log import Tail
from quire.log.files import open_file
from quire.log.packing import Skimmer

from ..errors import FrameCut
from ..origin.columns import batches_of
from ..origin.origin import Origin, Stretch
from ..origin.rows import Rows
from .log import INDEX, LEAD
from .manifest import NEW_FOLDER, ArchiveFile, footer_crc32c

GROUP_BYTES = 8 << 20
"""About how much of the log is in one row group, which a reader holds in memory."""
DAY = 86_400_000_000
"""Microseconds."""

ROW_SCHEMA = pa.schema(
    [
        (INDEX, pa.int64()),
        ("epoch", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("kind", pa.string()),
        ("session", pa.int64()),
        ("sequence", pa.int64()),
        ("value", pa.binary()),
        ("headers", pa.map_(pa.string(), pa.string())),
    ]
)
PARQUET: dict[str, Any] = {
    "compression": "zstd",
    "use_dictionary": ["kind", "epoch", "session"],
    "write_statistics": [INDEX, "timestamp"],
    "write_page_checksum": True,
}
FILE_SCHEMA = ROW_SCHEMA.append(pa.field(LEAD, pa.binary()))


class Written(NamedTuple):
    """A complete file that is not yet part of the archive, in the folder of new files."""

    new: str
    held: ArchiveFile
    prev_crc32c: int
    """Of its first frame: the crc32c of the frame that must precede it."""


def write_stretch(origin: Origin, path: str, stretch: Stretch) -> list[Written]:
    """Write the records of a stretch, whose ends are frame boundaries, to the archive's folder of new files.

    The files are durable on return, but not yet part of the archive. Each attempt writes files of its own.

    Raises:
        FrameCorrupt, RecordsLost, ClusterUnavailable: from the origin.
        FrameCut: the ends of the stretch are no frame boundaries.
        OSError: the file system failed.
    """
    written: list[Written] = []
    file: _File | None = None
    reached = stretch.from_index
    try:
        for rows in origin.rows(stretch, Skimmer()):
            reached = _end_of(rows, stretch, reached, origin.name)
            table = _table(rows)
            for part in _by_day(rows):
                if file is not None and file.day != part.day:
                    written.append(file.finish())
                    file = None
                if file is None:
                    file = _File(path, stretch, part.day)
                file.add(table.slice(part.first, part.last - part.first), rows, part)
        if file is not None:
            written.append(file.finish())
            file = None
    finally:
        if file is not None:
            file.give_up()
    return written


def _end_of(rows: Rows, stretch: Stretch, reached: int, name: str) -> int:
    """Where the frames of the next rows end. Raises FrameCut."""
    held = [
        header
        for header, _ in rows.frames
        if stretch.from_index < header.next_index and header.index < stretch.to_index
    ]
    first, last = held[0].index, held[-1].next_index
    if first != reached or last > stretch.to_index:
        raise FrameCut(name, stretch.from_index, stretch.to_index, (first, last))
    return last


class _Part(NamedTuple):
    """The rows [first, last), all of one day."""

    day: int
    first: int
    last: int


def _by_day(rows: Rows) -> Iterator[_Part]:
    days = rows.timestamp // DAY
    boundaries = [0, *(np.flatnonzero(days[1:] != days[:-1]) + 1).tolist(), len(rows)]
    for first, last in itertools.pairwise(boundaries):
        if first < last:
            yield _Part(int(days[first]), first, last)


def _table(rows: Rows) -> pa.Table:
    table = pa.Table.from_batches(list(batches_of(rows, ROW_SCHEMA, None)), schema=ROW_SCHEMA)
    return table.append_column(FILE_SCHEMA.field(LEAD), _leads(rows))


def _leads(rows: Rows) -> pa.Array:
    """The bytes of the log between each record's value and the previous one's."""
    before = np.empty_like(rows.start)
    before[1:] = rows.end[:-1]
    before[0] = rows.frames[0][1]
    lengths = rows.start - before
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    places = np.flatnonzero(lengths)
    firsts, lasts = before[places].tolist(), rows.start[places].tolist()
    data = b"".join([rows.raw[first:last] for first, last in zip(firsts, lasts, strict=True)])
    return pa.Array.from_buffers(pa.binary(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


class _File:
    """A Parquet file that is being written."""

    def __init__(self, path: str, stretch: Stretch, day: int) -> None:
        self.day = day
        self._path = path
        self._segment = stretch.from_index if stretch.segment is None else stretch.segment
        self._new = f"{NEW_FOLDER}/{uuid4().hex}.parquet"
        self._sink = _HashedFile(os.path.join(path, self._new))
        self._writer = pq.ParquetWriter(self._sink, FILE_SCHEMA, **PARQUET)
        self._group: list[pa.Table] = []
        self._group_bytes = 0
        self._before: Tail | None = None
        self._tail: Tail | None = None
        self._frames = 0
        self._log_bytes = 0

    def add(self, table: pa.Table, rows: Rows, part: _Part) -> None:
        """Add rows that are whole frames."""
        first, last = int(rows.index[part.first]), int(rows.index[part.last - 1])
        for header, _ in rows.frames:
            if first <= header.index <= last:
                self._before = self._before or Tail(header.index, header.epoch, header.timestamp, header.prev_crc32c)
                self._tail = header.tail
                self._frames += 1
                self._group_bytes += header.size
        self._group.append(table)
        if self._group_bytes >= GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        table = pa.concat_tables(self._group)
        self._writer.write_table(table, row_group_size=max(1, len(table)))
        self._log_bytes += self._group_bytes
        self._group, self._group_bytes = [], 0

    def finish(self) -> Written:
        """Close the file, durable on return."""
        if self._group:
            self._write_group()
        self._writer.close()
        self._sink.finish()
        if self._before is None or self._tail is None:
            raise ValueError("a file without a frame")
        first, tail = self._before.index, self._tail
        date = datetime.fromtimestamp(self.day * DAY / 1_000_000, UTC).date().isoformat()
        name = f"date={date}/segment={self._segment:020d}/{first:020d}-{tail.index:020d}.parquet"
        held = ArchiveFile(
            file=name,
            segment=self._segment,
            from_index=first,
            to_index=tail.index,
            epoch=tail.epoch,
            timestamp=tail.timestamp,
            crc32c=tail.crc32c,
            frames=self._frames,
            log_bytes=self._log_bytes,
            file_bytes=self._sink.size,
            footer_crc32c=footer_crc32c(os.path.join(self._path, self._new)),
            sha256=self._sink.check.hexdigest(),
        )
        return Written(self._new, held, self._before.crc32c)

    def give_up(self) -> None:
        """Close the unfinished file; the next run removes it."""
        self._writer.is_open = False  # Otherwise it writes a footer to the closed file when it is collected.
        self._sink.close()


class _HashedFile:
    """A file that is written once, from start to end; it computes the sha256 and the size of its content."""

    def __init__(self, path: str) -> None:
        self._file: BinaryIO = open(path, "xb", opener=open_file)  # noqa: SIM115  # Closed by finish or close.
        self.check = sha256()
        self.size = 0
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> int:
        self.check.update(data)
        count = self._file.write(data)
        self.size += count
        return count

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        self._file.flush()

    def finish(self) -> None:
        """Close the file, durable on return."""
        with closing(self._file):
            self._file.flush()
            os.fsync(self._file.fileno())
        self.closed = True

    def close(self) -> None:
        self._file.close()
        self.closed = True

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False
