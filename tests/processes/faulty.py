"""`quire` with faults that a test injects into its clock, disk, machine and PySyncObj. Run as a program in its place.

The first argument names a folder, in which a test names the node's faults through `Faults`.
"""

import errno
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from quire.cluster.control import syncobj
from quire.log import files
from quire.sm import ArithmeticMachine, Context
from tests.processes.adder import Adder
from tests.processes.cluster import Node
from tests.tuned import main

LOOK_EVERY_S = 0.02  # At the clock's file.


class Faults:
    """The faults of one node, as files in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def of(self, node: Node) -> "Faults":
        """Run this node so that faults can be injected. The folder is created."""
        self.folder.mkdir(parents=True, exist_ok=True)
        node.program = (sys.executable, "-m", __name__, str(self.folder))
        return self

    def set_clock(self, ahead_s: float) -> None:
        """Its wall clock is so far ahead; 0: it is right."""
        self._write("ahead_s", ahead_s)

    def slow_disk(self, seconds: float) -> None:
        """Each sync takes so much longer from now on."""
        self._write("slow", seconds)

    def hang_disk(self) -> None:
        """No sync ends before `release_disk`."""
        os.mkfifo(self.folder / "hang")

    def release_disk(self) -> None:
        """Every sync that hangs ends."""
        with suppress(FileNotFoundError):
            gone = (self.folder / "hang").rename(self.folder / "hung")
            os.close(os.open(gone, os.O_RDWR))  # Whoever waits in it reads to its end.
            gone.unlink()

    def begin(self, what: str) -> None:
        """Begin one of these.

        fail     every sync fails
        full     no file gets more room
        fails    the machine raises; a process in which it did stays so until it ends
        leads    PySyncObj says that it leads and hears a majority, whatever the others' say
        forget   PySyncObj fails once; it is made anew then, and knows nothing
        """
        (self.folder / what).touch()

    def end(self, what: str) -> None:
        """End it."""
        (self.folder / what).unlink(missing_ok=True)

    def has(self, what: str) -> bool:
        """Whether it was begun and has not ended."""
        return (self.folder / what).exists()

    def heal(self) -> None:
        """End the faults of its clock, disk and machine."""
        self.set_clock(0)
        for what in ("slow", "full", "fails"):
            self.end(what)
        self.release_disk()

    def _write(self, name: str, seconds: float) -> None:
        (self.folder / f"new-{name}").write_text(str(seconds))
        os.replace(self.folder / f"new-{name}", self.folder / name)  # A node that reads it reads one or the other.


def install(faults: Faults) -> None:
    """Let this process have the faults that its folder names."""
    _install_clock(faults)
    _install_disk(faults)
    _install_machines(faults)
    _install_control(faults)


def _install_clock(faults: Faults) -> None:
    right, known = time.time_ns, (0.0, 0)

    def wrong() -> int:
        nonlocal known
        if time.monotonic() >= known[0]:
            file = faults.folder / "ahead_s"
            ahead_s = float(file.read_text()) if file.exists() else 0.0
            known = (time.monotonic() + LOOK_EVERY_S, int(ahead_s * 1e9))
        return right() + known[1]

    time.time_ns = wrong


def _install_disk(faults: Faults) -> None:
    sync, allocate = files.FileStorage.sync, os.posix_fallocate

    def full(descriptor: int, begin: int, length: int) -> None:
        if faults.has("full"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        allocate(descriptor, begin, length)

    def faulty(storage: files.FileStorage) -> None:
        with suppress(FileNotFoundError):  # It answers again.
            if faults.has("hang"):
                (faults.folder / "hang").read_bytes()
        with suppress(FileNotFoundError):
            threading.Event().wait(float((faults.folder / "slow").read_text()))
        if faults.has("fail"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(storage)

    os.posix_fallocate = full
    files.FileStorage.sync = faulty  # type: ignore[assignment, method-assign]


def _install_machines(faults: Faults) -> None:
    add, apply_batch = Adder.apply, ArithmeticMachine.apply_batch

    def failing(machine: Adder, command: Any, context: Context) -> str:
        if faults.has("fails"):
            raise MemoryError("says the test")
        return add(machine, command, context)

    def failing_batch(machine: ArithmeticMachine, commands: Sequence[Any], contexts: Sequence[Context]) -> list[Any]:
        if faults.has("fails"):
            raise MemoryError("says the test")
        return apply_batch(machine, commands, contexts)

    setattr(Adder, add.__name__, failing)
    setattr(ArithmeticMachine, apply_batch.__name__, failing_batch)


def _install_control(faults: Faults) -> None:
    """PySyncObj may break every promise: no rule depends on one."""
    tick, status = syncobj.Raft.tick, syncobj.Raft.status

    def forgetful(raft: syncobj.Raft) -> None:
        if faults.has("forget"):
            faults.end("forget")
            raise RuntimeError("made to forget by a test")
        tick(raft)

    def overbearing(raft: syncobj.Raft) -> syncobj.RaftStatus:
        found = status(raft)
        return found._replace(leads=True, has_quorum=True) if faults.has("leads") else found

    syncobj.Raft.tick = forgetful  # type: ignore[assignment, method-assign]
    syncobj.Raft.status = overbearing  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    install(Faults(Path(sys.argv.pop(1))))
    main()
