"""The content of a log's files. (`verification` finds what is wrong with them.)

Nothing is changed. The caller holds the directory's lock, because a log that grows meanwhile would look torn.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from ..errors import FrameCorrupt, Unreadable
from ..frames import FrameHeader
from ..segment.mark import MARK_NAME, Mark, MarkFile
from ..segment.store import (
    SEGMENTS_FOLDER,
    STORE_SUFFIX,
    StoreHeader,
    base_of_name,
    index_name,
    store_name,
)
from ..segment.survey import CHUNK_BYTES
from ..storage import Directory, Storage
from .segment_file import SegmentFile


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """The facts from the headers and sizes of a segment's files; `highest_index` is None for the last segment."""

    base_index: int
    highest_index: int | None
    epoch: int
    """Epoch of the frame before its first."""
    timestamp: int
    """Timestamp of that frame, in microseconds since the Unix epoch."""
    store_bytes: int
    index_bytes: int | None
    cluster_id: bytes


def store_bases(files: Directory) -> list[int]:
    """Return the base indices of a log's segments, ascending."""
    return sorted(base for name in files.list() if (base := base_of_name(name, STORE_SUFFIX)) is not None)


def stored_mark(directory: Directory) -> Mark | None:
    """Return the mark of a data directory; None if it has no valid slot.

    Raises:
        UnknownVersion: a later program wrote it.
    """
    if MARK_NAME not in directory.list():
        return None
    with closing(MarkFile(directory.open(MARK_NAME))) as mark:
        return mark.found


def is_mark_damaged(directory: Directory) -> bool:
    """Return whether one of the mark's two slots was written but is not valid. A power loss may also cause that.

    Raises:
        FileNotFoundError: there is no mark.
        UnknownVersion: a later program wrote it.
    """
    with closing(MarkFile(directory.open(MARK_NAME))) as mark:
        return mark.is_damaged


def stored_cluster_id(directory: Directory) -> bytes | None:
    """Return the id of the cluster whose log a data directory holds; None if it holds none.

    Raises:
        FrameCorrupt, UnknownVersion: the header of its first store cannot be read.
    """
    files = directory.child(SEGMENTS_FOLDER)
    bases = store_bases(files)
    return _read_header(files, bases[0]).cluster_id if bases else None


def list_segments(directory: Directory) -> list[SegmentFacts]:
    """Return the facts of each segment, ascending.

    Raises:
        FrameCorrupt, UnknownVersion: a store header cannot be read; `verify` tells more.
    """
    files = directory.child(SEGMENTS_FOLDER)
    bases = store_bases(files)
    facts: list[SegmentFacts] = []
    for place, base in enumerate(bases):
        header = _read_header(files, base)
        following = bases[place + 1] if place + 1 < len(bases) else None
        sizes = _size(files, store_name(base)) or 0, _size(files, index_name(base))
        facts.append(SegmentFacts(base, following, header.epoch, header.timestamp, *sizes, header.cluster_id))
    return facts


def log_bytes(directory: Directory) -> int:
    """Return the size of all stores, which is what `verify` reads."""
    files = directory.child(SEGMENTS_FOLDER)
    return sum(_size(files, store_name(base)) or 0 for base in store_bases(files))


def frames_of(directory: Directory, base_index: int) -> Iterator[tuple[FrameHeader, memoryview | None]]:
    """Yield header and payload of a segment's frames, verified by checksum, up to the end or the preallocated zeros.

    The payload of a frame above 1 MiB is None.

    Raises:
        FrameCorrupt: what follows is neither a frame nor zeros.
        UnknownVersion: a later program wrote it.
    """
    with closing(SegmentFile(directory.child(SEGMENTS_FOLDER), base_index)) as segment:
        segment.header()
        try:
            yield from segment.frames()
        except FrameCorrupt as error:
            if not is_zero(segment.store, error.position):
                raise


def _read_header(files: Directory, base: int) -> StoreHeader:
    with closing(SegmentFile(files, base)) as segment:
        return segment.header()


def _size(files: Directory, name: str) -> int | None:
    try:
        storage = files.open(name)
    except FileNotFoundError:
        return None
    with closing(storage):
        return storage.size


def is_zero(store: Storage, position: int) -> bool:
    """Return whether only preallocated space follows."""
    try:
        return all(
            not store.read_at(start, min(CHUNK_BYTES, store.size - start)).strip(b"\0")
            for start in range(position, store.size, CHUNK_BYTES)
        )
    except Unreadable:
        return False
