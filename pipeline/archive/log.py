"""An archive as a log to read, alone or followed by the live log; see `Origin`.

The rows of a file are assembled into the frames that they had in the log, and those are read like frames from a store:
every crc and the chain are checked, and the same code makes the columns.
"""

from __future__ import annotations

import os
import stat
from bisect import bisect_left
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from quire.log import (
    HEADER_BYTES,
    ChainBroken,
    FrameHeader,
    FrameInvalid,
    PayloadInvalid,
    Tail,
    UnknownVersion,
    check_frame,
    follow,
    walk_headers,
)
from quire.log.packing import Skimmer

from ..errors import ArchiveDamaged, ArchiveDiverges, ArchiveGap, ForeignLog, RecordsLost
from ..origin.origin import STRETCH_BYTES, Bounds, Origin, Stretch, split
from ..origin.rows import Integers, RowBuilder, Rows
from .manifest import (
    ArchiveFile,
    ArchiveManifest,
    RecordedGap,
    footer_crc32c,
    is_archive,
    look_up,
    manifest_stamp,
    open_parquet,
)
from .pages import pages_of

GAP_ADVICE = "; to record the gap in the archive and continue after it, archive with --accept-gap (accept_gap=True)"
LEAD = "lead"
INDEX = "index"
READ_COLUMNS = {INDEX: pa.int64(), LEAD: pa.binary(), "value": pa.binary()}
MAX_GROUP_BYTES = 512 << 20
"""Uncompressed, of the columns that are read: a group ends at 8 MiB (`writer.py`), unless its last frame is larger."""


class ArchiveLog:
    """The log in an archive. It only grows at its end, and only `bounds` reads the manifest again: between two calls of
    `bounds`, all answers come from one manifest.

    A task gets the part of the manifest that it needs with its partition, and reads the rest only to find records that
    were archived since.
    """

    servers: tuple[str, ...] = ()

    def __init__(self, path: str, part: ArchiveManifest | None = None) -> None:
        """`part`: of the manifest, to read these files; None: all of it. Raises NoLog, ArchiveDamaged, ArchiveGap."""
        self.name = path
        self._stamp: tuple[int, int, int] | None = None
        if part is not None and is_archive(path):
            self.manifest = part
        else:
            self._stamp = manifest_stamp(path)
            self.manifest = ArchiveManifest.read(path)

    def cluster_id(self) -> str:
        return self.manifest.cluster_id

    def servers_of(self, task_number: int) -> tuple[str, ...]:
        return ()

    def bounds(self, *, quick: bool = False) -> Bounds:
        """Raises as the constructor."""
        stamp = manifest_stamp(self.name)
        if stamp != self._stamp:
            self.manifest, self._stamp = ArchiveManifest.read(self.name), stamp
        return Bounds(self.manifest.origin.index, self.manifest.tail.index)

    def index_at(self, timestamp: int, bounds: Bounds) -> int:
        files = self.manifest.files
        # The first file whose last frame is not older; then look at the frames within it.
        place = bisect_left(files, timestamp, key=lambda held: held.timestamp)
        if place == len(files):
            return bounds.highest_index
        for header in self._headers(place, files[place].from_index):
            if header.timestamp >= timestamp:
                return min(header.index, bounds.highest_index)
        return min(files[place].to_index, bounds.highest_index)

    def index_within_bytes(self, from_index: int, to_index: int, max_bytes: int) -> int:
        reached, left = from_index, max_bytes
        for place in range(self.manifest.place_of(from_index), len(self.manifest.files)):
            held = self.manifest.files[place]
            reached = max(reached, held.from_index)  # A recorded gap has no bytes.
            if reached >= to_index:
                return to_index
            if reached == held.from_index and held.to_index <= to_index and held.log_bytes <= left:
                reached, left = held.to_index, left - held.log_bytes
                continue
            for header in self._headers(place, reached):
                if header.size > left and reached > from_index:
                    return reached
                reached, left = min(header.next_index, to_index), left - header.size
                if reached >= to_index:
                    return reached
        return to_index

    def crc32c_before(self, index: int) -> int:
        self._refuse_gap(Stretch(index - 1, index, None))
        place = self.manifest.place_of(index - 1)
        held = self.manifest.files[place]
        if held.to_index == index:
            return held.crc32c
        return next(self._headers(place, index - 1)).crc32c  # Of one row group, 8 MiB: all reads of it are whole.

    def _headers(self, place: int, from_index: int) -> Iterator[FrameHeader]:
        """The headers of a file's frames from the one that holds `from_index` on."""
        held = self.manifest.files[place]
        stretch = Stretch(from_index, held.to_index, held.segment)
        for rows in self._file_rows(place, stretch, None):
            for header, _ in rows.frames:
                if header.next_index > from_index:
                    yield header

    def stretches(self, from_index: int, to_index: int, least: int = 1) -> list[Stretch]:
        if from_index >= to_index:
            return []
        found: list[Stretch] = []
        size = 0
        for held in self.manifest.part(from_index, to_index).files:
            self._check_size(held)
            stretch = Stretch(max(held.from_index, from_index), min(held.to_index, to_index), held.segment)
            size += held.log_bytes
            if found and _continues(found[-1], stretch) and size <= STRETCH_BYTES:
                found[-1] = found[-1]._replace(to_index=stretch.to_index)
            else:
                found.append(stretch)
                size = held.log_bytes
        gaps = [
            Stretch(max(gap.from_index, from_index), min(gap.to_index, to_index), gap.from_index)
            for gap in self.manifest.gaps_within(from_index, to_index)
        ]
        return sorted(split(found, least) + gaps)

    def _check_size(self, held: ArchiveFile) -> None:
        """Raise ArchiveDamaged for a missing or truncated file, or what is no file, before anything is read."""
        try:
            found = look_up(self.name, held, os.lstat)
        except FileNotFoundError:
            raise self._damaged(held, "it is missing") from None
        except OSError as error:
            raise self._damaged(held, error.strerror or str(error)) from None
        if not stat.S_ISREG(found.st_mode):
            raise self._damaged(held, "it is not a regular file")
        if found.st_size != held.file_bytes:
            raise self._damaged(held, f"it has {found.st_size} bytes, not {held.file_bytes}")

    def rows(self, stretch: Stretch, skimmer: Skimmer | None) -> Iterator[Rows]:
        left = stretch
        for place in range(self.manifest.place_of(stretch.from_index), len(self.manifest.files)):
            held = self.manifest.files[place]
            if held.from_index >= stretch.to_index:
                break
            self._refuse_gap(left)
            left = left._replace(from_index=min(stretch.to_index, held.to_index))
            first = max(stretch.from_index, held.from_index)
            yield from self._file_rows(place, Stretch(first, left.from_index, held.segment), skimmer)
        self._refuse_gap(left)

    def _refuse_gap(self, left: Stretch) -> None:
        """Raise RecordsLost if a stretch that is not empty begins in a recorded gap."""
        gap = recorded_gap(self, left.from_index)
        if gap is not None and left.from_index < left.to_index:
            raise RecordsLost(self.name, left.from_index, min(left.to_index, gap.to_index), gap_reason(gap))

    def close(self) -> None:
        """Nothing is held open between two calls."""

    def _file_rows(self, place: int, stretch: Stretch, skimmer: Skimmer | None) -> Iterator[Rows]:
        """The rows of a stretch within one file; its frames are verified by crc and chain."""
        held = self.manifest.files[place]
        tail: Tail | None = None
        try:
            for raw in self._raw_pieces(held, stretch.from_index, stretch.to_index):
                view = memoryview(raw)
                gathering = RowBuilder(view, skimmer)
                for offset, header in walk_headers(raw):
                    if tail is None and header.index == held.from_index:
                        tail = self.manifest.before(place)
                    elif tail is None:
                        tail = Tail(header.index, header.epoch, header.timestamp, header.prev_crc32c)
                        if not held.from_index < header.index <= stretch.from_index:
                            raise FrameInvalid(f"its frame at index {header.index} is in another place", offset)
                    check_frame(header.kind, view[offset + HEADER_BYTES : offset + header.size])
                    tail = follow(tail, header)
                    if tail.index > held.to_index:
                        raise FrameInvalid(f"its frame at index {header.index} goes on after its end", offset)
                    gathering.add(header, offset)
                yield gathering.rows(stretch.from_index, stretch.to_index)
        except (pa.ArrowException, OSError, FrameInvalid, ChainBroken, PayloadInvalid, UnknownVersion) as error:
            raise self._damaged(held, str(error), tail) from error
        if tail is None or tail.index < stretch.to_index:
            raise self._damaged(held, "rows are missing at its end", tail)
        if tail.index == held.to_index and tail != held.tail:
            raise self._damaged(held, f"it ends with {tail}, but the manifest says {held.tail}", tail)

    def _raw_pieces(self, held: ArchiveFile, from_index: int, to_index: int) -> Iterator[bytes]:
        """The frames of the row groups that hold [from_index, to_index), byte for byte as in the log."""
        self._check_size(held)
        if look_up(self.name, held, footer_crc32c) != held.footer_crc32c:
            raise self._damaged(held, "its footer fails its crc32c")
        with (
            look_up(self.name, held, open_parquet) as source,
            pq.ParquetFile(source, page_checksum_verification=True) as file,
        ):
            kinds = {field.name: field.type for field in file.schema_arrow}
            if len(kinds) != len(file.schema_arrow) or not READ_COLUMNS.items() <= kinds.items():
                raise self._damaged(held, "it lacks a column, or has one twice")
            columns = {file.schema.column(number).path: number for number in range(len(file.schema))}
            for group in range(file.num_row_groups):
                described = file.metadata.row_group(group)
                bounds = described.column(columns[INDEX]).statistics
                if bounds is None or not bounds.has_min_max:
                    raise self._damaged(held, f"the indices of its row group {group} are unknown")
                if bounds.max < from_index or bounds.min >= to_index:
                    continue
                try:
                    leads, values = (pages_of(source, described.column(columns[name])) for name in (LEAD, "value"))
                except ValueError as error:
                    raise self._damaged(held, f"{error}, in row group {group}") from error
                if leads.size + values.size > MAX_GROUP_BYTES:
                    raise self._damaged(held, f"its row group {group} has {leads.size + values.size:,} bytes")
                if not leads.rows == values.rows == described.num_rows <= held.to_index - held.from_index:
                    raise self._damaged(held, f"its row group {group} has another number of rows than its records")
                table = file.read_row_group(group, columns=[LEAD, "value"], use_threads=False)
                yield _joined(table.column(LEAD), table.column("value"))

    def _damaged(self, held: ArchiveFile, reason: str, tail: Tail | None = None) -> ArchiveDamaged:
        first = held.from_index if tail is None else tail.index
        return ArchiveDamaged(self.name, held.file, reason, first, held.to_index)


def _continues(before: Stretch, stretch: Stretch) -> bool:
    """Whether two stretches of files, which frequent runs of an archiver make small, can be one: of one segment."""
    return before.to_index == stretch.from_index and before.segment == stretch.segment


def _joined(leads: pa.ChunkedArray, values: pa.ChunkedArray) -> bytes:
    """The bytes of both columns, row by row. This makes Python objects per frame, not per record."""
    lead_ends, lead_data = _buffers(leads)
    value_ends, value_data = _buffers(values)
    rows = np.flatnonzero(lead_ends[1:] > lead_ends[:-1])
    if not len(rows) or rows[0]:
        raise PayloadInvalid("its first record has no frame header")
    firsts, lasts = lead_ends[rows].tolist(), lead_ends[rows + 1].tolist()
    starts, ends = value_ends[rows].tolist(), value_ends[np.append(rows[1:], len(value_ends) - 1)].tolist()
    pieces: list[memoryview] = []
    for first, last, start, end in zip(firsts, lasts, starts, ends, strict=True):
        pieces.append(lead_data[first:last])
        pieces.append(value_data[start:end])
    return b"".join(pieces)


def _buffers(column: pa.ChunkedArray) -> tuple[Integers, memoryview]:
    """The offsets of a binary column, starting at 0, and its bytes; null counts as empty."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int32, len(array) + 1, 4 * array.offset).astype(np.int64)
    return ends, memoryview(b"" if data is None else data)


def gap_reason(gap: RecordedGap) -> str:
    """Why the records of a gap are lost."""
    return f"the archive records a gap [{gap.from_index}, {gap.to_index}): they were lost before they were archived"


def recorded_gaps(origin: Origin) -> list[RecordedGap]:
    """The gaps that an origin's archives record, in order; no other origin has any."""
    match origin:
        case ArchiveLog():
            return origin.manifest.gaps
        case JoinedLog():
            boundary = origin.archive.manifest.tail.index
            later = [gap for gap in recorded_gaps(origin.live) if gap.to_index > boundary]
            clipped = [gap._replace(from_index=max(gap.from_index, boundary)) for gap in later]
            return origin.archive.manifest.gaps + clipped
        case _:
            return []


def recorded_gap(origin: Origin, index: int) -> RecordedGap | None:
    """The recorded gap in which an index is."""
    return next((gap for gap in recorded_gaps(origin) if gap.from_index <= index < gap.to_index), None)


class JoinedLog:
    """The archive's records, followed by the live log's.

    Everything in the archive is read from there: it does not change, so nothing can expire between planning and
    reading, and the nodes have less to do. The first frame of the live log must follow the archive's last.
    """

    def __init__(self, archive: ArchiveLog, live: Origin) -> None:
        self.archive, self.live = archive, live
        self.name = f"{archive.name} and {live.name}"

    @property
    def servers(self) -> tuple[str, ...]:
        return self.live.servers

    def servers_of(self, task_number: int) -> tuple[str, ...]:
        return self.live.servers_of(task_number)

    @property
    def _boundary(self) -> int:
        """The index from which the live log is read: the archive's end at the last call of `bounds`."""
        return self.archive.manifest.tail.index

    def cluster_id(self) -> str:
        """Raises ForeignLog: archive and live log are of different clusters."""
        archived, found = self.archive.cluster_id(), self.live.cluster_id()
        if found != archived:
            raise ForeignLog(self.live.name, found, archived)
        return found

    def bounds(self, *, quick: bool = False) -> Bounds:
        """Raises ArchiveGap: the live log starts after the archive's end, and the archive does not record the gap."""
        # Look at the archive last: then records that expire from the live log in between are in the archive.
        live, archived = self.live.bounds(quick=quick), self.archive.bounds()
        if quick and live.lowest_index > archived.highest_index:
            return self.bounds()
        if live.lowest_index > archived.highest_index:
            advice = f"{GAP_ADVICE}; then a read with failOnDataLoss=false skips it"
            raise ArchiveGap(self.archive.name, archived.highest_index, live.lowest_index, advice)
        return Bounds(archived.lowest_index, max(archived.highest_index, live.highest_index))

    def index_at(self, timestamp: int, bounds: Bounds) -> int:
        found = self.archive.index_at(timestamp, Bounds(bounds.lowest_index, self._boundary))
        if found < self._boundary or bounds.highest_index <= self._boundary:
            return found
        try:
            return self.live.index_at(timestamp, Bounds(self._boundary, bounds.highest_index))
        except RecordsLost as error:
            raise self._not_archived(error) from error

    def index_within_bytes(self, from_index: int, to_index: int, max_bytes: int) -> int:
        # A batch of a stream does not cross the boundary: one batch is shorter.
        if from_index < self._boundary:
            return self.archive.index_within_bytes(from_index, min(to_index, self._boundary), max_bytes)
        return self.live.index_within_bytes(from_index, to_index, max_bytes)

    def crc32c_before(self, index: int) -> int:
        return (self.archive if index <= self._boundary else self.live).crc32c_before(index)

    def stretches(self, from_index: int, to_index: int, least: int = 1) -> list[Stretch]:
        boundary = min(max(from_index, self._boundary), to_index)
        of_archive = least * (boundary - from_index) // max(1, to_index - from_index)
        archived = self.archive.stretches(from_index, boundary, of_archive)
        return [*archived, *self.live.stretches(boundary, to_index, least - of_archive)]

    def rows(self, stretch: Stretch, skimmer: Skimmer | None) -> Iterator[Rows]:
        if stretch.from_index < self._boundary:
            yield from self.archive.rows(stretch._replace(to_index=min(stretch.to_index, self._boundary)), skimmer)
        if stretch.to_index > self._boundary:
            first = max(stretch.from_index, self._boundary)
            try:
                for rows in self.live.rows(stretch._replace(from_index=first), skimmer):
                    self._check_boundary(rows)
                    yield rows
            except RecordsLost as error:
                lost = max(first, error.from_index)
                if self.archive.bounds().highest_index <= lost:
                    raise self._not_archived(error) from error
                # The records were archived after the stretch was planned, and then expired.
                yield from self.rows(stretch._replace(from_index=lost), skimmer)

    def _not_archived(self, lost: RecordsLost) -> RecordsLost:
        """The error without the records that are in the archive."""
        first = max(lost.from_index, self._boundary)
        return RecordsLost(lost.origin, first, lost.to_index, lost.reason)

    def _check_boundary(self, rows: Rows) -> None:
        tail = self.archive.manifest.tail
        header = rows.frames[0][0]
        if header.index == tail.index and header.prev_crc32c != tail.crc32c:
            raise ArchiveDiverges(self.live.name, tail.index, header.prev_crc32c, tail.crc32c)

    def close(self) -> None:
        self.live.close()


def part_for(origin: Origin, stretch: Stretch) -> ArchiveManifest | None:
    """The part of an archive's manifest that a task needs to read a stretch; None if the log has no archive."""
    archive = origin.archive if isinstance(origin, JoinedLog) else origin
    return archive.manifest.part(*stretch[:2]) if isinstance(archive, ArchiveLog) else None
