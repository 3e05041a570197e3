"""A stored record as a line of JSON: what a node answers with, and what `quire log dump` prints."""

from typing import Any

from quire.log import Kind, StoredRecord

KIND_NAMES = {Kind.RECORDS: "records", Kind.RUNS: "records", Kind.BLOB: "blob", Kind.SYSTEM: "system"}


def line_of(record: StoredRecord, executed: bool | None) -> dict[str, Any]:
    """A record as a line of an answer. `executed` is as in `Applying.executed`, None for a system record."""
    return {
        "index": record.index,
        "epoch": record.epoch,
        "timestamp": record.timestamp,
        "kind": KIND_NAMES[Kind(record.kind)],
        "session": record.session,
        "sequence": record.sequence,
        "executed": None if record.kind == Kind.SYSTEM else executed,
        "headers": dict(record.headers) if record.headers else {},
        "value": record.value,
    }
