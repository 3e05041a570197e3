"""A data directory on a mounted volume, and whether that volume is mounted.

Without its volume a mount point is an empty directory: the node, or the log, would start there anew, and write to the
machine's own disk. So a note is written beside the mount point when the directory gets its identity, and at each start.
It is seen if the volume is not mounted. It names each data directory on the volume: another one is not refused. If the
mount point's parent cannot be written, there is no note and no check.
"""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from .identity import IDENTITY_FILE, DataDirRefused

NOTE = (
    "Each line below is a data directory of quire on the volume that is mounted at {volume}. "
    "Remove a line if that directory is gone for good.\n"
)


def _note_of(volume: Path) -> Path:
    return volume.with_name(f".{volume.name}.quire-volume")


def _above(path: Path) -> list[Path]:
    """The directory and those above it that may be a volume's mount point, the nearest first."""
    path = path.absolute()
    return [path, *path.parents][:-1]


def note_volume(path: Path) -> None:
    """Note, beside its mount point, that a directory that got its identity is on a volume, if it is."""
    volume = next((folder for folder in _above(path) if os.path.ismount(folder)), None)
    if volume is None or volume == Path(tempfile.gettempdir()):  # Nobody expects to find the latter again.
        return
    note = _note_of(volume)
    if _is_noted(path, note):
        return
    with suppress(OSError):
        is_new = not note.exists()
        with note.open("a") as file:
            file.write((NOTE.format(volume=volume) if is_new else "") + f"{path.absolute()}\n")


def _is_noted(path: Path, note: Path) -> bool:
    try:
        return str(path.absolute()) in note.read_text().splitlines()
    except OSError:
        return False


def check_volume(path: Path) -> None:
    """Check that the volume of the directory is mounted if it was when it got its identity. Changes nothing.

    Raises:
        DataDirRefused: it holds no identity, and a note beside a directory at or above it says that a volume was there.
    """
    if (path / IDENTITY_FILE).exists():
        return
    for folder in _above(path):
        if os.path.ismount(folder):
            return
        note = _note_of(folder)
        if _is_noted(path, note):
            reason = f"its volume is not mounted at {folder}; mount it and start again, or remove its line in {note} if"
            raise DataDirRefused(str(path), f"{reason} the volume is gone for good")
