"""Cutting a frame in two: its first records stay, as one frame.

A frame cannot be changed in place, for a crash in the middle would lose records that were durable. So the steps are:

1. The new frame is written to a file of its own, `<index>.rewrite`, which is synced, and its folder.
2. The log is truncated before the old frame, and the new one is appended and flushed.
3. The file is removed, and the folder synced, so that it does not come back when the log has gone on.

A crash between 1 and 3 leaves the file: opening the log does step 2 again, if it was not done, and step 3. One before
the end of step 1 leaves no valid file, and the log as it was.
"""

from __future__ import annotations

from typing import Protocol

from ..errors import DiskFull, FrameInvalid, UnknownVersion
from ..frames import Frame, Kind, encode_frame, walk_frames
from ..payload import cut_runs, decode_records, encode_records
from ..segment.store import base_of_name, create_fresh
from ..storage import Directory

REWRITE_SUFFIX = ".rewrite"


class Rewritable(Protocol):
    """What a rewrite needs of a log."""

    def read_frame(self, index: int) -> Frame:
        """Return the frame that holds `index`."""
        ...

    def truncate(self, index: int) -> None:
        """Cut at a frame boundary."""
        ...

    def append_frames(self, raw: bytes) -> int:
        """Append whole frames."""
        ...

    def flush(self) -> None:
        """Make them durable."""
        ...


def cut_frame(frame: Frame, count: int) -> bytes:
    """Return the whole frame that holds the first `count` records of `frame`, in its place.

    Raises:
        PayloadInvalid: the frame is not as its kind says.
    """
    header, payload = frame
    if header.kind == Kind.RUNS:
        kept = cut_runs(payload, header.count, count)
    else:
        kept = encode_records(decode_records(payload, header.count)[:count])
    return encode_frame(
        index=header.index,
        epoch=header.epoch,
        timestamp=header.timestamp,
        count=count,
        prev_crc32c=header.prev_crc32c,
        kind=header.kind,
        payload=kept,
        session=header.session,
        sequence=header.sequence,
    )


def set_aside(files: Directory, raw: bytes, index: int) -> None:
    """Keep the frame `raw`, which begins at `index`, durably in a file of its own. Blocks.

    Raises:
        OSError: the device failed.
        DiskFull: no room; nothing is left behind.
    """
    name = _name(index)
    storage = create_fresh(files, name)
    try:
        storage.allocate(len(raw))
        storage.write_at(0, raw)
        storage.sync()
    except DiskFull:
        files.remove(name)
        raise
    finally:
        storage.close()
    files.sync()


def rewrite(log: Rewritable, files: Directory, raw: bytes, index: int) -> None:
    """Put a frame that was set aside in the place of the one that begins at `index`, the log's last. Blocks.

    All of the log is durable before: what a restart replaces must be there.

    Raises:
        OSError, LogReadOnly, DiskFull: which of the two frames is there is known after a restart.
    """
    log.truncate(index)
    log.append_frames(raw)
    log.flush()
    files.remove(_name(index))
    files.sync()


def finish_rewrites(log: Rewritable, files: Directory) -> None:
    """Finish what a crash interrupted, at open; everything in the log is durable."""
    for name in sorted(files.list()):
        index = base_of_name(name, REWRITE_SUFFIX)
        if index is None:
            continue
        storage = files.open(name)
        try:
            raw = storage.read_at(0, storage.size)
            whole = _is_frame(raw, index)
            if whole:
                # After a kill it may stand in the page cache only, and be gone when the truncation is done.
                storage.write_at(0, raw)
                storage.sync()
        finally:
            storage.close()
        files.sync()
        if whole:
            rewrite(log, files, raw, index)
        else:
            files.remove(name)


def _is_frame(raw: bytes, index: int) -> bool:
    try:
        return [frame.header.index for frame in walk_frames(raw)] == [index]
    except (FrameInvalid, UnknownVersion):
        return False


def _name(index: int) -> str:
    return f"{index:020d}{REWRITE_SUFFIX}"
