"""Rotation: from one write segment to the next.

The steps, in this order:

1. Write the old segment's index file. Make the new store under an unfinished name: allocate it, or on a nearly full
   disk what the next frame needs; write and sync its header. A full disk is found here, before anything has changed.
2. Write out and sync the old store; then write and sync the mark, which is now at its end. If an overwrite finds no
   room, the new store is removed and the old segment stays the last, with the room that it has, the reserve included.
3. Trim and sync the old store. From here on it is sealed, and anything invalid in it is rot.
4. Give the new store its name and sync the folder. Only then append to it: if a power loss takes the name, no frame
   goes with it.
"""

from __future__ import annotations

from ..errors import NoRoom
from ..files import refusing_full
from ..options import STORE_HEADER_BYTES, LogOptions
from ..segment.index import FrameIndex, save_index
from ..segment.segments import Segment
from ..segment.store import (
    UNFINISHED_SUFFIX,
    StoreHeader,
    create_fresh,
    encode_store_header,
    store_name,
)
from ..segment.write_segment import WriteSegment, allocate_most
from ..state import LogState
from ..storage import Directory, Storage
from .spare import Spare


def prepare_store(
    files: Directory, header: StoreHeader, options: LogOptions, size: int = 0, spare: Spare | None = None
) -> Storage:
    """Return a new store under its unfinished name, its header synced, preallocated for a frame of `size` at least.

    It is the `spare` if that is ready; if it is not, only the least is allocated.

    Raises:
        DiskFull, ResourcesExhausted: there is no room, or no descriptor; nothing is left behind.
    """
    name = store_name(header.base_index) + UNFINISHED_SUFFIX
    ready = None if spare is None else spare.take(name)
    store = create_fresh(files, name) if ready is None else ready
    try:
        needed = STORE_HEADER_BYTES + size + options.reserve
        allocate_most(store, needed if spare else max(needed, options.segment_bytes + options.reserve), needed)
        with refusing_full(name):
            store.write_at(0, encode_store_header(header))
        store.sync()
    except NoRoom:
        _drop(files, name, store)
        raise
    except BaseException:
        store.close()
        raise
    return store


def _drop(files: Directory, name: str, store: Storage) -> None:
    store.close()
    files.remove(name)


def publish_store(files: Directory, header: StoreHeader, store: Storage, options: LogOptions) -> WriteSegment:
    """Give a prepared store its name, durably; return it as a write segment."""
    name = store_name(header.base_index)
    files.rename(name + UNFINISHED_SUFFIX, name)
    files.sync()
    segment = Segment(header.origin, STORE_HEADER_BYTES)
    return WriteSegment(segment, header, store, FrameIndex(header.base_index, options.index_interval_bytes), options)


def rotate(state: LogState, size: int) -> None:
    """Seal the write segment and open the next one, with room for a frame of `size` bytes.

    Raises:
        DiskFull, ResourcesExhausted: there is no room for another segment, or no descriptor; the log is as before.
        LogReadOnly: the device failed.
    """
    old, tail = state.writer, state.tail
    members_index = state.members[-1] if state.members else None
    header = StoreHeader(tail.index, tail.epoch, tail.timestamp, tail.crc32c, members_index, state.cluster_id)
    with state.failing("rotating to a new segment"):
        state.segments.refuse_without_descriptor()
        save_index(state.files, old.index)
        store = prepare_store(state.files, header, state.options, size, state.spare)
        try:
            _seal(state, old)
        except NoRoom:
            _drop(state.files, store_name(header.base_index) + UNFINISHED_SUFFIX, store)
            raise
        state.writer = publish_store(state.files, header, store, state.options)
        state.segments.append(state.writer.segment)
        state.segments.cache_index(old.segment.base_index, old.index)
        state.members = [] if members_index is None else [members_index]
        state.retire(old.store)


def _seal(state: LogState, old: WriteSegment) -> None:
    state.settle_flush()
    old.write_out()
    old.store.sync()
    state.set_durable(state.tail, old.segment, old.segment.end)
    state.mark.write_synced(state.next_mark())
    old.trim()
    old.store.sync()
