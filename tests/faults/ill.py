"""`quire` that a test can make ill: its clock, its disk and its machine. Run as a program in place of `quire`.

The first argument names a folder. `tests/processes/wrong_clock.py` and `faulty_disk.py` say what they look for there;
while `fails` is there, the machine raises in every apply.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from quire.sm import Context
from tests.faults.adder import Adder
from tests.processes import faulty_disk, wrong_clock
from tests.tuned import main


class Ills:
    """What ails one node, by the files in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def set_clock(self, ahead_s: float) -> None:
        """Its clock is so far ahead; 0: it is right."""
        wrong_clock.set_ahead(self.folder, ahead_s)

    def slow_disk(self, seconds: float) -> None:
        """Each sync takes so much longer from now on."""
        (self.folder / "new_slow").write_text(str(seconds))
        os.replace(self.folder / "new_slow", self.folder / "slow")

    def hang_disk(self) -> None:
        """No sync ends before the disk is well."""
        os.mkfifo(self.folder / "hang")

    def fill_disk(self) -> None:
        """No file gets more room."""
        (self.folder / "full").touch()

    def fail_machine(self) -> None:
        """Its machine raises; a process in which it did stays so until it ends."""
        (self.folder / "fails").touch()

    def heal(self) -> None:
        """Nothing ails it any more."""
        self.set_clock(0)
        for name in ("slow", "full", "fails"):
            (self.folder / name).unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            gone = (self.folder / "hang").rename(self.folder / "hung")
            os.close(os.open(gone, os.O_RDWR))  # Whoever waits in it reads to its end.
            gone.unlink()


def install(folder: Path) -> None:
    """Let this process be as ill as its folder says."""
    wrong_clock.install(folder)
    faulty_disk.install(folder)
    whole = Adder.apply

    def failing(machine: Adder, command: Any, context: Context) -> str:
        if (folder / "fails").exists():
            raise MemoryError("says the test")
        return whole(machine, command, context)

    setattr(Adder, Adder.apply.__name__, failing)


if __name__ == "__main__":
    install(Path(sys.argv.pop(1)))
    main()
