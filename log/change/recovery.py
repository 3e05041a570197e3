"""Recovery: opening a log, distinguishing a torn tail from rot, and making what is kept durable before it is used.

After a clean stop the mark says where the log ends. If it says that the log was being emptied, all segments are removed
unread, and the log starts empty. After any other stop:

1. Write the winning slot of the mark again and sync it, because it decides what is torn and what is rotten.
2. Check the frames of the mark's segment and of later ones. An invalid frame below the mark, or in any segment but the
   last, is rot: the log does not open. At or above the mark in the last segment, it begins the torn tail, and
   everything from there is removed, valid or not; `Log.torn` says how much, and whether valid frames follow. If
   segments above the mark have a gap, a truncation was interrupted, and everything after the gap is removed.
3. Write what is kept above the mark again and sync it with the folders: it may be in the page cache only, and after a
   failed sync the page cache looks clean.
4. Raise the mark to the end, without `clean`, and sync it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ForeignStore, FrameInvalid, LogRotten
from ..frames import Tail
from ..options import FLUSH_ALWAYS, STORE_HEADER_BYTES, LogOptions
from ..segment.mark import MARK_NAME, Mark, MarkFile
from ..segment.sealed import ReadSegmentCheck
from ..segment.segments import Segment, Segments, remove_segment
from ..segment.store import (
    INDEX_SUFFIX,
    SEGMENTS_FOLDER,
    STORE_SUFFIX,
    UNFINISHED_SUFFIX,
    StoreHeader,
    base_of_name,
    decode_store_header,
    store_name,
)
from ..segment.survey import CHUNK_BYTES, Survey, Torn, torn_after
from ..segment.write_segment import WriteSegment
from ..state import LogState
from ..storage import Directory
from .reset import discard_segments
from .rotation import prepare_store, publish_store
from .spool import SPOOL_SUFFIX
from .truncation import preallocate


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """The arguments of `Log.open`."""

    directory: Directory
    options: LogOptions
    cluster_id: bytes
    initial_index: int
    standalone: bool

    def __post_init__(self) -> None:
        if len(self.cluster_id) != 16:
            raise ValueError(f"cluster_id has {len(self.cluster_id)} bytes, not 16")
        if not 0 <= self.initial_index < 1 << 63:
            raise ValueError(f"initial_index {self.initial_index} is outside [0, 2^63)")
        if not self.standalone and self.options.flush_policy != FLUSH_ALWAYS:
            raise ValueError("a cluster acknowledges only durable records: its flush policy must be FLUSH_ALWAYS")


def open_state(request: OpenRequest) -> LogState:
    """Return the recovered state of the log in a data directory, or that of a new log if there is none.

    Raises:
        LogRotten, ForeignStore, UnknownVersion: it cannot be opened; nothing changed, except that leftovers are gone.
        DiskFull: there is no room for the first segment.
    """
    files = request.directory.child(SEGMENTS_FOLDER)
    bases = _sweep(files)
    mark: MarkFile | None = None
    try:
        request.directory.keep()
        files.keep()
        mark = _open_mark(request.directory)
        if not bases:
            return _create(request, files, mark)
        if mark is None or mark.found is None:
            raise LogRotten(MARK_NAME, 0, "there is a log, but no valid slot")
        mark.rewrite_winner()
        if mark.found.discards:
            discard_segments(files)
            return _create(request, files, mark)
        return _Recovery(request, files, bases, mark, mark.found).run()
    except BaseException:
        if mark is not None:
            mark.close()
        request.directory.release()
        files.release()
        raise


def _sweep(files: Directory) -> list[int]:
    """Remove the leftovers of an interrupted rotation, removal or streamed append; return the stores' base indices."""
    names = set(files.list())
    for name in sorted(names):
        base = base_of_name(name, INDEX_SUFFIX)
        alone = base is not None and store_name(base) not in names
        unfinished = base_of_name(name, STORE_SUFFIX + UNFINISHED_SUFFIX) is not None
        if alone or unfinished or base_of_name(name, SPOOL_SUFFIX) is not None:
            files.remove(name)
    return sorted(base for name in names if (base := base_of_name(name, STORE_SUFFIX)) is not None)


def _open_mark(directory: Directory) -> MarkFile | None:
    try:
        return MarkFile(directory.open(MARK_NAME))
    except FileNotFoundError:
        return None


def _is_of_empty_log(mark: Mark) -> bool:
    # It is written before the first store is created, and again before the last one is removed.
    return mark.position == STORE_HEADER_BYTES and mark.crc32c == 0 and mark.epoch == 0


def _create(request: OpenRequest, files: Directory, mark: MarkFile | None) -> LogState:
    """Create a new log: the mark before the store, because a store without a mark is rot."""
    if mark is not None and mark.found is not None and not _is_of_empty_log(mark.found):
        raise LogRotten(MARK_NAME, 0, f"it names segment {mark.found.segment_base}, but there is none")
    base = request.initial_index
    if mark is not None and mark.found is not None and not request.standalone:
        base = mark.found.durable_index  # A reset may have got this far: then no snapshot below may be used.
    if mark is None:
        mark = MarkFile(request.directory.create(MARK_NAME))
    mark.allocate()
    mark.write_synced(Mark(0, base, base, STORE_HEADER_BYTES, 0, base if request.standalone else 0, 0, clean=False))
    request.directory.sync()
    header = StoreHeader(base, 0, 0, 0, None, request.cluster_id)
    store = prepare_store(files, header, request.options)
    writer = publish_store(files, header, store, request.options)
    return _new_state(request, files, mark, header.origin, [writer.segment], writer)


def _new_state(
    request: OpenRequest, files: Directory, mark: MarkFile, origin: Tail, segments: list[Segment], writer: WriteSegment
) -> LogState:
    listed = Segments(files, request.options)
    for segment in segments:
        listed.append(segment)
    state = LogState(
        request.directory,
        files,
        request.options,
        cluster_id=request.cluster_id,
        standalone=request.standalone,
        origin=origin,
        segments=listed,
        mark=mark,
        writer=writer,
    )
    listed.load_all_indexes()
    return state


class _Recovery:
    """The recovery of one existing log."""

    def __init__(self, request: OpenRequest, files: Directory, bases: list[int], mark: MarkFile, found: Mark) -> None:
        self._request = request
        self._options = request.options
        self._files = files
        self._mark = mark
        self._found = found
        self._headers = [self._read_header(base) for base in bases]
        self._segments: list[Segment] = []
        self._epochs: list[tuple[int, int]] = []
        self._dropped: list[int] = []

    def run(self) -> LogState:
        """Check everything, then make the necessary changes."""
        bases = [header.base_index for header in self._headers]
        if self._found.segment_base not in bases:
            raise self._mark_rotten(f"it names segment {self._found.segment_base}, which is missing")
        marked = bases.index(self._found.segment_base)
        if self._found.clean and marked != len(bases) - 1:
            raise self._mark_rotten(f"it says that the log stopped cleanly in segment {self._found.segment_base}")
        for place in range(marked):
            self._check_read_segment(place)
        survey = self._glance_last() if self._found.clean else self._verify_from(marked)
        return self._finish(survey, marked)

    def _read_header(self, base: int) -> StoreHeader:
        file = store_name(base)
        store = self._files.open(file)
        try:
            header = decode_store_header(store.read_at(0, STORE_HEADER_BYTES), file)
        except FrameInvalid as error:
            raise LogRotten(file, 0, error.reason) from error
        finally:
            store.close()
        if header.cluster_id != self._request.cluster_id:
            raise ForeignStore(file, header.cluster_id, self._request.cluster_id)
        if header.base_index != base:
            raise LogRotten(file, 8, f"its header names base index {header.base_index}")
        return header

    def _mark_rotten(self, reason: str) -> LogRotten:
        return LogRotten(MARK_NAME, 0, reason)

    def _epoch_before(self, place: int) -> int | None:
        return self._headers[place].epoch if place else None

    def _check_read_segment(self, place: int) -> None:
        check = ReadSegmentCheck(
            self._files, self._options, self._headers[place], self._headers[place + 1], self._epoch_before(place)
        )
        check.run()
        self._segments.append(Segment(self._headers[place].origin, check.end))
        self._epochs += check.epochs

    def _survey(self, place: int) -> Survey:
        return Survey(self._headers[place], self._options.index_interval_bytes, self._epoch_before(place))

    def _glance_last(self) -> Survey:
        place = len(self._headers) - 1
        survey = self._survey(place)
        file = store_name(self._found.segment_base)
        store = self._files.open(file)
        try:
            survey.glance(store, self._found.position)
        except FrameInvalid as error:
            raise LogRotten(file, error.position, error.reason) from error
        finally:
            store.close()
        self._compare_with_mark(survey, file)
        self._segments.append(Segment(self._headers[place].origin, survey.end))
        return survey

    def _compare_with_mark(self, survey: Survey, file: str) -> None:
        found, tail = self._found, survey.tail
        says = (found.durable_index, found.epoch, found.crc32c)
        if found.position == STORE_HEADER_BYTES:
            # No frame of this segment is below the mark; the store header has the values of the frame before.
            says = (found.durable_index, tail.epoch, tail.crc32c)
        if survey.end != found.position or (tail.index, tail.epoch, tail.crc32c) != says:
            raise LogRotten(
                file,
                survey.end,
                f"its frames end at {tail.index}, epoch {tail.epoch}, crc32c {tail.crc32c:08x}, but the mark says "
                f"{found.durable_index}, epoch {found.epoch}, crc32c {found.crc32c:08x} at byte {found.position}",
            )

    def _verify_from(self, marked: int) -> Survey:
        """Check every frame of the marked segment and of later ones; return the survey of the last one that is kept."""
        for place in range(marked, len(self._headers)):
            survey = self._verify(place, below_mark=place == marked)
            self._segments.append(Segment(self._headers[place].origin, survey.end))
            if place == len(self._headers) - 1 or self._follows_gap(place, survey):
                self._dropped = [header.base_index for header in self._headers[place + 1 :]]
                del self._headers[place + 1 :]
                return survey
            self._epochs += survey.epochs
        raise self._mark_rotten("no segment is left")

    def _verify(self, place: int, *, below_mark: bool) -> Survey:
        survey = self._survey(place)
        file = store_name(self._headers[place].base_index)
        store = self._files.open(file)
        try:
            if below_mark:
                survey.verify(store, min(self._found.position, store.size), file)
                if survey.invalid is not None:
                    raise LogRotten(file, survey.end, survey.invalid)
                self._compare_with_mark(survey, file)
            survey.verify(store, store.size, file)
        finally:
            store.close()
        # What cannot be read may be whole frames that were acknowledged: it is no torn tail.
        if survey.invalid is not None and (survey.is_unreadable or place < len(self._headers) - 1):
            raise LogRotten(file, survey.end, survey.invalid)
        return survey

    def _follows_gap(self, place: int, survey: Survey) -> bool:
        """Return whether segments are missing after `place`. They are above the mark, so a truncation removed them."""
        following = self._headers[place + 1]
        if following.base_index > survey.tail.index:
            return True
        if following.origin != survey.tail:
            raise LogRotten(
                store_name(following.base_index),
                0,
                f"it follows index {following.base_index}, crc32c {following.crc32c:08x}, but the previous segment "
                f"ends at index {survey.tail.index}, crc32c {survey.tail.crc32c:08x}",
            )
        return False

    def _finish(self, survey: Survey, marked: int) -> LogState:
        header = self._headers[-1]
        torn = None
        if not self._found.clean:
            torn = self._torn(survey)
            self._make_durable(marked)
        store = self._files.open(store_name(header.base_index))
        try:
            preallocate(store, survey.end, self._options)
            writer = WriteSegment(self._segments[-1], header, store, survey.index, self._options)
            origin = self._headers[0].origin
            state = _new_state(self._request, self._files, self._mark, origin, self._segments, writer)
            state.epochs = self._epochs
            state.torn = torn
            state.take_write_segment(writer, survey)
            self._mark.commit_index = self._found.commit_index
            state.set_durable(survey.tail, writer.segment, survey.end)
            self._mark.write_synced(state.next_mark())
        except BaseException:
            store.close()
            raise
        return state

    def _torn(self, survey: Survey) -> Torn | None:
        file = store_name(self._headers[-1].base_index)
        store = self._files.open(file)
        try:
            return torn_after(store, survey.end, survey.tail.index, file)
        finally:
            store.close()

    def _make_durable(self, marked: int) -> None:
        """Remove the torn tail, write again what is kept above the mark, and sync files and folders."""
        for base in reversed(self._dropped):
            remove_segment(self._files, base)
        if self._dropped:
            self._files.sync()
        for segment in self._segments[marked:]:
            start = self._found.position if segment is self._segments[marked] else STORE_HEADER_BYTES
            store = self._files.open(store_name(segment.base_index))
            try:
                store.truncate(segment.end)
                for position in range(start, segment.end, CHUNK_BYTES):
                    store.write_at(position, store.read_at(position, min(CHUNK_BYTES, segment.end - position)))
                store.sync()
            finally:
                store.close()
        self._files.sync()
        self._request.directory.sync()
