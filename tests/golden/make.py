"""Write the golden files of the log: `python -m tests.golden.make` from the repository's top, with quire importable.

They are made by the log itself, from fixed values and a clock that counts, and committed. A change that makes other
bytes is a change of the format: it needs a new version, not new golden files.
"""

from __future__ import annotations

import random
from pathlib import Path

from quire.log import (
    FileDirectory,
    Kind,
    Log,
    LogOptions,
    MemoryDirectory,
    Record,
    Run,
    encode_blob,
    encode_records,
    encode_runs,
    encode_system,
    pack,
)
from quire.log.options import STORE_HEADER_BYTES
from quire.log.packing import ExtType
from quire.log.segment.store import decode_store_header
from quire.log.segment.survey import Survey
from quire.log.storage import Directory

FOLDER = Path(__file__).parent
SEED = 20_260_101
CLUSTER_ID = bytes(range(16))
OPTIONS = LogOptions(segment_bytes=4096, index_interval_bytes=256)
STORE, INDEX, MARK = "00000000000000000000.store", "00000000000000000000.index", "mark"


def write_log(directory: Directory) -> None:
    """Write a log with frames of each kind, committed below 9, stopped cleanly."""
    times = iter(range(1_767_225_600_000_000, 1_767_225_600_000_100))
    log = Log.open(directory, OPTIONS, cluster_id=CLUSTER_ID, clock=lambda: next(times), standalone=False)
    rng = random.Random(SEED)
    genesis = {
        "type": "genesis",
        "cluster_id": CLUSTER_ID,
        "members": [["n1", bytes([1] * 16), "127.0.0.1:7001", "voter"]],
        "machine": ["arithmetic", 1],
        "initial": 42,
        "limits": {"max_frame_bytes": 8 << 20},
    }
    log.append_payload(encode_system(genesis), count=1, kind=Kind.SYSTEM, epoch=0)
    log.append_payload(encode_system({"type": "epoch_start", "node_id": "n1"}), count=1, kind=Kind.SYSTEM, epoch=1)
    values = [["add", 3], ["div", "5.5"], None, True, -1, 1 << 63, 1.5, "é", b"\x00\xff", ExtType(16, b"free")]
    log.append_payload(encode_records(values), count=len(values), kind=Kind.RECORDS, epoch=1, session=7, sequence=1)
    log.append([Record({"k": [1, {"deep": []}]}, {"trace": "a1"}), "plain"], epoch=1)
    runs = [Run(7, 11, 2), Run(0, 0, 1)]
    log.append_payload(encode_runs(runs, [["mul", 2], ["sub", 1], rng.randbytes(9)]), count=3, kind=Kind.RUNS, epoch=2)
    log.append_payload(encode_blob(rng.randbytes(300), {"name": "b"}), count=1, kind=Kind.BLOB, epoch=2)
    log.append_payload(encode_blob(b""), count=1, kind=Kind.BLOB, epoch=4)
    log.append([pack(rng.randrange(1 << 40)) for _ in range(5)], epoch=4)
    log.mark.commit_index = 9
    log.close()


def golden_files() -> dict[str, bytes]:
    """Return the files' bytes by name, the store trimmed to its frames."""
    directory = MemoryDirectory()
    write_log(directory)
    mark = directory.open(MARK).read_at(0, 1 << 20)
    log = Log.open(directory, OPTIONS, cluster_id=CLUSTER_ID, clock=lambda: 0, standalone=False)
    end = STORE_HEADER_BYTES + log.size
    store = directory.child("log").open(STORE)
    survey = Survey(decode_store_header(store.read_at(0, end), STORE), OPTIONS.index_interval_bytes, None)
    survey.glance(store, end)
    return {STORE: store.read_at(0, end), INDEX: survey.index.encode(), MARK: mark}


def main() -> None:
    """Write them beside this script."""
    folder = FileDirectory(FOLDER)
    for name, content in golden_files().items():
        if name in folder.list():
            folder.remove(name)
        folder.create(name).write_at(0, content)


if __name__ == "__main__":
    main()
