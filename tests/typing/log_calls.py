"""The types of the log's public calls."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import assert_type

from quire.log import (
    Bounds,
    Directory,
    FileDirectory,
    Frame,
    FrameHeader,
    Log,
    LogOptions,
    MemoryDirectory,
    Record,
    StoredRecord,
    Value,
    ValueStream,
    pack,
    stored_records,
    unpack,
    wall_clock,
)


def opening(path: Path) -> Log:
    """A log opens on files or in memory."""
    directories: list[Directory] = [FileDirectory(path), MemoryDirectory()]
    return Log.open(directories[0], LogOptions(), cluster_id=bytes(16), clock=wall_clock, standalone=True)


def writing(log: Log) -> None:
    """Appends return indices, and `durable_index` says what is on disk."""
    assert_type(log.append(["value", Record(7, {"key": "value"})], expected_index=0), int)
    with log.spools.begin(metadata={"key": "value"}) as spool:
        spool.write(b"chunk")
        assert_type(log.spools.append(spool), int)
    log.flush()
    assert_type(log.durable_index, int)
    bounds = log.bounds
    assert_type(bounds, Bounds)
    assert_type(bounds.lowest_index, int)
    assert_type(bounds.highest_index, int)
    log.close()


def reading(log: Log) -> None:
    """Records, frames and streams."""
    record = log.read(0)
    assert_type(record, StoredRecord)
    assert_type(record.index, int)
    assert_type(record.headers, Mapping[str, str] | None)
    assert_type(record.value, Value)
    assert_type(log.reader.value_stream(1), ValueStream)
    frame = log.reader.frame(0)
    assert_type(frame, Frame)
    assert_type(frame.header, FrameHeader)
    assert_type(log.read_frames(0, 1 << 20), tuple[bytes, int])
    assert_type(log.reader.stream(0, 10), Iterator[Frame])
    for stored in stored_records(frame):
        assert_type(stored, StoredRecord)


def values() -> None:
    """Values as msgpack."""
    assert_type(pack({"key": [1, 2.5, None, b"bytes"]}), bytes)
    assert_type(unpack(b"\xc0"), object)
