"""The payloads of the four kinds of frames.

records   one msgpack array of count values; a record with headers is ext type 1 holding [map, value]
runs      one msgpack array of two: [[session, sequence, count], ...] and the array of all their records
blob      metadata_len u32, metadata (a msgpack map, may be empty), the raw value; count 1
system    one msgpack map, keys in the order given; count 1
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain
from typing import NamedTuple, cast

from .errors import PayloadInvalid
from .frames import Frame, FrameHeader, Kind
from .packing import (
    RESERVED_EXT_TYPES,
    ExtType,
    Skimmer,
    Value,
    all_plain,
    check_containers,
    check_value,
    pack,
    unpack,
    unpack_trusted,
)

HEADERS_EXT_TYPE = 1
MAX_SYSTEM_BYTES = 8 << 20
MAX_SYSTEM_CONTAINERS = 1 << 20
"""Of a system record that others wrote. The largest that a leader writes is a genesis, of 1 MiB at most."""
MAX_FRAME_VALUES = (1 << 20) + (1 << 16)
"""In any other frame that others wrote, and in a blob's metadata; arrays and maps are values, too.

Of a node's writes a frame has 1 MiB of values at most, unless one is longer, and their heads.
"""

_HEADERS_CODE = bytes([HEADERS_EXT_TYPE])
_LENGTH = struct.Struct("<I")


class Record(NamedTuple):
    """A value to store, with headers (text to text) or None."""

    value: Value
    headers: Mapping[str, str] | None = None


class Run(NamedTuple):
    """One request's share of a `runs` frame; session and sequence are 0 for a request without a session."""

    session: int
    sequence: int
    count: int  # type: ignore[assignment]


class StoredRecord(NamedTuple):
    """A record as the log holds it."""

    index: int  # type: ignore[assignment]
    epoch: int
    timestamp: int
    kind: int
    headers: Mapping[str, str] | None
    value: Value
    session: int
    sequence: int


def encode_records(records: Sequence[object]) -> bytes:
    """Return the payload of kind `records` that holds values and `Record`s, at least one.

    Raises:
        PayloadInvalid: there is no record, or a value cannot be stored.
    """
    if not records:
        raise PayloadInvalid("holds no record")
    return pack(_storable(records))


def _storable(records: Sequence[object]) -> Sequence[object]:
    if all_plain(records):
        return records
    return [_storable_record(record) for record in records]


def _storable_record(record: object) -> object:
    if type(record) is not Record:
        check_value(record)
        return record
    check_value(record.value)
    if record.headers is None:
        return record.value
    headers = dict(record.headers)
    if not all(type(key) is str and type(text) is str for key, text in headers.items()):
        raise PayloadInvalid("headers are not text to text")
    return ExtType(HEADERS_EXT_TYPE, pack([headers, record.value]))


def decode_values(payload: bytes | memoryview, count: int) -> list[Value]:
    """Return the values of a payload of kind `records`, without headers.

    Raises:
        PayloadInvalid: it is not exactly one array of `count` values.
    """
    return _array(unpack_trusted(payload, _value_of_ext), count)


def decode_records(payload: bytes | memoryview, count: int) -> list[Record]:
    """Return the records of a payload of kind `records`, with headers.

    Raises:
        PayloadInvalid: it is not exactly one array of `count` values.
    """
    return _records(_array(unpack_trusted(payload, _record_of_ext), count))


def encode_runs(runs: Sequence[Run], records: Sequence[object]) -> bytes:
    """Return the payload of kind `runs`.

    Raises:
        PayloadInvalid: a run is empty, the runs do not add up to the records, or a value cannot be stored.
    """
    if not records or not all(run.count > 0 for run in runs) or sum(run.count for run in runs) != len(records):
        raise PayloadInvalid(f"the runs do not add up to {len(records)} records")
    return pack([[list(run) for run in runs], _storable(records)])


def decode_runs(payload: bytes | memoryview, count: int) -> tuple[list[Run], list[Value]]:
    """Return the runs and values of a payload of kind `runs`, without headers.

    Raises:
        PayloadInvalid: it breaks the format, or does not hold `count` records.
    """
    return _decode_runs(payload, count, _value_of_ext)


def truncate_runs(payload: bytes | memoryview, count: int, kept: int) -> bytes:
    """Return a payload of kind `runs` with the first `kept` of the `count` records.

    Raises:
        PayloadInvalid: it breaks the format, or does not hold `count` records.
    """
    runs, values = _decode_runs(payload, count, _record_of_ext)
    kept_runs: list[Run] = []
    left = kept
    for run in runs:
        if left > 0:
            kept_runs.append(run._replace(count=min(run.count, left)))
            left -= run.count
    return encode_runs(kept_runs, _records(values)[:kept])


def _decode_runs(
    payload: bytes | memoryview, count: int, ext_hook: Callable[[int, bytes], object]
) -> tuple[list[Run], list[Value]]:
    raw_runs, values = _array(unpack_trusted(payload, ext_hook), 2)
    return _runs(raw_runs, count), _array(values, count)


def _runs(raw: object, count: int) -> list[Run]:
    """Return the runs, each of which must be three integers. There may be thousands, so no Python loop checks them."""
    if type(raw) is list and {list}.issuperset(map(type, raw)) and {3}.issuperset(map(len, raw)):
        numbers = list(chain.from_iterable(raw))
        if {int}.issuperset(map(type, numbers)) and min(numbers, default=0) >= 0:
            counts = numbers[2::3]
            if sum(counts) != count or 0 in counts:
                raise PayloadInvalid(f"the runs hold {sum(counts)} records, not {count}")
            return [tuple.__new__(Run, run) for run in raw]
    raise PayloadInvalid("the runs are not an array of [session, sequence, count]")


def encode_blob(value: bytes | memoryview, metadata: Mapping[str, str] | None = None) -> bytes:
    """Return the payload of kind `blob`."""
    return b"".join((blob_head(metadata), value))


def blob_head(metadata: Mapping[str, str] | None) -> bytes:
    """Return the bytes before the value in the payload of kind `blob`."""
    packed = pack(dict(metadata)) if metadata else b""
    return _LENGTH.pack(len(packed)) + packed


def decode_blob(payload: bytes | memoryview) -> tuple[dict[str, str], bytes]:
    """Return the metadata and the raw value of a payload of kind `blob`.

    Raises:
        PayloadInvalid: the metadata is cut short, or not a map of text to text.
    """
    if len(payload) < _LENGTH.size:
        raise PayloadInvalid("a blob is cut short")
    start = _LENGTH.size + _LENGTH.unpack_from(payload)[0]
    if start > len(payload):
        raise PayloadInvalid("a blob's metadata is cut short")
    metadata = unpack(payload[_LENGTH.size : start]) if start > _LENGTH.size else {}
    if type(metadata) is not dict or not all(type(key) is str and type(text) is str for key, text in metadata.items()):
        raise PayloadInvalid("a blob's metadata is not a map of text to text")
    return metadata, bytes(payload[start:])


def encode_system(fields: Mapping[str, object]) -> bytes:
    """Return the payload of kind `system`, with the keys in their own order; `type` names the record.

    Raises:
        PayloadInvalid: there is no `type`, or a value cannot be packed.
    """
    if type(fields.get("type")) is not str:
        raise PayloadInvalid("a system record has no type")
    return pack(dict(fields))


def decode_system(payload: bytes | memoryview) -> dict[str, Value]:
    """Return the map of a payload of kind `system`.

    Raises:
        PayloadInvalid: it is not a map with text keys and a `type`.
    """
    fields = unpack(payload)
    if type(fields) is not dict or type(fields.get("type")) is not str or not all(type(key) is str for key in fields):
        raise PayloadInvalid("a system record is not a map with a type")
    return fields


def check_frame(kind: int, payload: bytes | memoryview) -> None:
    """Check that a frame that others wrote can be decoded within bounded memory; before its payload is.

    Raises:
        PayloadInvalid: it has more bytes, values, or arrays and maps, than any that a node writes.
    """
    if kind == Kind.SYSTEM:
        check_system(payload)
        return
    if kind == Kind.BLOB:
        length = int.from_bytes(payload[: _LENGTH.size], "little")
        payload = payload[_LENGTH.size : _LENGTH.size + length]
    if len(payload) > MAX_FRAME_VALUES:  # A shorter one cannot hold more.
        check_containers(payload, MAX_FRAME_VALUES, MAX_FRAME_VALUES, _HEADERS_CODE)


def check_system(payload: bytes | memoryview) -> None:
    """Check that a system record that others wrote can be decoded within bounded memory; before `decode_system`.

    Raises:
        PayloadInvalid: it has more bytes, or more arrays and maps, than any that a leader writes.
    """
    if len(payload) > MAX_SYSTEM_BYTES:
        raise PayloadInvalid(f"a system record has {len(payload):,} bytes")
    check_containers(payload, MAX_SYSTEM_CONTAINERS)


def frame_values(frame: Frame) -> list[Value]:
    """Return the value of each record of a frame of any kind.

    Raises:
        PayloadInvalid: the payload breaks the format of its kind.
    """
    header, payload = frame
    match Kind(header.kind):
        case Kind.RECORDS:
            return decode_values(payload, header.count)
        case Kind.RUNS:
            return decode_runs(payload, header.count)[1]
        case Kind.BLOB:
            return [decode_blob(payload)[1]]
        case Kind.SYSTEM:
            return [decode_system(payload)]


def stored_records(frame: Frame, positions: slice = slice(None)) -> list[StoredRecord]:
    """Return the records of a frame, or some of them, as `each_stored_record`."""
    return list(each_stored_record(frame, positions))


def each_stored_record(frame: Frame, positions: slice = slice(None)) -> Iterator[StoredRecord]:
    """Return an iterator of a frame's records, or some of them, with index, headers, session and sequence.

    A record is unpacked when it is asked for, and those that are not chosen never are: they are passed over, so only
    the format of what was asked for is known to be right. `positions` go up.

    Raises:
        PayloadInvalid: the payload breaks the format of its kind; also when a record is asked for.
    """
    header = frame.header
    chosen = range(header.count)[positions]
    runs, values = _runs_and_values(frame, chosen)
    if len(runs) == 1:
        return map(partial(_stored, header, runs[0], 0), chosen, values)
    ends = list(accumulate(run.count for run in runs))

    def of_run(position: int, value: Value | Record) -> StoredRecord:
        at = bisect_right(ends, position)
        return _stored(header, runs[at], ends[at] - runs[at].count, position, value)

    return map(of_run, chosen, values)


def stored_record(frame: Frame, index: int) -> StoredRecord:
    """Return the one record at `index`, which the frame holds.

    Raises:
        PayloadInvalid: the payload breaks the format of its kind.
    """
    position = index - frame.header.index
    return next(each_stored_record(frame, slice(position, position + 1)))


def _runs_and_values(frame: Frame, chosen: range) -> tuple[list[Run], Iterable[Value | Record]]:
    """The runs of a frame of any kind, and its values at the chosen positions; those with headers are `Record`s."""
    header, payload = frame
    only_run = Run(header.session, header.sequence, header.count)
    match Kind(header.kind):
        case Kind.RECORDS:
            return [only_run], _values(_skimmer(payload), payload, header.count, chosen)
        case Kind.RUNS:
            skimmer = _skimmer(payload)
            if skimmer.array() != 2:
                raise PayloadInvalid("is not one array of 2 values")
            runs = _runs(skimmer.value(), header.count)
            return runs, _values(skimmer, payload, header.count, chosen)
        case Kind.BLOB:
            metadata, value = decode_blob(payload)
            return [only_run], [Record(value, metadata or None)]
        case Kind.SYSTEM:
            return [only_run], [decode_system(payload)]


def _skimmer(payload: bytes) -> Skimmer:
    skimmer = Skimmer(_record_of_ext, len(payload))
    skimmer.feed(payload)
    return skimmer


def _values(skimmer: Skimmer, payload: bytes, count: int, chosen: range) -> Iterator[Value | Record]:
    """The chosen ones of the array of `count` values that begins here and ends the payload."""
    if skimmer.array() != count:
        raise PayloadInvalid(f"is not one array of {count} values")
    at = 0
    for position in chosen:
        value = cast("Value | Record", skimmer.value(position - at))
        at = position + 1
        if at == count and skimmer.position != len(payload):
            raise PayloadInvalid("is not exactly one msgpack value")
        yield value


def _stored(header: FrameHeader, run: Run, run_start: int, position: int, value: Value | Record) -> StoredRecord:
    """The record at a position of a frame; its run begins at the position `run_start`."""
    headers = None
    if isinstance(value, Record):
        value, headers = value
    sequence = run.sequence + position - run_start if run.session else 0
    return StoredRecord(
        header.index + position, header.epoch, header.timestamp, header.kind, headers, value, run.session, sequence
    )


def _array(value: object, count: int) -> list[Value]:
    if type(value) is not list or len(value) != count:
        raise PayloadInvalid(f"is not one array of {count} values")
    return value


def _records(values: Sequence[Value | Record]) -> list[Record]:
    return [value if isinstance(value, Record) else Record(value) for value in values]


def _record_of_ext(code: int, data: bytes) -> Record | ExtType:
    if code != HEADERS_EXT_TYPE:
        if code in RESERVED_EXT_TYPES:
            raise PayloadInvalid(f"ext type {code} is reserved")
        return ExtType(code, data)
    return _headed(unpack(data, ext=True))


def _headed(parts: object) -> Record:
    """Return the record with headers that ext type 1 holds."""
    if type(parts) is not list or len(parts) != 2:
        raise PayloadInvalid("is not one array of 2 values")
    value: Value = parts[1]
    if type(parts[0]) is not dict:
        raise PayloadInvalid("a record's headers are not a map")
    return Record(value, parts[0])


def _value_of_ext(code: int, data: bytes) -> object:
    record = _record_of_ext(code, data)
    return record.value if type(record) is Record else record
