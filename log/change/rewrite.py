"""Rewrite: splitting the last frame, so that its first records stay as a frame of their own.

A change in place could lose durable records in a crash. So the steps are:

1. Write the new frame to a file of its own, `<index>.rewrite`; sync the file and its folder.
2. Truncate the log before the old frame; append the new one and flush it.
3. Remove the file and sync the folder, so that it does not come back when the log has grown.

A crash after step 1 leaves the file: the next open repeats step 2 and does step 3. A crash during step 1 leaves no
valid file, and the log is unchanged.
"""

from __future__ import annotations

from typing import Protocol

from ..errors import FrameInvalid, LogError, LogReadOnly, NoRoom, RecordTooLarge, UnknownVersion
from ..files import refusing_full
from ..frames import Frame, Kind, encode_frame, walk_frames
from ..payload import decode_records, encode_records, truncate_runs
from ..segment.store import base_of_name, create_fresh
from ..state import LogState
from ..storage import Directory

REWRITE_SUFFIX = ".rewrite"


class Rewritable(Protocol):
    """The methods of a log that a rewrite needs."""

    def truncate_at_boundary(self, boundary: int) -> None:
        """Truncate at a frame boundary."""
        ...

    def append_frames(self, raw: bytes) -> int:
        """Append whole frames."""
        ...

    def flush(self) -> None:
        """Make them durable."""
        ...


def cut_frame(frame: Frame, count: int) -> bytes:
    """Return a whole frame with the first `count` records of `frame`, to replace it.

    Raises:
        PayloadInvalid: the payload breaks the format of its kind.
    """
    header, payload = frame
    if header.kind == Kind.RUNS:
        kept = truncate_runs(payload, header.count, count)
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
    """Write the frame `raw`, which begins at `index`, durably to a file of its own. Blocks.

    Raises:
        OSError: the device failed.
        DiskFull: there is no room; nothing is left behind.
    """
    name = _name(index)
    storage = create_fresh(files, name)
    try:
        storage.allocate(len(raw))
        with refusing_full(name):
            storage.write_at(0, raw)
        storage.sync()
    except NoRoom:
        files.remove(name)
        raise
    finally:
        storage.close()
    files.sync()


def split_last_frame(log: Rewritable, state: LogState, frame: Frame, count: int) -> None:
    """Replace `frame`, the log's last, by one that holds its first `count` records. Blocks.

    All of the log must be durable before, because a restart may have to repeat this.

    Raises:
        RecordTooLarge, DiskFull: nothing changed.
        LogReadOnly: only a restart tells which of the two frames is there.
    """
    raw = cut_frame(frame, count)
    if len(raw) > state.frame_limit:
        raise RecordTooLarge(len(raw), state.frame_limit)
    with state.failing("splitting a frame"):
        set_aside(state.files, raw, frame.header.index)
        try:
            _replace(log, state.files, raw, frame.header.index)
        except LogError as error:
            # The old frame may be gone already: nothing may be appended before a restart puts the new one there.
            state.fail(f"splitting a frame: {error}")
            raise LogReadOnly(state.failure or str(error)) from error


def _replace(log: Rewritable, files: Directory, raw: bytes, index: int) -> None:
    log.truncate_at_boundary(index)
    log.append_frames(raw)
    log.flush()
    files.remove(_name(index))
    files.sync()


def finish_rewrites(log: Rewritable, files: Directory) -> None:
    """Finish the rewrite that a crash interrupted, at open, when everything in the log is durable."""
    for name in sorted(files.list()):
        index = base_of_name(name, REWRITE_SUFFIX)
        if index is None:
            continue
        storage = files.open(name)
        try:
            raw = storage.read_at(0, storage.size)
            whole = _is_frame(raw, index)
            if whole:
                # After a kill it may be in the page cache only, and a power loss after the truncation would lose it.
                storage.write_at(0, raw)
                storage.sync()
        finally:
            storage.close()
        files.sync()
        if whole:
            _replace(log, files, raw, index)
        else:
            files.remove(name)


def _is_frame(raw: bytes, index: int) -> bool:
    try:
        return [frame.header.index for frame in walk_frames(raw)] == [index]
    except (FrameInvalid, UnknownVersion):
        return False


def _name(index: int) -> str:
    return f"{index:020d}{REWRITE_SUFFIX}"
