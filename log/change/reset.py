"""Reset and removal: emptying a log, to continue after a snapshot or permanently.

The steps, in this order:

1. For a reset, create the new store under its unfinished name, as in a rotation: without room, nothing is changed.
2. Write and sync a mark that says that all segments are removed: whatever a crash leaves of them is then neither rot
   nor a log. It also says where the next log begins.
3. Remove all segments, and sync the folder.
4. For a reset, write a mark that names the new beginning, and give the new store its name. For a removal, remove the
   mark.

After a crash the next open removes what is left, unread, and begins an empty log: where the reset was to begin it, with
no frame before. The snapshot is durable before a reset, so the next start finds that the log does not follow it, and
resets it again. If the snapshot was damaged in the meantime, no older one reaches such a log.
"""

from __future__ import annotations

from ..frames import Tail
from ..options import STORE_HEADER_BYTES
from ..segment.mark import MARK_NAME, MarkFile, discarding_mark, empty_mark
from ..segment.segments import remove_segment
from ..segment.store import SEGMENTS_FOLDER, STORE_SUFFIX, UNFINISHED_SUFFIX, StoreHeader, base_of_name
from ..state import LogState
from ..storage import Directory, Storage
from .rewrite import REWRITE_SUFFIX
from .rotation import prepare_store, publish_store
from .spool import SPOOL_SUFFIX
from .truncation import remove_segments

LEFTOVERS = SPOOL_SUFFIX, REWRITE_SUFFIX, STORE_SUFFIX + UNFINISHED_SUFFIX


def reset_to(state: LogState, origin: Tail, members_index: int | None) -> None:
    """Remove everything and begin an empty log, whose first frame will follow `origin`. Blocks.

    Raises:
        ResourcesExhausted: the process can open no more files; nothing was changed.
        DiskFull: there is no room for the beginning of a segment; nothing was changed.
        LogReadOnly: the device failed.
    """
    state.segments.refuse_without_descriptor()
    header = StoreHeader(*origin, members_index, state.cluster_id)
    with state.failing("resetting") as change:
        state.settle_flush()
        state.settle_expiry()
        # First: without room nothing is removed.
        store = prepare_store(state.files, header, state.options, spare=state.spare)
        change.has_begun = True  # If the mark is torn now, the next open may find it.
        state.generation += 1
        state.mark.write_synced(discarding_mark(origin.index))
        # If the device fails or is full from here on, reads must not look for removed segments.
        state.origin = state.tail = state.durable = origin
        state.writer.recent.clear()
        state.retire(state.writer.store)
        remove_segments(state, 0)
        state.mark.write_synced(empty_mark(origin.index))
        _begin(state, header, store)
        state.mark.write_synced(state.next_mark())


def _begin(state: LogState, header: StoreHeader, store: Storage) -> None:
    state.writer = publish_store(state.files, header, store, state.options)
    state.segments.append(state.writer.segment)
    state.epochs = []
    state.members = [] if header.members_index is None else [header.members_index]
    state.set_durable(header.origin, state.writer.segment, STORE_HEADER_BYTES)


def discard_segments(files: Directory) -> None:
    """Remove what is left of a log that was being emptied, with the files that would change the next one. Blocks."""
    names = files.list()
    for name in names:
        if any(base_of_name(name, suffix) is not None for suffix in LEFTOVERS):
            files.remove(name)
    for name in names:
        if (base := base_of_name(name, STORE_SUFFIX)) is not None:
            remove_segment(files, base)
    files.sync()


def remove_log(directory: Directory) -> None:
    """Remove segments and mark from a data directory whose log is not open. Blocks.

    A crash leaves a log that opens, and is empty unless the removal had not begun.
    """
    files = directory.child(SEGMENTS_FOLDER)
    bases = [base for name in files.list() if (base := base_of_name(name, STORE_SUFFIX)) is not None]
    marked = MARK_NAME in directory.list()
    if bases and marked:
        mark = MarkFile(directory.open(MARK_NAME))
        try:
            mark.write_synced(discarding_mark(0))
        finally:
            mark.close()
    discard_segments(files)
    if marked:
        directory.remove(MARK_NAME)
        directory.sync()
