"""`quire` with a wall clock that is off: run as a program in place of `quire`.

The file `ahead_s` in the directory that the first argument names says by how many seconds it is ahead, now and from
when it is changed. Monotonic clocks stay as they are.
"""

import os
import sys
import time
from pathlib import Path

from tests.tuned import main

LOOK_EVERY_S = 0.02


def set_ahead(folder: Path, seconds: float) -> None:
    """Set the clock of the node that was started with this folder; 0: it is right."""
    (folder / "new").write_text(str(seconds))
    os.replace(folder / "new", folder / "ahead_s")  # A node that reads it meanwhile reads one or the other.


def install(folder: Path) -> None:
    """Make every look at the wall clock ask the directory, at most once in `LOOK_EVERY_S`."""
    right, known = time.time_ns, (0.0, 0)

    def wrong() -> int:
        nonlocal known
        if time.monotonic() >= known[0]:
            file = folder / "ahead_s"
            ahead_s = float(file.read_text()) if file.exists() else 0.0
            known = (time.monotonic() + LOOK_EVERY_S, int(ahead_s * 1e9))
        return right() + known[1]

    time.time_ns = wrong


if __name__ == "__main__":
    install(Path(sys.argv.pop(1)))
    main()
