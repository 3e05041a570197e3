"""A check of every byte of a log that no process has open.

Nothing is changed. The caller holds the directory's lock, because a log that grows meanwhile would look torn.

The kinds of faults:

- `rot`: durable bytes are not those that were written. The log does not open, or reads of them raise `FrameCorrupt`;
  `repair` sets them aside.
- `torn`: bytes after the last whole frame, above the mark. They were never acknowledged; the next open cuts them off.
- `index`: an index file does not match its store. It is rebuilt when it is needed.
- `leftover`: a file that a crash left. The next open removes it, or completes the interrupted change.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Literal

from ..change.rewrite import REWRITE_SUFFIX
from ..change.spool import SPOOL_SUFFIX
from ..errors import FrameCorrupt, Unreadable
from ..frames import FrameHeader, Tail
from ..options import MAX_SEGMENT_BYTES, STORE_HEADER_BYTES
from ..segment.mark import MARK_NAME, Mark
from ..segment.store import (
    INDEX_SUFFIX,
    SEGMENTS_FOLDER,
    STORE_SUFFIX,
    UNFINISHED_SUFFIX,
    StoreHeader,
    base_of_name,
    store_name,
)
from ..segment.survey import Survey, torn_after
from ..storage import Directory, Storage
from .inspection import is_zero, store_bases, stored_mark
from .segment_file import IndexCheck, SegmentFile

FaultKind = Literal["rot", "torn", "index", "leftover"]
Progress = Callable[[int], None]
"""Called with the number of bytes checked since the last call."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault in a file, from byte `position` on. Records [from_index, to_index) cannot be read."""

    kind: FaultKind
    file: str
    position: int
    reason: str
    from_index: int | None = None
    to_index: int | None = None


@dataclass(slots=True)
class CheckedSegment:
    """The result of the check of a segment, up to its first invalid frame."""

    base_index: int
    header: StoreHeader | None
    """None: the store header is invalid."""
    tail: Tail
    """The end of the chain after its last whole frame."""
    end: int
    """Position where that frame ends."""
    frames: int = 0
    records: int = 0
    rot: Fault | None = None


@dataclass(slots=True)
class Verdict:
    """The result of the check of a log."""

    mark: Mark | None
    segments: list[CheckedSegment] = field(default_factory=list[CheckedSegment])
    faults: list[Fault] = field(default_factory=list[Fault])

    @property
    def is_rotten(self) -> bool:
        """Whether durable bytes are not those that were written."""
        return any(fault.kind == "rot" for fault in self.faults)


def verify(directory: Directory, progress: Progress = lambda _: None) -> Verdict:
    """Check every byte of the log in a data directory; return all faults. Changes nothing. Blocks.

    Raises:
        UnknownVersion: a later program wrote a file or frame.
    """
    files = directory.child(SEGMENTS_FOLDER)
    verdict, bases = Verdict(None), store_bases(files)
    try:
        verdict.mark = stored_mark(directory)
    except Unreadable as error:
        verdict.faults.append(Fault("rot", MARK_NAME, error.position, error.reason))
    if verdict.mark is not None and verdict.mark.discards:
        meaning = "the log was being emptied, for a snapshot or permanently"
        verdict.faults += [Fault("leftover", store_name(base), 0, meaning) for base in bases]
        verdict.faults += _leftovers(files)
        return verdict
    if bases and verdict.mark is None and not verdict.faults:
        verdict.faults.append(Fault("rot", MARK_NAME, 0, "there is a log, but no valid slot"))
    elif bases and verdict.mark is not None:
        base = verdict.mark.segment_base
        if base not in bases:
            verdict.faults.append(Fault("rot", MARK_NAME, 0, f"it names segment {base}, which is missing"))
        elif verdict.mark.clean and base != bases[-1]:
            verdict.faults.append(Fault("rot", MARK_NAME, 0, f"it says that the log stopped cleanly in segment {base}"))
    for place, base in enumerate(bases):
        following = bases[place + 1] if place + 1 < len(bases) else None
        check = _SegmentCheck(files, verdict, base, following, progress)
        verdict.segments.append(check.run())
    verdict.faults += _leftovers(files)
    return verdict


class _SegmentCheck:
    """Checks one segment: its header, the previous segment's end, the mark, each frame, its index."""

    def __init__(
        self, files: Directory, verdict: Verdict, base: int, following: int | None, progress: Progress
    ) -> None:
        self._files, self._verdict, self._base, self._following = files, verdict, base, following
        self._progress = progress
        self._file = store_name(base)
        self._segment = CheckedSegment(base, None, Tail(base, 0, 0, 0), 0)

    def run(self) -> CheckedSegment:
        segment = self._segment
        with closing(SegmentFile(self._files, self._base)) as file:
            try:
                segment.header = file.header()
            except FrameCorrupt as error:
                self._rotten(error.position, error.reason)
                self._progress(file.end)
                return segment
            segment.tail, segment.end = segment.header.origin, STORE_HEADER_BYTES
            if not self._follows(segment.header):
                self._progress(file.end)
                return segment
            self._walk(segment.header, file)
        return segment

    def _follows(self, header: StoreHeader) -> bool:
        before = self._verdict.segments[-1] if self._verdict.segments else None
        if before is not None and before.header is not None and before.header.cluster_id != header.cluster_id:
            self._rotten(48, f"it belongs to cluster {header.cluster_id.hex()}")
        elif self._is_dropped():
            self._verdict.faults.append(Fault("leftover", self._file, 0, "a truncation was interrupted"))
        elif before is not None and before.rot is None and before.tail != header.origin:
            self._rotten(
                0, f"it follows index {header.base_index}, but the previous segment ends at {before.tail.index}"
            )
        return self._segment.rot is None

    def _is_dropped(self) -> bool:
        """Return whether a truncation was interrupted: what follows a gap above the mark goes at the next open."""
        if not self._verdict.segments or self._verdict.segments[-1].rot is not None:
            return False
        mark, before = self._verdict.mark, self._verdict.segments[-1]
        return mark is not None and mark.segment_base <= before.base_index and self._base > before.tail.index

    def _walk(self, header: StoreHeader, file: SegmentFile) -> None:
        segment, store, size = self._segment, file.store, file.end
        # The last segment's index is in memory only.
        index = None if self._following is None else file.index_check()
        survey = _CountingSurvey(header, self._progress, index)
        mark = self._verdict.mark
        if mark is not None and mark.segment_base == self._base:
            survey.verify(store, min(mark.position, size), self._file)
            self._compare_with_mark(survey, mark)
        if survey.invalid is None and segment.rot is None:
            survey.verify(store, size, self._file)
        segment.tail, segment.end = survey.tail, survey.end
        segment.frames, segment.records = survey.frames, survey.tail.index - self._base
        if segment.rot is None and survey.invalid is not None:
            self._judge_end(survey, store)
        if segment.rot is not None:
            self._go_on(survey, file, size if mark is None or mark.segment_base != self._base else mark.position)
        if segment.rot is None and index is not None and (fault := index.fault()) is not None:
            self._verdict.faults.append(Fault("index", file.index_file, 0, fault))

    def _compare_with_mark(self, survey: _CountingSurvey, mark: Mark) -> None:
        tail = survey.tail
        says = (mark.durable_index, mark.epoch, mark.crc32c)
        found = (tail.index, tail.epoch, tail.crc32c)
        agrees = found == says if mark.position > STORE_HEADER_BYTES else tail.index == mark.durable_index
        if survey.invalid is not None or survey.end != mark.position or not agrees:
            reason = survey.invalid or f"the frames end at index {tail.index}, but the mark says {mark.durable_index}"
            self._rotten(survey.end, reason, tail.index)

    def _judge_end(self, survey: _CountingSurvey, store: Storage) -> None:
        mark, end = self._verdict.mark, survey.end
        is_last = self._following is None
        is_clean = is_last and mark is not None and mark.clean
        if survey.is_unreadable and not is_clean:
            self._rotten(end, survey.invalid or "", survey.tail.index)
        elif is_last and mark is not None and mark.segment_base <= self._base and not mark.clean:
            torn = torn_after(store, end, survey.tail.index, self._file)
            if torn is not None:
                reason = f"{torn.size} bytes above the mark are not frames: {survey.invalid}"
                if torn.next_frame is not None:
                    reason += f"; a valid frame of index {torn.next_frame} follows them"
                self._verdict.faults.append(Fault("torn", self._file, end, reason))
        elif not (is_last and is_zero(store, end)) and not is_clean:
            self._rotten(end, survey.invalid or "", survey.tail.index)

    def _rotten(self, position: int, reason: str, from_index: int | None = None) -> None:
        first = self._base if from_index is None else from_index
        fault = Fault("rot", self._file, position, reason, first, self._following)
        self._segment.rot = self._segment.rot or fault
        self._verdict.faults.append(fault)

    def _go_on(self, survey: _CountingSurvey, file: SegmentFile, until: int) -> None:
        """Check what follows the rot, from the next frame that verifies on: its fault ends there, and others may begin.

        Frames below `until` are durable.
        """
        while survey.invalid is not None and (found := file.next_frame(survey.end)) is not None:
            position, header = found
            if position >= until:
                return
            self._verdict.faults[-1] = replace(self._verdict.faults[-1], to_index=header.index)
            self._progress(position - survey.end)
            survey.resume(position, header)
            survey.verify(file.store, min(until, file.end), self._file)
            if survey.invalid and survey.end < until:
                self._rotten(survey.end, survey.invalid, survey.tail.index)


class _CountingSurvey(Survey):
    """A survey that counts frames, reports progress, and compares each frame with the index file."""

    def __init__(self, header: StoreHeader, progress: Progress, index: IndexCheck | None) -> None:
        super().__init__(header, MAX_SEGMENT_BYTES, None)
        self.frames = 0
        self._progress = progress
        self._index = index

    def resume(self, position: int, header: FrameHeader) -> None:
        """Go on at the frame at this position, after frames that do not verify."""
        self.invalid, self.end = None, position
        self.tail = Tail(header.index, header.epoch, header.timestamp, header.prev_crc32c)

    def add(self, header: FrameHeader, payload: memoryview | None) -> None:
        """Add one verified frame."""
        if self._index is not None:
            self._index.take(self.end, header)
        super().add(header, payload)
        self.frames += 1
        self._progress(header.size)


def _leftovers(files: Directory) -> list[Fault]:
    meanings = {
        STORE_SUFFIX + UNFINISHED_SUFFIX: "a rotation was interrupted",
        SPOOL_SUFFIX: "an append of a stream was interrupted",
        REWRITE_SUFFIX: "a truncation inside a frame was interrupted",
    }
    names = set(files.list())
    found = [
        Fault("leftover", name, 0, meaning)
        for name in sorted(names)
        for suffix, meaning in meanings.items()
        if base_of_name(name, suffix) is not None
    ]
    alone = [
        name
        for name in sorted(names)
        if (base := base_of_name(name, INDEX_SUFFIX)) is not None and store_name(base) not in names
    ]
    return found + [Fault("leftover", name, 0, "an index without its store") for name in alone]
