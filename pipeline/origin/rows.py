"""Frames to rows: the byte position of each record in a piece of a log, without a Python object per record.

Python code runs once per frame; msgpack's skip and tell find the ends of the records, and numpy does the rest. A
record's value is a range of the bytes that were read. Sessions are known per run, other columns per frame; both are
repeated for each of their records.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Never

import numpy as np
from numpy.typing import NDArray

from quire.log import HEADER_BYTES, FrameHeader, Kind, PayloadInvalid, Value, decode_values, unpack
from quire.log.packing import Skimmer, unpack_trusted
from quire.log.payload import HEADERS_EXT_TYPE, decode_runs

_BLOB_HEAD = struct.Struct("<I")

# Of an ext type, by its first byte: the offset of the type, and of the data.
_EXT_PLACES = {0xC7: (2, 3), 0xC8: (3, 4), 0xC9: (5, 6), **dict.fromkeys(range(0xD4, 0xD9), (1, 2))}
_IS_EXT = np.zeros(256, bool)
_IS_EXT[list(_EXT_PLACES)] = True

Integers = NDArray[np.int64]


@dataclass(slots=True)
class Rows:
    """The records [from_index, to_index) of a piece of a log. Arrays have one value for each record."""

    raw: memoryview
    index: Integers
    epoch: Integers
    timestamp: Integers
    kind: NDArray[np.int8]
    session: Integers
    """This array and the next three are empty if the payloads were not skimmed."""
    sequence: Integers
    start: Integers
    """Where each value starts in `raw`; `end` is where it ends."""
    end: Integers
    frames: list[tuple[FrameHeader, int]]
    """The frames, with the offset of each header in `raw`; the first and last may extend beyond the rows."""
    headers: dict[int, bytes]
    """By row: the record's headers as a msgpack map."""

    def __len__(self) -> int:
        return len(self.index)


@dataclass(slots=True)
class RowBuilder:
    """Builds the rows of one piece of a log from its verified frames, added in order."""

    raw: memoryview
    skimmer: Skimmer | None
    """None: the payloads are not looked into, and rows have only what the headers of their frames have."""
    frames: list[tuple[FrameHeader, int]] = field(default_factory=list[tuple[FrameHeader, int]])
    _ends: list[int] = field(default_factory=list[int])
    _firsts: list[int] = field(default_factory=list[int])
    _shifts: list[int] = field(default_factory=list[int])
    _runs: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])

    def add(self, header: FrameHeader, offset: int) -> None:
        """Add the frame whose header is at `offset`.

        Raises:
            PayloadInvalid: the payload does not match its kind.
        """
        self.frames.append((header, offset))
        if self.skimmer is not None:
            self._add_payload(header, offset + HEADER_BYTES, self.skimmer)

    def _add_payload(self, header: FrameHeader, body: int, skimmer: Skimmer) -> None:
        end = body + header.length
        kind, count = header.kind, header.count
        if kind == Kind.BLOB:
            self._firsts.append(body + _BLOB_HEAD.size + self._metadata_length(body, end))
            self._ends.append(end)
            self._shifts.append(0)
        elif kind == Kind.SYSTEM:
            self._firsts.append(body)
            self._ends.append(end)
            self._shifts.append(0)
        else:
            shift = body - skimmer.feed(self.raw[body:end])
            if kind == Kind.RUNS:
                self._add_runs(shift, count, skimmer)
            if skimmer.array() != count:
                raise PayloadInvalid(f"is not one array of {count} values")
            self._firsts.append(skimmer.position + shift)
            ends = skimmer.ends(count)
            if ends[-1] + shift != end:
                raise PayloadInvalid("bytes follow its values")
            self._ends += ends
            self._shifts.append(shift)
        if kind != Kind.RUNS:
            self._runs.append((header.session, header.sequence, count))

    def _metadata_length(self, body: int, end: int) -> int:
        if end - body < _BLOB_HEAD.size:
            raise PayloadInvalid("a blob is cut short")
        length: int = _BLOB_HEAD.unpack_from(self.raw, body)[0]
        if body + _BLOB_HEAD.size + length > end:
            raise PayloadInvalid("a blob's metadata is cut short")
        return length

    def _add_runs(self, shift: int, count: int, skimmer: Skimmer) -> None:
        if skimmer.array() != 2:
            raise PayloadInvalid("is not one array of 2 values")
        start = skimmer.position + shift
        [end] = skimmer.ends(1)
        runs = unpack_trusted(self.raw[start : end + shift], _no_ext)
        if type(runs) is not list or not runs or {list} != set(map(type, runs)) or {3} != set(map(len, runs)):
            raise PayloadInvalid("the runs are not an array of [session, sequence, count]")
        numbers = list(chain.from_iterable(runs))
        if {int} != set(map(type, numbers)) or min(numbers) < 0 or sum(numbers[2::3]) != count:
            raise PayloadInvalid(f"the runs do not hold {count} records")
        self._runs += map(tuple, runs)

    def rows(self, from_index: int, to_index: int) -> Rows:
        """The rows of the records [from_index, to_index) in the frames; at least one frame must have been added.

        Raises:
            PayloadInvalid: a record with headers is malformed.
        """
        headers = [header for header, _ in self.frames]
        counts = np.array([header.count for header in headers], np.int64)
        index = np.arange(headers[0].index, headers[0].index + int(counts.sum()), dtype=np.int64)
        kind = np.repeat(np.array([header.kind for header in headers], np.int8), counts)
        session = sequence = start = end = np.empty(0, np.int64)
        if self.skimmer is not None:
            session, sequence = self._sessions()
            start, end = self._places(counts)
        taken = slice(max(0, from_index - headers[0].index), max(0, to_index - headers[0].index))
        rows = Rows(
            self.raw,
            index[taken],
            np.repeat(_unsigned([header.epoch for header in headers]), counts)[taken],
            np.repeat(_unsigned([header.timestamp for header in headers]), counts)[taken],
            kind[taken],
            session[taken],
            sequence[taken],
            start[taken],
            end[taken],
            self.frames,
            {},
        )
        if self.skimmer is not None:
            self._unwrap(rows, self.skimmer)
        return rows

    def _places(self, counts: Integers) -> tuple[Integers, Integers]:
        end = np.array(self._ends, np.int64) + np.repeat(np.array(self._shifts, np.int64), counts)
        start = np.empty_like(end)
        start[1:] = end[:-1]
        start[np.cumsum(counts) - counts] = self._firsts
        return start, end

    def _sessions(self) -> tuple[Integers, Integers]:
        sessions, sequences, counts = zip(*self._runs, strict=True)
        counted = np.array(counts, np.int64)
        session = np.repeat(_unsigned(sessions), counted)
        # Sequences count up within a run; without a session there is no sequence.
        place = np.arange(len(session), dtype=np.int64) - np.repeat(np.cumsum(counted) - counted, counted)
        sequence = np.where(session != 0, np.repeat(_unsigned(sequences), counted) + place, 0)
        return session, sequence

    def _unwrap(self, rows: Rows, skimmer: Skimmer) -> None:
        """Find the headers of records, and the values inside the ext type that wraps both."""
        if not len(rows):
            return
        octets = np.frombuffer(self.raw, np.uint8)
        wrapped = _IS_EXT[octets[np.minimum(rows.start, len(octets) - 1)]]
        wrapped &= (rows.kind == Kind.RECORDS) | (rows.kind == Kind.RUNS)
        for row in np.flatnonzero(wrapped).tolist():
            self._unwrap_row(rows, row, skimmer)
        for row in np.flatnonzero(rows.kind == Kind.BLOB).tolist():
            self._blob_headers(rows, row)

    def _unwrap_row(self, rows: Rows, row: int, skimmer: Skimmer) -> None:
        start, end = int(rows.start[row]), int(rows.end[row])
        to_type, to_data = _EXT_PLACES[self.raw[start]]
        if self.raw[start + to_type] != HEADERS_EXT_TYPE:
            return
        data = start + to_data
        shift = data - skimmer.feed(self.raw[data:end])
        if skimmer.array() != 2:
            raise PayloadInvalid("a record with headers is not one array of 2 values")
        first = skimmer.position + shift
        ends = skimmer.ends(2)
        rows.headers[row] = bytes(self.raw[first : ends[0] + shift])
        rows.start[row], rows.end[row] = ends[0] + shift, ends[1] + shift

    def _blob_headers(self, rows: Rows, row: int) -> None:
        index = int(rows.index[row])
        body = next(offset for header, offset in self.frames if header.index == index) + HEADER_BYTES
        start = int(rows.start[row])
        if start > body + _BLOB_HEAD.size:
            rows.headers[row] = bytes(self.raw[body + _BLOB_HEAD.size : start])


def values_of(raw: memoryview, header: FrameHeader, offset: int) -> list[Value]:
    """The values of a frame as objects, which only the text of commands needs. Blobs and system records have none.

    Raises:
        PayloadInvalid: the payload does not match its kind.
    """
    payload = raw[offset + HEADER_BYTES : offset + HEADER_BYTES + header.length]
    match Kind(header.kind):
        case Kind.RECORDS:
            return decode_values(payload, header.count)
        case Kind.RUNS:
            return decode_runs(payload, header.count)[1]
        case Kind.BLOB | Kind.SYSTEM:
            return [None]


def headers_of(packed: bytes) -> dict[str, str]:
    """The headers in a msgpack map. Raises PayloadInvalid."""
    headers = unpack(packed)
    if type(headers) is not dict:
        raise PayloadInvalid("a record's headers are not a map")
    return headers


def _unsigned(values: Sequence[int]) -> Integers:
    # A u64 above Spark's longs (only a client's sequence can be) appears as the negative number with the same bits.
    return np.array(values, np.uint64).view(np.int64)


def _no_ext(code: int, _data: bytes) -> Never:
    raise PayloadInvalid(f"holds ext type {code}")
