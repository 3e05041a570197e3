"""The genesis frame in a file of its own: the log's first segment expires, and what all nodes must share does not."""

from contextlib import closing

from quire.log import Directory, FrameInvalid, UnknownVersion, walk_frames

from .identity import DataDirRefused
from .whole_file import write_whole_file

GENESIS_FILE = "genesis"
MAX_GENESIS_BYTES = 1 << 20


def write_genesis_file(directory: Directory, frame: bytes) -> None:
    """Write it; durable and whole on return, or not there at all."""
    write_whole_file(directory, GENESIS_FILE, frame)


def read_genesis_file(directory: Directory) -> bytes | None:
    """The frame, None where there is no file.

    Raises:
        DataDirRefused: it holds no frame.
    """
    if GENESIS_FILE not in directory.list():
        return None
    with closing(directory.open(GENESIS_FILE)) as storage:
        raw = storage.read_at(0, MAX_GENESIS_BYTES)
    try:
        frames = list(walk_frames(raw))
    except (FrameInvalid, UnknownVersion) as error:
        raise DataDirRefused(directory.path, f"its genesis file is corrupt ({error}); restore a backup") from error
    if len(frames) != 1 or frames[0].header.index != 0:
        raise DataDirRefused(directory.path, "its genesis file does not hold the log's first frame; restore a backup")
    return raw
