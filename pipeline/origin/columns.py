"""Rows as Arrow batches, made of buffers and offsets. Only the column `command` needs a Python object per record.

`pa.array` is avoided: its first call imports pandas, which takes half a second in each worker of Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quire.log import Kind
from quire.log.json_text import to_json_each

from ..errors import BatchTooLarge
from .rows import Rows, headers_of, values_of

HEADER_COLUMNS = frozenset({"index", "epoch", "timestamp", "kind", "segment"})
"""These are made of the headers of frames alone: rows without payloads have them."""
MAX_BATCH_ROWS = 65_536
MAX_BATCH_BYTES = 2**31 - 1
"""The limit of one column of a batch: Arrow's offsets have 32 bits."""

_KINDS = [b"records", b"blob", b"system", b"records"]
"""By the number of the kind. Whether a frame was coalesced does not matter to its records."""
_TEXTS_AT_ONCE = 1024
"""How many texts are separate objects at a time: orjson allocates a kibibyte or more for each, mostly unused."""
_NO_COMMAND = np.zeros(256, bool)
_NO_COMMAND[[0xC0, 0xC4, 0xC5, 0xC6]] = True
"""By the first byte of a value: nil, and raw bytes of any length, are not commands."""


def batches_of(rows: Rows, schema: pa.Schema, segment: int | None) -> Iterator[pa.RecordBatch]:
    """The rows as batches of at most MAX_BATCH_ROWS with exactly this schema; `segment` is the base of their segment.

    Raises:
        BatchTooLarge: the values of one column exceed MAX_BATCH_BYTES.
        PayloadInvalid: a frame's payload does not match its kind.
    """
    if not len(rows):
        return
    arrays = [_array(name, rows, schema.field(name).type, segment) for name in schema.names]
    whole = pa.RecordBatch.from_arrays(arrays, schema=schema)
    for start in range(0, len(rows), MAX_BATCH_ROWS):
        yield whole.slice(start, MAX_BATCH_ROWS)


def _array(name: str, rows: Rows, kind: pa.DataType, segment: int | None) -> pa.Array:
    match name:
        case "index" | "epoch" | "session" | "sequence":
            return _numbers(getattr(rows, name), kind)
        case "timestamp":
            return _numbers(rows.timestamp, kind)
        case "kind":
            names = _texts(_KINDS, np.array([len(name) for name in _KINDS]), np.ones(len(_KINDS), bool))
            kinds = pa.DictionaryArray.from_arrays(_numbers(rows.kind, pa.int8()), names)
            return kinds.dictionary_decode()
        case "value":
            return _values(rows)
        case "command":
            return _commands(rows)
        case "headers":
            return _headers(rows, kind)
        case "segment":
            count = len(rows)
            return pa.nulls(count, kind) if segment is None else _numbers(np.full(count, segment, np.int64), kind)
        case _:
            raise KeyError(name)


def _numbers(values: NDArray[np.integer], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def _texts(pieces: Sequence[bytes], lengths: NDArray[np.int64], present: NDArray[np.bool_]) -> pa.Array:
    """Concatenated UTF-8 as strings of these lengths; null where `present` is false."""
    valid = np.packbits(present, bitorder="little")
    buffers = [pa.py_buffer(valid), pa.py_buffer(_offsets(lengths)), pa.py_buffer(b"".join(pieces))]
    return pa.Array.from_buffers(pa.string(), len(lengths), buffers)


def _offsets(lengths: NDArray[np.int64]) -> NDArray[np.int32]:
    """The start of each item and the end of the last, for items without gaps.

    Raises:
        BatchTooLarge: the end exceeds 32 bits.
    """
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] > MAX_BATCH_BYTES:
        raise BatchTooLarge(int(offsets[-1]), MAX_BATCH_BYTES)
    return offsets.astype(np.int32)


def _values(rows: Rows) -> pa.Array:
    """The values' bytes. Adjacent values in the log are copied together."""
    start, end = rows.start, rows.end
    breaks = np.flatnonzero(start[1:] != end[:-1]) + 1
    firsts = start[np.concatenate(([0], breaks))].tolist()
    lasts = end[np.concatenate((breaks - 1, [len(end) - 1]))].tolist()
    offsets = _offsets(end - start)
    data = b"".join([rows.raw[first:last] for first, last in zip(firsts, lasts, strict=True)])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(rows), buffers)


def _commands(rows: Rows) -> pa.Array:
    """The values as JSON text; null for nil, raw bytes, blobs and system records, which are not commands."""
    octets = np.frombuffer(rows.raw, np.uint8)
    heads = octets[np.minimum(rows.start, len(octets) - 1)]
    is_record = (rows.kind == Kind.RECORDS) | (rows.kind == Kind.RUNS)
    present = is_record & ~_NO_COMMAND[heads]
    if not present.any():
        return pa.nulls(len(rows), pa.string())
    lengths = np.zeros(len(rows), np.int64)
    pieces: list[bytes] = []
    for header, offset in rows.frames:
        first = header.index - int(rows.index[0])  # The first and the last frame may extend beyond the rows.
        inside = np.flatnonzero(present[max(0, first) : max(0, first + header.count)]) + max(0, first)
        values = values_of(rows.raw, header, offset) if len(inside) else []
        for start in range(0, len(inside), _TEXTS_AT_ONCE):
            chosen = inside[start : start + _TEXTS_AT_ONCE]
            texts = to_json_each([values[row - first] for row in chosen.tolist()])
            lengths[chosen] = np.fromiter(map(len, texts), np.int64, len(texts))
            pieces.append(b"".join(texts))
    return _texts(pieces, lengths, present)


def _headers(rows: Rows, kind: pa.DataType) -> pa.Array:
    if not rows.headers:
        return pa.nulls(len(rows), kind)
    found: list[list[tuple[str, str]] | None] = [None] * len(rows)
    for row, packed in rows.headers.items():
        found[row] = list(headers_of(packed).items())
    return pa.array(found, kind)
