"""Write the golden promise file: `python -m tests.golden.make_promise` from the repository's top, quire importable.

A change that makes other bytes is a change of the format: it needs a new version, not new golden files.
"""

from pathlib import Path

from quire.log import MemoryDirectory
from quire.replication import Promise, PromiseFile
from quire.replication.promises import FILE_BYTES, PROMISE_FILE

GOLDEN = Path(__file__).parent / "promise"
DISK_ID = bytes(range(16, 32))
PROMISE = Promise(258, "node-2", 0x0102030405060708)


def write_promise() -> bytes:
    """The bytes of a promise file that holds `PROMISE` in both slots."""
    directory = MemoryDirectory()
    PromiseFile.create(directory, DISK_ID).write(PROMISE)
    return directory.open(PROMISE_FILE).read_at(0, FILE_BYTES)


if __name__ == "__main__":
    GOLDEN.write_bytes(write_promise())
