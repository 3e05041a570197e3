"""A data directory on a mounted volume, and whether that volume is mounted.

Without its volume a mount point is an empty directory: the node, or the log, would start there anew, and write to the
machine's own disk. So a directory that has its identity has a note beside the mount point: a file named after the
directory's path as it was given. It is seen if the volume is not mounted, and what it holds is not read. Without a note
there is no check.
"""

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, unquote_to_bytes

import structlog

from .identity import IDENTITY_FILE, DataDirRefused

PREFIX = ".quire-volume."
NOTE = "The data directory that this file is named after is on a mounted volume. Remove this file if that is gone.\n"

logger = structlog.get_logger(__name__)


def _note_of(path: Path, volume: Path) -> Path:
    return volume.with_name(PREFIX + quote(os.fsencode(os.path.abspath(path)), safe=""))


def _above(path: Path) -> list[Path]:
    """The directory and those above it that may be a volume's mount point, the nearest first."""
    path = Path(os.path.realpath(path))
    return [path, *path.parents][:-1]


def note_volume(path: Path) -> None:
    """Note, beside its mount point, that a directory that has its identity is on a volume, if it is.

    The notes of others that are gone from that volume go. If no note can be made, the journal says so.
    """
    volume = next((folder for folder in _above(path) if os.path.ismount(folder)), None)
    if volume is None:
        return
    try:
        if str(volume) == os.path.realpath(tempfile.gettempdir()):  # Nobody expects to find this one again.
            return
        with suppress(FileExistsError), _note_of(path, volume).open("x") as file:
            file.write(NOTE)
            for note in volume.parent.glob(f"{_note_of(volume, volume).name}%2F*"):
                if not os.path.lexists(unquote_to_bytes(note.name.removeprefix(PREFIX))):
                    note.unlink()
    except OSError as error:
        logger.info("a volume is not noted: unmounted it would count as a new disk", volume=str(volume), why=str(error))


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
        note = _note_of(path, folder)
        if os.path.lexists(note):
            reason = f"its volume is not mounted at {folder}; mount it, or remove {note} if it is gone for good"
            raise DataDirRefused(str(path), reason)
