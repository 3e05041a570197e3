"""The longer paths of an append: room for a frame, and a peer's raw frames, which are verified before their bytes are
appended. `log.py` has the short path, a leader's own frame.
"""

from __future__ import annotations

from collections.abc import Callable

from ..errors import NoRoom, RecordTooLarge, ResourcesExhausted
from ..frames import HEADER_BYTES, FrameHeader, Kind, follow, walk_headers
from ..segment.survey import names_members
from ..state import LogState
from .rotation import rotate

_PROBE_BYTES = 1 << 20

CheckMembers = Callable[[memoryview, int], object]
"""Gets the payload and the index of a members record. Raises PayloadInvalid if it is not a valid one."""


def any_members(payload: memoryview, index: int) -> None:
    """Check nothing, for logs without members."""


def make_room(state: LogState, size: int, *, reserved: bool = False) -> None:
    """Make the write segment take a frame of `size` bytes: rotate if it is full, and reserve room on disk.

    On a full disk, a reserved frame uses the reserve, even in a segment that is full.

    Raises:
        RecordTooLarge: the frame fits in no segment.
        DiskFull: there is no room; nothing was appended.
        LogReadOnly: the device failed.
    """
    if size > state.frame_limit:
        raise RecordTooLarge(size, state.frame_limit)
    try:
        if state.writer.is_stuck:
            with state.writing_out:
                state.writer.write_out()
        if state.writer.is_full(size):
            rotate(state, size)
        with state.failing("allocating"):
            state.writer.reserve(size)
    except NoRoom as full:
        if not reserved or size > state.writer.room:
            if not reserved and not isinstance(full, ResourcesExhausted):
                state.refused_bytes = max(state.refused_bytes, size)
            raise


class Room:
    """Room on disk for the frames of one log."""

    def __init__(self, state: LogState) -> None:
        self._state = state

    @property
    def left(self) -> int:
        """Bytes on disk that `reserved` frames can use if it is full; others can use all but the last 64 KiB."""
        return self._state.writer.room

    @property
    def is_stuck(self) -> bool:
        """Whether appended frames wait in memory because the disk has no room for an overwrite."""
        return self._state.writer.is_stuck

    @property
    def allocated(self) -> int:
        """Bytes on disk of the segment that grows, those of its frames included."""
        return self._state.writer.allocated

    def probe(self) -> bool:
        """Return whether frames that are not `reserved` find room now, as large as any that was refused.

        Blocks if there was none: it asks the disk.

        Raises:
            LogReadOnly, LogClosed: the log takes no appends at all.
        """
        state = self._state
        state.refuse_if_unwritable()
        size = min(max(_PROBE_BYTES, state.refused_bytes), state.frame_limit)
        if state.writer.free_end - state.writer.segment.end < size:
            try:
                make_room(state, size)
            except NoRoom:
                return False
        state.refused_bytes = 0
        return True


def _verified_frames(
    state: LogState, view: memoryview, check_members: CheckMembers
) -> tuple[list[tuple[int, FrameHeader]], list[int]]:
    """Return (offset, header) of a peer's frames, and the indices of members records, after a check of everything."""
    headers: list[tuple[int, FrameHeader]] = []
    members: list[int] = []
    tail = state.tail
    for offset, header in walk_headers(view):
        tail = follow(tail, header)
        size = HEADER_BYTES + header.length
        if size > state.frame_limit:
            raise RecordTooLarge(size, state.frame_limit)
        if header.kind == Kind.SYSTEM and names_members(payload := view[offset + HEADER_BYTES : offset + size]):
            check_members(payload, header.index)
            members.append(header.index)
        headers.append((offset, header))
    return headers, members


def _put_frames(state: LogState, view: memoryview, headers: list[tuple[int, FrameHeader]], members: list[int]) -> None:
    """Buffer verified frames, in one piece for each segment. On DiskFull, some of them are in."""
    waiting = iter([*members, -1])
    next_members = next(waiting)
    place = 0
    while place < len(headers):
        head = headers[place][1]
        size, writer = HEADER_BYTES + head.length, state.writer
        if size > writer.free_end - writer.segment.end:
            make_room(state, size, reserved=head.kind == Kind.SYSTEM)
            writer = state.writer
        base = headers[place][0] - writer.segment.end
        first = place
        while place < len(headers):
            offset, header = headers[place]
            position = offset - base
            if place != first and not writer.takes_at(position, HEADER_BYTES + header.length):
                break
            if position >= writer.index.next_position:
                writer.note_frame(header, position)
            if not state.epochs or header.epoch != state.epochs[-1][0]:
                state.epochs.append((header.epoch, header.index))
            if header.index == next_members:
                state.members.append(header.index)
                next_members = next(waiting)
            place += 1
        last_offset, last = headers[place - 1]
        writer.put_piece(view[headers[first][0] : last_offset + HEADER_BYTES + last.length], headers[first][1].index)
        state.tail = last.tail


def append_raw(state: LogState, raw: bytes | bytearray | memoryview, check_members: CheckMembers) -> None:
    """Buffer a peer's whole frames unchanged.

    Raises:
        LogError: as `Log.append_frames`; but on DiskFull some of them are in, and the caller must truncate.
    """
    view = memoryview(raw)
    headers, members = _verified_frames(state, view, check_members)
    with state.writing_out:
        _put_frames(state, view, headers, members)


def taken_back(truncate: Callable[[int], None], index: int) -> bool:
    """Return whether the partly appended frames from `index` on were removed again.

    That needs a descriptor if segments must be removed, and room where an overwrite takes some. Without them the frames
    stay: they are whole and in sequence.
    """
    try:
        truncate(index)
    except NoRoom:
        return False
    return True
