"""Rows that are not commands, kept as a table of Parquet files instead of failing their batch.

    LOCATION/
      batch=12/part-00003.parquet    the bad rows of a partition of a batch; `spark.read.parquet(LOCATION)` shows all
      _quire/identity                the cluster, the session and the query whose batches these are
      _quire/bad-...                 files of tasks, which no reader of Parquet sees

A task does not know its batch. The batch's plan names the tasks' files, as it names their spools, so a batch that runs
again publishes what was planned. Before the batch is marked as done, each file is copied under its final name: written
under a name that readers ignore, synced and renamed. The tasks' files are removed once the batch is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from quire.log import Directory

from .errors import RowRefused, SpoolDamaged
from .state import SinkState

BAD = "bad-"
OWN_FOLDER = "_quire"
"""Spark ignores names that start with an underscore."""
GROUP_ROWS = 1000
"""How many rows a task holds before it writes them."""
COPY_BYTES = 1 << 20
_HALF = "_half-"
_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("row", pa.int64()),
        ("code", pa.string()),
        ("text", pa.string()),
        ("value", pa.binary()),
    ]
)


class BadFile(NamedTuple):
    """A task's file with the bad rows of one partition."""

    name: str
    partition: int
    size: int
    crc32c: int


class BadRowsWriter:
    """Writes the bad rows of a partition; `finished` makes them durable. The file is created with the first rows."""

    def __init__(self, location: Directory, name: str, partition: int) -> None:
        self._location = location
        self._name = name
        self._partition = partition
        self._rows: list[tuple[RowRefused, bytes | None]] = []
        self._sink: _Sink | None = None
        self._file: pq.ParquetWriter | None = None

    def add(self, refused: RowRefused, value: object) -> None:
        """Append a row; `value` as it was given, a string or bytes or nothing."""
        self._rows.append((refused, value.encode() if isinstance(value, str) else value))  # type: ignore[arg-type]
        if len(self._rows) == GROUP_ROWS:
            self._write()

    def finished(self) -> BadFile | None:
        """Make the file durable and return it; None if there was no row."""
        if self._rows:
            self._write()
        if self._file is None or self._sink is None:
            return None
        self._file.close()
        self._sink.storage.sync()
        self._sink.storage.close()
        self._sink.folder.sync()
        self._location.sync()
        return BadFile(self._name, self._partition, self._sink.size, self._sink.crc32c)

    def _write(self) -> None:
        if self._file is None:
            self._sink = _Sink(self._location.child(OWN_FOLDER), self._name)
            self._file = pq.ParquetWriter(pa.PythonFile(self._sink, mode="w"), _SCHEMA)
        rows = [(*refused, value) for refused, value in self._rows]
        self._file.write_table(pa.table([list(column) for column in zip(*rows, strict=True)], schema=_SCHEMA))
        self._rows = []


class _Sink:
    """A new file as Arrow writes it."""

    closed = False

    def __init__(self, folder: Directory, name: str) -> None:
        self.folder = folder
        self.storage = folder.create(name)
        self.size = 0
        self.crc32c = 0

    def write(self, data: bytes) -> int:
        raw = bytes(data)
        self.storage.write_at(self.size, raw)
        self.size += len(raw)
        self.crc32c = crc32c(raw, self.crc32c)
        return len(raw)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        """The file is synced when it is finished."""

    def close(self) -> None:
        """The writer closes the file once it is synced."""


class BadRowsFolder:
    """The table of one query's bad rows."""

    def __init__(self, location: Directory) -> None:
        self._location = location

    def identify(self, cluster_id: str, session: str, query: str | None) -> None:
        """Claim an unused folder, or check that it is this query's: batch numbers mean nothing for another.

        Raises:
            ForeignCluster, OptionRefused, SpoolDamaged: as `SinkState.identify`.
        """
        own = self._location.child(OWN_FOLDER)
        self._location.sync()
        SinkState(own, "badRowsLocation").identify(cluster_id, session, query)

    def check(self, files: Iterable[BadFile]) -> None:
        """Read and verify tasks' files. Raises SpoolDamaged."""
        own = self._location.child(OWN_FOLDER)
        for file in files:
            _pieces(own, file)

    def publish(self, batch: int, files: Sequence[BadFile]) -> None:
        """Make these files the bad rows of a batch, in place of any others; durable on return.

        Raises:
            SpoolDamaged: a file is not the one that its task wrote, and it was not published before. Readers
                see what they saw.
        """
        name = f"batch={batch}"
        if not files and name not in self._location.list():
            return
        own, folder = self._location.child(OWN_FOLDER), self._location.child(name)
        self._location.sync()
        wanted = {f"part-{file.partition:05d}.parquet": file for file in files}
        halves: dict[str, str] = {}
        for target, file in sorted(wanted.items()):
            if _is_in(folder, target, file):
                continue
            pieces = _pieces(own, file)
            halves[target] = f"{_HALF}{uuid4().hex}"
            with closing(folder.create(halves[target])) as storage:
                position = 0
                for piece in pieces:
                    storage.write_at(position, piece)
                    position += len(piece)
                storage.sync()
        # Readers see nothing change until all files are verified and copied.
        for target, half in halves.items():
            folder.rename(half, target)
        folder.sync()
        for other in set(folder.list()) - wanted.keys():
            folder.remove(other)
        folder.sync()

    def names(self) -> list[str]:
        """The files of tasks that exist now."""
        return [name for name in self._location.child(OWN_FOLDER).list() if name.startswith(BAD)]

    def discard(self, names: Iterable[str]) -> None:
        """Remove files of tasks, if they still exist."""
        SinkState(self._location.child(OWN_FOLDER)).discard(names)


def _is_in(folder: Directory, name: str, file: BadFile) -> bool:
    """Whether a file was published before."""
    try:
        _pieces(folder, file, name)
    except SpoolDamaged:
        return False
    return True


def _pieces(folder: Directory, file: BadFile, name: str | None = None) -> list[bytes]:
    """The verified content of a file. Raises SpoolDamaged."""
    path = f"{folder.path}/{name or file.name}"
    try:
        storage = folder.open(name or file.name)
    except FileNotFoundError:
        reason = "a file of the batch's bad rows is missing; if badRowsLocation has changed, give the former folder"
        raise SpoolDamaged(path, reason) from None
    with closing(storage):
        if storage.size != file.size:
            raise SpoolDamaged(path, f"has {storage.size} bytes, but {file.size} were written")
        pieces = [storage.read_at(start, COPY_BYTES) for start in range(0, file.size, COPY_BYTES)]
    found = 0
    for piece in pieces:
        found = crc32c(piece, found)
    if found != file.crc32c:
        raise SpoolDamaged(path, "its crc32c does not match")
    return pieces
