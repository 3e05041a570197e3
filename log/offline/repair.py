"""Repair: setting aside the rotten part of a log, so that the rest opens again. Nothing is deleted.

A log has no gaps. So one part of a log with rot is kept: the part `before` the first rotten frame, or the part `after`
the last rotten segment, as if everything below had expired. The steps, in this order:

1. Copy everything that will be removed to `quarantine/<number>/` and sync it: from here on nothing can be lost. Then
   remove the rewrites of frames that the log will not hold.
2. Write a mark that says where the kept part ends, or begins, and sync it.
3. Remove segments: those after the kept part from the last one on, those before it from the first one on. Sync the
   folder after each, so that a crash leaves no gap.

A crash leaves a log that is still rotten, or one that opens; a second `repair` sets aside the rest.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Literal

from ..change.rewrite import REWRITE_SUFFIX
from ..errors import LogError, Unreadable
from ..options import STORE_HEADER_BYTES
from ..segment.mark import MARK_NAME, Mark, MarkFile
from ..segment.segments import remove_segment
from ..segment.store import SEGMENTS_FOLDER, base_of_name, index_name, store_name
from ..segment.survey import CHUNK_BYTES
from ..storage import Directory
from .inspection import stored_mark
from .verification import Progress, Verdict

QUARANTINE_FOLDER = "quarantine"
_NUMBER_DIGITS = 20
_BLOCK_BYTES = 4096
"""What cannot be read is copied as zeros, to the end of its page: the kernel reads no less."""

Side = Literal["before", "after"]


class NothingToKeep(LogError):
    """There is no whole segment on that side of the rot."""

    def __init__(self, side: Side) -> None:
        super().__init__(f"there is no whole segment {side} the rot")
        self.side = side


@dataclass(frozen=True, slots=True)
class Plan:
    """What a repair will do. Records [kept_from, kept_to) stay."""

    side: Side
    kept_from: int
    kept_to: int
    lost: tuple[int, int]
    """The known records that the log will not hold. Those that are whole can be read in quarantine."""
    segments: tuple[int, ...]
    """Base indices of the segments that are removed as a whole."""
    truncated: tuple[int, int] | None
    """(base index, position) of the segment that is truncated; None if none is."""
    mark: Mark


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair did."""

    plan: Plan
    folder: str
    """Path in the data directory of the folder that holds what was set aside."""
    files: tuple[str, ...]


def plan_repair(verdict: Verdict, side: Side) -> Plan:
    """Return the plan that keeps one side of the rot.

    Raises:
        NothingToKeep: there is no whole segment on that side.
    """
    return _plan_before(verdict) if side == "before" else _plan_after(verdict)


def _plan_before(verdict: Verdict) -> Plan:
    segments = verdict.segments
    place = next((k for k, segment in enumerate(segments) if segment.rot is not None), len(segments) - 1)
    rot = segments[place].rot
    if rot is not None and rot.position < STORE_HEADER_BYTES:
        # Its header is invalid, so nothing of it can be kept.
        place, rot = place - 1, None
    if place < 0:
        raise NothingToKeep("before")
    last, end = segments[place], segments[-1]
    tail = last.tail
    highest = max(tail.index, end.base_index, end.tail.index, verdict.mark.durable_index if verdict.mark else 0)
    return Plan(
        "before",
        segments[0].base_index,
        tail.index,
        (tail.index, highest),
        tuple(segment.base_index for segment in segments[place + 1 :]),
        None if rot is None else (last.base_index, last.end),
        Mark(0, tail.index, last.base_index, last.end, tail.epoch, tail.index, tail.crc32c, clean=False),
    )


def _plan_after(verdict: Verdict) -> Plan:
    segments = verdict.segments
    rotten = [k for k, segment in enumerate(segments) if segment.rot is not None]
    place = rotten[-1] + 1 if rotten else 0
    if place >= len(segments):
        raise NothingToKeep("after")
    first, last = segments[place], segments[-1]
    old, base = verdict.mark, first.base_index
    if old is None or old.segment_base < base or old.segment_base > last.base_index:
        # Nothing that is kept is known to be durable; the next open makes it so.
        old = Mark(0, base, base, STORE_HEADER_BYTES, 0, base, 0, clean=False)
    gone = tuple(segment.base_index for segment in segments[:place])
    lost = (segments[0].base_index, base)
    return Plan("after", base, last.tail.index, lost, gone, None, old._replace(clean=False))


def repair(directory: Directory, plan: Plan, progress: Progress = lambda _: None) -> Repaired:
    """Set aside what the plan says. Blocks. The caller holds the lock of the directory, which is a standalone log's.

    Raises:
        DiskFull: there is no room to set it aside; nothing changed.
        OSError: the device failed; run it again.
    """
    files = directory.child(SEGMENTS_FOLDER)
    stray = _stray_rewrites(files, plan)
    folder, copied = _set_aside(directory, plan, stray, progress)
    for name in stray:
        files.remove(name)
    _write_mark(directory, plan.mark)
    order = plan.segments if plan.side == "after" else tuple(reversed(plan.segments))
    for base in order:
        remove_segment(files, base)
        files.sync()
    if plan.truncated is not None:
        base, position = plan.truncated
        with closing(files.open(store_name(base))) as store:
            store.truncate(position)
            store.sync()
    return Repaired(plan, folder, copied)


def _stray_rewrites(files: Directory, plan: Plan) -> list[str]:
    """Return the rewrites of frames that the log will not hold, which no open could finish."""
    found = {name: base_of_name(name, REWRITE_SUFFIX) for name in files.list()}
    return [name for name, index in found.items() if index is not None and not plan.kept_from <= index <= plan.kept_to]


def _set_aside(directory: Directory, plan: Plan, stray: list[str], progress: Progress) -> tuple[str, tuple[str, ...]]:
    files = directory.child(SEGMENTS_FOLDER)
    names = set(files.list())
    parts = [(name, name, 0) for base in plan.segments for name in (store_name(base), index_name(base))]
    parts += [(name, name, 0) for name in stray]
    if plan.truncated is not None:
        base, position = plan.truncated
        parts.append((store_name(base), f"{store_name(base)}.from-{position}", position))
    quarantine = directory.child(QUARANTINE_FOLDER)
    directory.sync()
    number = 1 + max((int(name) for name in quarantine.list() if name.isdigit()), default=0)
    folder = quarantine.child(f"{number:0{_NUMBER_DIGITS}d}")
    quarantine.sync()
    copied: list[str] = []
    if MARK_NAME in directory.list():
        copied.append(_copy(directory, MARK_NAME, folder, MARK_NAME, 0, progress))
    for name, aside, position in parts:
        if name in names:
            copied.append(_copy(files, name, folder, aside, position, progress))
    folder.sync()
    return f"{QUARANTINE_FOLDER}/{number:0{_NUMBER_DIGITS}d}", tuple(copied)


def _copy(files: Directory, name: str, folder: Directory, aside: str, position: int, progress: Progress) -> str:
    with closing(files.open(name)) as source, closing(folder.create(aside)) as target:
        size = source.size - position
        target.allocate(size)
        start = 0
        while start < size:
            try:
                chunk = source.read_at(position + start, min(CHUNK_BYTES, size - start))
            except Unreadable as error:
                unread = min(_BLOCK_BYTES - error.position % _BLOCK_BYTES, position + size - error.position)
                chunk = error.before + bytes(unread)
            target.write_at(start, chunk)
            start += len(chunk)
            progress(len(chunk))
        target.sync()
    return aside


def _write_mark(directory: Directory, mark: Mark) -> None:
    fresh = MARK_NAME not in directory.list()
    if not fresh:
        try:
            stored_mark(directory)
        except Unreadable:  # Nor could a slot be written in place. What there is of it was set aside.
            directory.remove(MARK_NAME)
            fresh = True
    storage = directory.create(MARK_NAME) if fresh else directory.open(MARK_NAME)
    with closing(MarkFile(storage)) as file:
        file.write_synced(mark)
    if fresh:
        directory.sync()
