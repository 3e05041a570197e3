"""A data directory that is a volume's mount point, and whether that volume is mounted.

Without its volume a mount point is an empty directory: the node would start there as a new member, and write its log to
the machine's own disk. So a note is written beside the mount point when it is formatted, where it is seen if the volume
is not mounted. If the parent cannot be written, there is no note and no check.
"""

import os
from contextlib import suppress
from pathlib import Path

from .identity import IDENTITY_FILE, DataDirRefused

NOTE = (
    "Data of a quire node is on a volume that is mounted at {path}. Remove this file if that volume is gone for good.\n"
)


def _note_of(path: Path) -> Path:
    path = path.absolute()
    return path.with_name(f".{path.name}.quire-volume")


def note_volume(path: Path) -> None:
    """Note, beside a directory that was formatted, that it is a mount point, if it is one and its parent allows it."""
    if os.path.ismount(path):
        with suppress(OSError):
            _note_of(path).write_text(NOTE.format(path=path.absolute()))


def check_volume(path: Path) -> None:
    """Check that the directory is mounted if it was a mount point when it was formatted. Changes nothing.

    Raises:
        DataDirRefused: it holds no identity and is no mount point, and the note beside it says that it was one.
    """
    note = _note_of(path)
    if note.exists() and not (path / IDENTITY_FILE).exists() and not os.path.ismount(path):
        reason = f"its volume is not mounted; mount it and start again, or remove {note} if the volume is gone for good"
        raise DataDirRefused(str(path), reason)
