"""A real cluster under load that is backed up, and what a backup of it must restore to."""

import asyncio
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import NamedTuple, Self

from quire.cluster import client as quire_client
from quire.cluster.backup.contents import Contents, Point, choose, read_all
from quire.cluster.backup.restore import Restored, Wanted, plan_of
from quire.cluster.backup.run import Backup, Outcome
from quire.cluster.backup.store import FolderStore, Store, Stored, StoreFailed
from quire.cluster.data_dir.data_dir import DataDir
from quire.cluster.data_dir.restoration import restore
from quire.log import FileDirectory, LogOptions, walk_frames, wall_clock
from quire.sm import Applier, Sessions
from tests.processes.adder import Adder
from tests.processes.cluster import Cluster, Node, Unreachable
from tests.verdict.verdict import Replay, Sum

MACHINE = ("--machine", "tests.processes.adder:Adder")
OPTIONS = LogOptions(segment_bytes=1 << 20, max_frame_bytes=1 << 20)
PIECE_BYTES = 16 << 10


class Load:
    """Writers that add on one node until the block ends; what does not answer is written again elsewhere."""

    def __init__(self, nodes: Sequence[Node], padding: int = 40) -> None:
        self._nodes = nodes
        self._padding = "x" * padding
        self._ending = Event()
        self.acknowledged = 0
        self._thread = Thread(target=self._write)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ending.set()
        self._thread.join()

    def _write(self) -> None:
        number = 0
        while not self._ending.is_set():
            number += 1
            try:
                self._nodes[number % len(self._nodes)].apply(*[["add", number, self._padding]] * 5)
                self.acknowledged += 5
            except (Unreachable, AssertionError):
                self._ending.wait(0.05)  # A node is being killed, or elected.

    def wait_for(self, cluster: Cluster, more: int) -> None:
        goal = self.acknowledged + more
        cluster.wait_until(f"{goal} commands are acknowledged", lambda: self.acknowledged >= goal)


def run(store: Store, cluster: Cluster, **options: object) -> Outcome:
    """One run of a backup of a cluster, in this process, as a fresh process would do it."""
    said: list[str] = []

    async def once() -> Outcome:
        asked = {"piece_bytes": PIECE_BYTES, **options}
        backup = Backup(store, wall_clock, said.append, **asked)  # type: ignore[arg-type]
        async with quire_client.connect(cluster.servers, timeout_s=20) as client:
            return await backup.run(client, cluster.servers.split(","))

    return asyncio.run(once())


def newest_only(store: FolderStore, folder: Path) -> FolderStore:
    """A copy of a backup with its newest manifest alone: older ones may name what was lost."""
    shutil.copytree(store.name, folder)
    for path in sorted((folder / "manifests").iterdir())[:-1]:
        path.unlink()
    return FolderStore(folder)


class State(NamedTuple):
    """Where a restored node's log ended before its new history, and what its machine then was."""

    end: int
    state: str
    digest: str


def restored(store: Store, folder: Path, at: Point | None = None, *, address: str | None = None) -> State:
    """Restore into a folder with the shipped code, and apply the records by the shipped code."""
    manifest = choose(read_all(store, print), at)
    contents = Contents(store, manifest)
    plan = plan_of(contents, Wanted(at, address=address))
    folder.mkdir()
    directory = FileDirectory(folder)
    directory.lock()
    restore(directory, plan, Restored(contents, plan.end), OPTIONS)
    directory.unlock()
    data_dir = DataDir.open(folder, plan.node_id, OPTIONS)
    try:
        applier = data_dir.restore(lambda: Adder(0), Sessions)
        assert data_dir.log is not None
        for frame in data_dir.log.reader.stream(applier.applied_index, plan.end.index):
            applier.apply(frame)
    finally:
        data_dir.close()
    return State(applier.applied_index, str(applier.machine.query(None)), applier.digest.hex())


def expected(raw: bytes, to_index: int) -> State:
    """What a cluster's frames come to below an index: the state by a model, the digest by an applier from nothing."""
    below = [frame for frame in walk_frames(raw) if frame.header.next_index <= to_index]
    applier = Applier(Adder(0), sessions=Sessions())
    for frame in below:
        applier.apply(frame)
    state = Replay(Sum(0)).take(below).model.state
    return State(applier.applied_index, state, applier.digest.hex())


class Died(BaseException):
    """The process that backs up was killed."""


class Dying:
    """A store in which the backup dies, or fails, before or after its n-th change."""

    def __init__(self, store: Store, at: int, *, after: bool, error: type[BaseException]) -> None:
        self._store = store
        self._left = at
        self._after = after
        self._error = error
        self.has_struck = False

    @property
    def name(self) -> str:
        return self._store.name

    def _change(self) -> Iterator[None]:
        """Before and after a change."""
        self._left -= 1
        strikes = self._left == 0 or (self.has_struck and self._error is StoreFailed)
        if strikes and not self._after:
            self.has_struck = True
            raise self._error("struck before")
        yield
        if strikes:
            self.has_struck = True
            raise self._error("struck after")
        yield

    def get(self, key: str, most: int) -> bytes:
        if self.has_struck:
            raise self._error("struck")
        return self._store.get(key, most)

    def put(self, key: str, data: bytes) -> None:
        steps = self._change()
        next(steps)
        self._store.put(key, data)
        next(steps)

    def create(self, key: str, data: bytes) -> None:
        steps = self._change()
        next(steps)
        self._store.create(key, data)
        next(steps)

    def list(self, prefix: str) -> dict[str, Stored]:
        return self._store.list(prefix)

    def delete(self, keys: Sequence[str]) -> None:
        steps = self._change()
        next(steps)
        self._store.delete(keys)
        next(steps)
