"""Reset and removal: emptying a log, to continue after a snapshot or for good.

The steps, in this order:

1. Write and sync a mark that says that nothing is durable: what a crash leaves of the log is then not rot.
2. Remove all segments but the first, last to first, and sync the folder; then remove the first. What a crash leaves is
   a beginning of the old log. Without the first sync, a later segment could come back without the one that the mark
   names.
3. For a reset, write a mark that names the new beginning, and make the new store as in a rotation. For a removal,
   remove the mark.

A crash leaves a log that opens: a beginning of the old one, or an empty one. The snapshot is durable before a reset, so
the next start finds that the log does not follow it, and resets it again.
"""

from __future__ import annotations

from ..errors import NotFrameBoundary
from ..frames import Tail
from ..options import STORE_HEADER_BYTES
from ..segment.lookup import Lookup
from ..segment.mark import MARK_NAME, Mark, MarkFile
from ..segment.segments import remove_segment
from ..segment.store import SEGMENTS_FOLDER, STORE_SUFFIX, StoreHeader, base_of_name
from ..state import LogState
from ..storage import Directory
from .rewrite import REWRITE_SUFFIX
from .rotation import prepare_store, publish_store
from .spool import SPOOL_SUFFIX


def follows(state: LogState, lookup: Lookup, origin: Tail) -> bool:
    """Return whether the log holds, or begins after, the frame that ends at `origin`, and so continues from it."""
    index = origin.index
    if not state.origin.index <= index <= state.tail.index:
        return False
    if index in (state.origin.index, state.tail.index):
        return origin in (state.origin, state.tail)
    try:
        return lookup.end_before(index)[0] == origin
    except NotFrameBoundary:
        return False


def reset_to(state: LogState, origin: Tail, members_index: int | None) -> None:
    """Remove everything and begin an empty log, whose first frame will follow `origin`. Blocks.

    Raises:
        DiskFull: there is no room for the new segment; the log is read-only, and empty at the next open.
        LogReadOnly: the device failed.
    """
    with state.failing("resetting"):
        state.settle_flush()
        state.generation += 1
        base = state.segments.first.base_index
        state.mark.write_synced(Mark(0, base, base, STORE_HEADER_BYTES, 0, 0, 0, clean=False))
        # If the device fails or is full from here on, reads must not look for what is gone.
        state.origin = state.tail = state.durable = origin
        state.retire(state.writer.store)
        while len(state.segments) > 1:
            state.segments.remove_last()
        state.files.sync()
        state.segments.remove_last()
        state.files.sync()
        base = origin.index
        state.mark.write_synced(Mark(0, base, base, STORE_HEADER_BYTES, 0, 0, 0, clean=False))
        _begin(state, StoreHeader(*origin, members_index, state.cluster_id))
        state.mark.write_synced(state.next_mark())


def _begin(state: LogState, header: StoreHeader) -> None:
    try:
        store = prepare_store(state.files, header, state.options)
    except BaseException:
        state.fail("resetting: the new segment could not be created")
        raise
    state.writer = publish_store(state.files, header, store, state.options)
    state.segments.append(state.writer.segment)
    state.epochs = []
    state.members = [] if header.members_index is None else [header.members_index]
    state.read_segments_bytes = 0
    state.set_durable(header.origin, state.writer.segment, STORE_HEADER_BYTES)


def remove_log(directory: Directory) -> None:
    """Remove segments and mark from a data directory whose log is not open. Blocks.

    A crash leaves a log that opens: with the first segments, or empty.
    """
    files = directory.child(SEGMENTS_FOLDER)
    names = files.list()
    bases = sorted(base for name in names if (base := base_of_name(name, STORE_SUFFIX)) is not None)
    marked = MARK_NAME in directory.list()
    if bases and marked:
        storage = directory.open(MARK_NAME)
        mark = MarkFile(storage)
        try:
            mark.write_synced(Mark(0, bases[0], bases[0], STORE_HEADER_BYTES, 0, 0, 0, clean=False))
        finally:
            mark.close()
    for name in names:
        if any(base_of_name(name, suffix) is not None for suffix in (SPOOL_SUFFIX, REWRITE_SUFFIX)):
            files.remove(name)
    for base in reversed(bases[1:]):
        remove_segment(files, base)
    files.sync()
    if bases:
        remove_segment(files, bases[0])
        files.sync()
    if marked:
        directory.remove(MARK_NAME)
        directory.sync()
