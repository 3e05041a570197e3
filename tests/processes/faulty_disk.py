"""`quire` with a disk that hangs or fails: run as a program in place of `quire`.

Each sync of a file's data first looks into the directory that the first argument names. `hang` there is a FIFO, which
holds up whoever opens it until a test opens it, too; `fail` makes the sync fail; `slow` says how many seconds longer it
takes. While `full` is there, no file gets more room.
"""

import errno
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path

from quire.log import files
from tests.tuned import main


def install(folder: Path) -> None:
    """Make every sync of a file's data, and every allocation, look for faults first."""
    sync, allocate = files.FileStorage.sync, os.posix_fallocate

    def full(descriptor: int, begin: int, length: int) -> None:
        if (folder / "full").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        allocate(descriptor, begin, length)

    def faulty(storage: files.FileStorage) -> None:
        if (folder / "hang").exists():
            with suppress(FileNotFoundError):  # It answers again.
                (folder / "hang").read_bytes()
        with suppress(FileNotFoundError):
            threading.Event().wait(float((folder / "slow").read_text()))
        if (folder / "fail").exists():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(storage)

    os.posix_fallocate = full
    files.FileStorage.sync = faulty  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    install(Path(sys.argv.pop(1)))
    main()
