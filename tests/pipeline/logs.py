"""Logs to read, written by the log itself, and what must come out of them."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from quire.log import (
    FileDirectory,
    FrameInvalid,
    Kind,
    Log,
    LogOptions,
    Record,
    Run,
    StoredRecord,
    encode_blob,
    encode_frame,
    encode_records,
    encode_runs,
    encode_system,
    pack,
    stored_records,
    walk_frames,
)
from quire.log.json_text import to_json

CLUSTER = b"c" * 16
SMALL = LogOptions(segment_bytes=2048, index_bytes=1 << 20, index_interval_bytes=256)
START = 1_700_000_000_000_000
SECOND = 1_000_000


class Clock:
    """Time that does not advance until it is set; microseconds since 1970."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now


@contextmanager
def writing(
    path: Path, options: LogOptions = SMALL, clock: Clock | None = None, cluster_id: bytes = CLUSTER, first: int = 0
) -> Generator[Log]:
    """A standalone log that is open for writing; closed, and so marked to its end, afterwards."""
    log = Log.open(
        FileDirectory(path),
        options,
        cluster_id=cluster_id,
        clock=clock or Clock(),
        standalone=True,
        initial_index=first,
    )
    try:
        yield log
    finally:
        log.close()


def append_and_flush(log: Log, *batches: Sequence[Any]) -> None:
    """Append each batch as a frame, and make all of it durable and so, in a standalone log, committed."""
    for batch in batches:
        log.append(batch)
    log.flush()


class Frames:
    """Frames of every kind, chained, as a leader would write them."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.epoch = 1

    def add(self, kind: Kind, payload: bytes, count: int = 1, session: int = 0, sequence: int = 0) -> None:
        tail = self._log.tail
        frame = encode_frame(
            index=tail.index,
            epoch=self.epoch,
            timestamp=max(tail.timestamp, START) + SECOND,
            count=count,
            prev_crc32c=tail.crc32c,
            kind=kind,
            payload=payload,
            session=session,
            sequence=sequence,
        )
        self._log.append_frames(frame)

    def records(self, *values: Any, session: int = 0, sequence: int = 0) -> None:
        self.add(Kind.RECORDS, encode_records(values), len(values), session, sequence)

    def runs(self, runs: Sequence[Run], *values: Any) -> None:
        self.add(Kind.RUNS, encode_runs(runs, values), len(values))

    def blob(self, value: bytes, metadata: dict[str, str] | None = None) -> None:
        self.add(Kind.BLOB, encode_blob(value, metadata))

    def system(self, **fields: Any) -> None:
        self.add(Kind.SYSTEM, encode_system(fields))


def every_kind(log: Log) -> None:
    """A history in which every kind of frame and of value stands, headers, sessions and two epochs among them."""
    frames = Frames(log)
    frames.system(type="epoch_start", node_id="n1")
    frames.records(["add", 3])
    frames.records(b"raw", "text", None, 7, -1, 2.5, True, [], {"a": [1, b"x"]}, session=1, sequence=5)
    frames.records(
        Record(["put", "k", "v"], {"trace": "1", "from": "here"}), ["plain"], Record(b"raw", {}), Record(None)
    )
    frames.runs([Run(9, 4, 2), Run(0, 0, 1), Run(8, 1, 3)], ["a"], ["b"], b"c", Record(["d"], {"h": "d"}), ["e"], ["f"])
    frames.epoch = 2
    frames.system(type="epoch_start", node_id="n2")
    frames.blob(b"large" * 300, {"name": "five"})
    frames.blob(b"")
    frames.records("ü" * 200, b"\x00" * 300, list(range(100)), 2**64 - 1, -(2**63))
    for number in range(40):
        frames.records(["set", number, "x" * number], session=3, sequence=number + 1)
    log.flush()


def stored(path: Path) -> list[tuple[StoredRecord, int]]:
    """Every record of a log that no process has open, with its segment's base, read one by one by the log's code."""
    found: list[tuple[StoredRecord, int]] = []
    for store in sorted((path / "log").glob("*.store")):
        raw = memoryview(store.read_bytes())[64:]
        with suppress(FrameInvalid):  # Behind the last frame of a write segment there may be zeros.
            for frame in walk_frames(raw):
                found += [(record, int(store.stem)) for record in stored_records(frame)]
    return found


def row_of(record: StoredRecord, segment: int | None) -> dict[str, Any]:
    """What Spark must show of a record, by the column."""
    value = record.value
    own = record.kind in (Kind.RECORDS, Kind.RUNS)
    is_command = own and value is not None and not isinstance(value, bytes)
    names = {Kind.RECORDS: "records", Kind.RUNS: "records", Kind.BLOB: "blob", Kind.SYSTEM: "system"}
    return {
        "index": record.index,
        "epoch": record.epoch,
        "timestamp": datetime.fromtimestamp(record.timestamp / SECOND, UTC).replace(tzinfo=None),
        "kind": names[Kind(record.kind)],
        "session": record.session,
        "sequence": record.sequence,
        "value": value if record.kind == Kind.BLOB else pack(value),
        "command": to_json(value).decode() if is_command else None,
        "headers": dict(record.headers) if record.headers is not None else None,
        "segment": segment,
    }


def expected_rows(path: Path) -> list[dict[str, Any]]:
    """What Spark must show of the whole log."""
    return [row_of(record, segment) for record, segment in stored(path)]
