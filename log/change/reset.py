"""Beginning a log anew behind a snapshot.

The steps, and why in this order:

1. The mark says that nothing is durable, and is synced: what a crash leaves of the old log is then no rot.
2. All segments but the first go, last to first, and the folder is synced; then the first: what a crash leaves is the
   beginning of the old log. (Without the first sync a later segment could come back without the one the mark names.)
3. The mark names the new beginning, and the new store is made as in a rotation.

A crash on the way leaves a log that opens: a beginning of the old one, or an empty one. The snapshot is durable before,
so whoever installs it sees at the next start that the log does not follow it, and resets it again.
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
    """Return whether the log has, or had, the frame that ends at `origin`, and so goes on from it."""
    index = origin.index
    if not state.origin.index <= index <= state.tail.index:
        return False
    if index in (state.origin.index, state.tail.index):
        return origin in (state.origin, state.tail)
    try:
        return lookup.place_behind(index)[0] == origin
    except NotFrameBoundary:
        return False


def reset_to(state: LogState, origin: Tail, members_index: int | None) -> None:
    """Remove everything, and begin an empty log whose first frame will follow `origin`. Blocks.

    Raises:
        DiskFull: no room for the new segment; the log is read-only, and the next open begins it anew.
        LogReadOnly: the device failed.
    """
    with state.failing("resetting"):
        state.settle_flush()
        state.generation += 1
        base = state.segments.first.base_index
        state.mark.write_synced(Mark(0, base, base, STORE_HEADER_BYTES, 0, 0, 0, clean=False))
        # If the device fails from here on, or is full, nobody looks for what is gone.
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
        state.fail("resetting: the new segment could not be made")
        raise
    state.writer = publish_store(state.files, header, store, state.options)
    state.segments.append(state.writer.segment)
    state.epochs = []
    state.members = [] if header.members_index is None else [header.members_index]
    state.read_segments_bytes = 0
    state.set_durable(header.origin, state.writer.segment, STORE_HEADER_BYTES)


def remove_log(directory: Directory) -> None:
    """Remove segments and mark from a data directory whose log is not open. Blocks.

    The mark says first that nothing is durable: what is left by a crash is then no rot. Segments go last to first, the
    mark goes when they are gone for good.
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
    # Without this sync a power loss could bring a later segment back and not the first one, which the mark names.
    files.sync()
    if bases:
        remove_segment(files, bases[0])
        files.sync()
    if marked:
        directory.remove(MARK_NAME)
        directory.sync()
