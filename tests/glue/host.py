"""What is below a node: clocks, threads, a disk, the randomness of the system, the fork of a process.

`below` puts these in the place of those of Python for as long as it lasts. The node itself runs as shipped.
"""

import os
import random as global_random
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace
from typing import Any

from crc32c import crc32c

import quire.cluster.compaction.snapshotting
import quire.cluster.control.syncobj
import quire.cluster.data_dir.data_dir
import quire.log.files
import quire.replication.names
import quire.replication.threads
import quire.replication.witnesses
import quire.sm.snapshots.store
from quire.cluster.compaction.forked import ChildFailed
from quire.log import Directory
from quire.log.simulated import faulty
from tests.glue.loop import START_CLOCK, LoopLock, LoopQueue, LoopThread, VirtualLoop

SNAPSHOT_US = 30_000


class GlueDisk(faulty.Disk):
    """A disk whose syncs take time."""

    HIGHEST_US = 2_000

    def __init__(self, loop: VirtualLoop, seed: str) -> None:
        super().__init__()
        self.random = Random(seed)
        self._loop = loop
        self.lowest_us, self.highest_us = 100, self.HIGHEST_US
        self.free = False
        """Whether it takes no time now: a child of the process uses it."""

    def step(self, operation: str, name: str, life: int) -> None:
        """Do one changing operation; a sync takes its time first."""
        self.check(life)
        if operation == "sync" and not self.free:
            self._loop.pass_time(self.random.randint(self.lowest_us, self.highest_us))
        super().step(operation, name, life)


class ForkedChild:
    """A child of a node's process: what it writes is written at once, and it says so a little later."""

    def __init__(self, loop: VirtualLoop, disk: GlueDisk, work: Callable[[Callable[[], None]], bytes]) -> None:
        self._failure = ""
        self._report = b""
        disk.free = True
        try:
            self._report = work(lambda: None)
        except Exception as error:  # noqa: BLE001  # As the child's own report.
            self._failure = f"{type(error).__name__}: {error}"
        finally:
            disk.free = False
        self._end = loop.create_future()
        loop.call_later(loop.random.randint(0, SNAPSHOT_US) / 1e6, self._end_now)

    @property
    def ended(self) -> bool:
        """As `Child.ended`."""
        return self._end.done()

    async def report(self, _patience: Any = None) -> bytes:
        """As `Child.report`."""
        await self._end
        if self._failure:
            raise ChildFailed(self._failure)
        return self._report

    def kill(self, reason: str = "it is no longer wanted") -> None:
        """As `Child.kill`."""
        self._failure = self._failure or reason
        self._end_now()

    def _end_now(self) -> None:
        if not self._end.done():
            self._end.set_result(None)


@contextmanager
def below(loop: VirtualLoop, disks: dict[str, GlueDisk], seed: str) -> Generator[None]:
    """Everything that nodes read or start while this lasts is the loop's, or drawn from the seed."""
    elections: Any = quire.cluster.control.syncobj
    entropy = Random(f"{seed}/entropy")
    state = global_random.getstate()
    global_random.seed(f"{seed}/global")

    def now_us() -> int:
        return loop.microseconds()

    def directory(path: Any) -> Directory:
        return disks[os.fspath(path)].directory()

    def thread(target: Callable[[], None], name: str = "", daemon: bool = True) -> LoopThread:
        return LoopThread(loop, target)

    def child(work: Callable[[Callable[[], None]], bytes]) -> ForkedChild:
        return ForkedChild(loop, disks[loop.owner.name], work)

    replaced: list[tuple[Any, str, Any]] = [
        (time, "monotonic", loop.time),
        (time, "monotonic_ns", lambda: now_us() * 1_000),
        (time, "time", lambda: (START_CLOCK + now_us()) / 1e6),
        (time, "time_ns", lambda: (START_CLOCK + now_us()) * 1_000),
        (time, "clock_gettime_ns", lambda _: now_us() * 1_000 + 1_000_000_000),
        (os, "urandom", entropy.randbytes),
        (sys.modules[elections.SyncObj.__module__], "monotonicTime", loop.time),
        (elections.Node, "__hash__", lambda node: crc32c(node.id.encode())),  # It goes through sets of them.
        (quire.replication.threads, "threading", SimpleNamespace(Thread=thread)),
        (quire.replication.names, "threading", SimpleNamespace(Thread=thread)),
        (quire.replication.threads, "SimpleQueue", lambda: LoopQueue(loop)),
        (quire.log.files, "threading", SimpleNamespace(Lock=lambda: LoopLock(loop))),
        (quire.replication.witnesses, "Lock", lambda: LoopLock(loop)),
        (quire.sm.snapshots.store, "Lock", lambda: LoopLock(loop)),
        (quire.cluster.data_dir.data_dir, "FileDirectory", directory),
        (quire.cluster.compaction.snapshotting, "Child", child),
    ]
    kept = [(module, name, getattr(module, name)) for module, name, _ in replaced]
    try:
        for module, name, value in replaced:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in kept:
            setattr(module, name, value)
        global_random.setstate(state)
