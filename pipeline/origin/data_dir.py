"""The log in a data_dir, whose node may be running: opened read-only, without the node's lock.

The readable log ends at the mark's commit_index. No byte below it is ever written again, so it does not matter if a
segment grows or is sealed in the meantime. A segment that expires in the meantime raises `RecordsLost`.

Segments expire from the lowest on. So a segment that is missing while a lower one is there has not expired: its file is
lost, and `RecordsLost` names the records between the frames of the segments around it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import closing, suppress

from crc32c import crc32c

from quire.cluster.errors import LimitExceeded, Malformed
from quire.cluster.values import DEPTH_LIMIT, decode_json
from quire.log import (
    HEADER_BYTES,
    MARK_NAME,
    SEGMENTS_FOLDER,
    ChainBroken,
    FrameCorrupt,
    FrameInvalid,
    PayloadInvalid,
    ReadOnlyDirectory,
    SegmentFile,
    Tail,
    decode_header,
    follow,
    store_bases,
    stored_mark,
    walk_headers,
)
from quire.log.packing import Skimmer

from ..errors import NoLog, RecordsLost
from .origin import Bounds, Stretch, split
from .rows import RowBuilder, Rows

IDENTITY_FILE = "identity"
MAX_IDENTITY_BYTES = 1 << 20
CHUNK_BYTES = 1 << 20
"""How much is read and decoded at a time: small enough for the processor's cache."""


class DataDirLog:
    """The log in a data_dir; see `Origin`."""

    servers: tuple[str, ...] = ()

    def __init__(self, path: str) -> None:
        """Raises NoLog."""
        self.name = path
        try:
            self._directory = ReadOnlyDirectory(path)
            self._files = self._directory.child(SEGMENTS_FOLDER)
        except OSError as error:
            raise NoLog(path, f"it is not a data_dir ({error.strerror})") from error
        self._bases: list[int] = []

    def cluster_id(self) -> str:
        if (history := self._history()) is not None:
            return history
        bounds = self.bounds()
        with closing(self._open(bounds.lowest_index, bounds.lowest_index, bounds.highest_index)) as segment:
            return segment.header().cluster_id.hex()

    def _history(self) -> str | None:
        """The history in the identity file; None if there is no such file, or it names none. Raises NoLog."""
        try:
            with closing(self._directory.open(IDENTITY_FILE)) as file:
                line, _, check = file.read_at(0, MAX_IDENTITY_BYTES).partition(b"\n")
        except FileNotFoundError:
            return None
        if check.strip() != b"%08x" % crc32c(line):
            raise NoLog(self.name, f"its file {IDENTITY_FILE} fails its crc32c")
        try:
            identity = decode_json(line, DEPTH_LIMIT + 1)
        except (Malformed, LimitExceeded) as error:
            raise NoLog(self.name, f"its file {IDENTITY_FILE} cannot be read: {error}") from error
        history = identity.get("history") if isinstance(identity, dict) else None
        return history if isinstance(history, str) else None

    def servers_of(self, task_number: int) -> tuple[str, ...]:
        return ()

    def bounds(self, *, quick: bool = False) -> Bounds:
        # Read the mark before the list of segments: then the segment that it points into is listed, or has expired.
        mark = stored_mark(self._directory)
        self._bases = store_bases(self._files)
        if not self._bases:
            raise NoLog(self.name, "there is no segment in it")
        if mark is None:
            raise NoLog(self.name, f"its file {MARK_NAME} is missing, or has no valid slot")
        return Bounds(self._bases[0], max(self._bases[0], mark.commit_index))

    def index_at(self, timestamp: int, bounds: Bounds) -> int:
        # A store's header has the timestamp of the previous frame, so bisecting a few headers finds the segment.
        bases = self._known_bases()
        place = max(0, bisect_left(bases, timestamp, key=self._timestamp_before) - 1)
        following = bases[place + 1] if place + 1 < len(bases) else bounds.highest_index
        end = min(following, bounds.highest_index)
        with closing(self._open(bases[place], bases[place], end)) as segment:
            found = segment.index_at(timestamp, end)
            # The next segment's header says that a record before it is recent enough. If no frame is, it is lost.
            lost = self._lost_after(segment, found - 1) if found in bases else None
        if lost is not None:
            raise lost
        return found

    def _timestamp_before(self, base: int) -> int:
        with closing(self._open(base, base, base)) as segment:
            return segment.header().timestamp

    def index_within_bytes(self, from_index: int, to_index: int, max_bytes: int) -> int:
        left, reached = max_bytes, from_index
        for stretch in self.stretches(from_index, to_index):
            with closing(self._open(_base_of(stretch), stretch.from_index, stretch.to_index)) as segment:
                first = reached == from_index
                try:
                    _, position = self._start(segment, stretch.from_index)
                except RecordsLost:
                    reached = stretch.to_index  # Records that are lost have no bytes.
                    continue
                is_whole = self._next_base(segment.base) == stretch.to_index
                if is_whole and segment.end - position <= left:
                    left, reached = left - (segment.end - position), stretch.to_index
                    continue
                return segment.index_within(stretch.from_index, stretch.to_index, position + left, one_frame=first)
        return reached

    def crc32c_before(self, index: int) -> int:
        [stretch] = self.stretches(index - 1, index)
        with closing(self._open(_base_of(stretch), index - 1, index)) as segment:
            _, position = self._start(segment, index - 1)
            _, header = next(segment.headers(position, index))
            return header.crc32c

    def stretches(self, from_index: int, to_index: int, least: int = 1) -> list[Stretch]:
        if from_index >= to_index:
            return []
        bases = self._known_bases()
        held = bases[max(0, bisect_right(bases, from_index) - 1) : bisect_left(bases, to_index)]
        ends = [*held[1:], to_index]
        return split([Stretch(max(base, from_index), end, base) for base, end in zip(held, ends, strict=True)], least)

    def rows(self, stretch: Stretch, skimmer: Skimmer | None) -> Iterator[Rows]:
        reached = stretch.from_index
        with closing(self._open(_base_of(stretch), stretch.from_index, stretch.to_index)) as segment:
            try:
                tail, position = segment.start(stretch.from_index)
                while tail.index < stretch.to_index:
                    before = position
                    gathering, tail, position = _piece(segment, position, tail, stretch.to_index, skimmer)
                    try:
                        yield gathering.rows(stretch.from_index, stretch.to_index)
                    except PayloadInvalid as error:
                        raise segment.corrupt(before, error.reason) from error
                    reached = tail.index
            except FrameCorrupt as error:
                if (lost := self._lost_after(segment, reached)) is not None:
                    raise lost from error
                raise
        self._check_next(segment.base, tail)

    def close(self) -> None:
        """Nothing is held open between two calls."""

    def _check_next(self, base: int, tail: Tail) -> None:
        """After a segment was read to its end, check that the next one continues the chain."""
        if self._next_base(base) != tail.index:
            return
        try:
            following = SegmentFile(self._files, tail.index)
        except FileNotFoundError:
            return  # It has expired; the task that reads it reports that.
        with closing(following):
            origin = following.header().origin
            if origin != tail:
                raise following.corrupt(0, f"it follows {origin}, but the previous segment ends with {tail}")

    def _next_base(self, base: int) -> int | None:
        bases = self._known_bases()
        place = bisect_right(bases, base)
        return bases[place] if place < len(bases) else None

    def _known_bases(self) -> list[int]:
        """The segments when `bounds` last listed them."""
        if not self._bases:
            self.bounds()
        return self._bases

    def _open(self, base: int, from_index: int, to_index: int) -> SegmentFile:
        try:
            return SegmentFile(self._files, base)
        except FileNotFoundError as error:
            raise self._lost(base, from_index, to_index) from error

    def _lost(self, base: int, from_index: int, to_index: int) -> RecordsLost:
        """The error for a segment that is not there: it has expired with all older ones, or is missing among others."""
        bases = store_bases(self._files)
        place = bisect_left(bases, base)
        if place == 0:
            return RecordsLost(self.name, from_index, to_index, f"segment {base} has expired")
        lost: RecordsLost | None = None
        with suppress(FileNotFoundError), closing(SegmentFile(self._files, bases[place - 1])) as previous:
            lost = self._lost_after(previous, base)
        return lost or RecordsLost(self.name, from_index, to_index, f"segment {base} is missing")

    def _start(self, segment: SegmentFile, index: int) -> tuple[Tail, int]:
        """As `SegmentFile.start`. Raises RecordsLost: the index is in a segment that is missing after this one."""
        try:
            return segment.start(index)
        except FrameCorrupt as error:
            lost = self._lost_after(segment, index)
            if lost is None:
                raise
            raise lost from error

    def _lost_after(self, segment: SegmentFile, index: int) -> RecordsLost | None:
        """The error for the records between a segment's last frame and the next segment, if `index` is among them."""
        bases, first = store_bases(self._files), segment.end_index()
        place = bisect_right(bases, segment.base)
        if first is None or place == len(bases) or not first <= index < bases[place]:
            return None
        return RecordsLost(self.name, first, bases[place], f"segment {first} is missing")


def _base_of(stretch: Stretch) -> int:
    return stretch.from_index if stretch.segment is None else stretch.segment


def _piece(
    segment: SegmentFile, position: int, tail: Tail, to_index: int, skimmer: Skimmer | None
) -> tuple[RowBuilder, Tail, int]:
    """The verified frames of one piece of a store up to `to_index`, and the tail and the position after them."""
    raw = memoryview(segment.store.read_at(position, CHUNK_BYTES))
    offset, end = 0, position
    try:
        size = decode_header(raw).size
        if len(raw) < size <= segment.store.size - position:
            raw = memoryview(segment.store.read_at(position, size))
        if size > len(raw):
            raise FrameInvalid("the payload is cut short")
        gathering = RowBuilder(raw, skimmer)
        for offset, header in walk_headers(raw, partial=True):
            tail = follow(tail, header)
            gathering.add(header, offset)
            end = position + offset + HEADER_BYTES + header.length
            if tail.index >= to_index:
                break  # The next frame may be half written.
    except FrameInvalid as error:
        raise segment.corrupt(position + error.position, error.reason) from error
    except (ChainBroken, PayloadInvalid) as error:
        raise segment.corrupt(position + offset, str(error)) from error
    return gathering, tail, end
