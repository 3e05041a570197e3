"""What fuzzing checks of both decoders, frames and payloads; `fuzzing` runs it guided by coverage.

For any bytes, a decoder returns a value or raises an error of `quire.log`; and the value, encoded and decoded again, is
the same. Checksums are corrected first, because hardly any random input would pass them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from crc32c import crc32c

from quire.log import HEADER_BYTES, Frame, Kind, LogError, decode_header, encode_frame, stored_records, walk_frames
from quire.log.frames import FrameHeader
from quire.log.payload import (
    Record,
    decode_blob,
    decode_records,
    decode_system,
    encode_blob,
    encode_records,
    encode_system,
    stored_record,
)

_CRC = struct.Struct("<I")


def fix(raw: bytes) -> bytes:
    """Return the bytes with the crcs, the length and the version of frames that they would need."""
    fixed = bytearray(raw)
    position = 0
    while position + HEADER_BYTES < len(fixed):
        length = min(_CRC.unpack_from(fixed, position + 4)[0] % 512, len(fixed) - position - HEADER_BYTES)
        body = position + HEADER_BYTES
        _CRC.pack_into(fixed, position + 4, length)
        fixed[position + 56 : position + 60] = bytes([fixed[position + 56] % 5, 1, 0, 0])
        _CRC.pack_into(fixed, position + 60, crc32c(fixed[body : body + length]))
        _CRC.pack_into(fixed, position, crc32c(fixed[position + 4 : body]))
        position = body + length
    return bytes(fixed)


def fuzz_frames(raw: bytes) -> None:
    """Decode bytes as frames, unchanged and with corrected checksums."""
    for candidate in (raw, fix(raw)):
        position = 0
        try:
            for frame in walk_frames(candidate):
                header = frame.header
                again = _encoded(header, frame.payload)
                if again != candidate[position : position + header.size] or decode_header(again) != header:
                    raise ValueError(f"{header} is not what it was decoded from")
                position += header.size
                fuzz_frame(frame)
        except LogError:
            continue


def fuzz_frame(frame: Frame) -> None:
    """Decode every record of a frame, together and one by one."""
    records = stored_records(frame)
    for record in records[:20]:
        if repr(stored_record(frame, record.index)) != repr(record):
            raise ValueError(f"the record at {record.index} differs by itself")


def fuzz_payloads(raw: bytes) -> None:
    """Decode bytes as a payload of each kind."""
    count = raw[0] % 8 if raw else 1
    payload = raw[1:]
    attempts: Sequence[Callable[[], Any]] = (
        lambda: _same(decode_records, encode_records, payload, count),
        lambda: _same_blob(payload),
        lambda: _same_system(payload),
        lambda: fuzz_frames(_framed(payload, max(1, count), Kind.RUNS)),
        lambda: fuzz_frames(_framed(payload, max(1, count), Kind.RECORDS)),
    )
    for attempt in attempts:
        try:
            attempt()
        except LogError:
            continue


def _same(decode: Callable[..., Any], encode: Callable[..., Any], payload: bytes, count: int) -> None:
    records: list[Record] = decode(payload, count)
    again = decode(encode(records), count)
    if repr(again) != repr(records):
        raise ValueError(f"{records} comes back as {again}")


def _same_blob(payload: bytes) -> None:
    metadata, value = decode_blob(payload)
    if decode_blob(encode_blob(value, metadata)) != (metadata, value):
        raise ValueError(f"a blob with {metadata} comes back as another")


def _same_system(payload: bytes) -> None:
    fields = decode_system(payload)
    if repr(decode_system(encode_system(fields))) != repr(fields):
        raise ValueError(f"{fields} come back as others")


def _framed(payload: bytes, count: int, kind: Kind) -> bytes:
    return encode_frame(index=5, epoch=1, timestamp=1, count=count, prev_crc32c=0, kind=kind, payload=payload)


def _encoded(header: FrameHeader, payload: bytes) -> bytes:
    return encode_frame(
        index=header.index,
        epoch=header.epoch,
        timestamp=header.timestamp,
        count=header.count,
        prev_crc32c=header.prev_crc32c,
        kind=header.kind,
        payload=payload,
        session=header.session,
        sequence=header.sequence,
    )


TARGETS = {"frames": fuzz_frames, "payloads": fuzz_payloads}
