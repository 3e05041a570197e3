"""The check of a read segment at open: that it ends where the next one begins, without a read of the whole segment.

The header of the next store has index, epoch, timestamp and crc32c of the segment's last frame; the index file leads
close to that frame. Only a wrong index costs a walk over the whole segment.
"""

from __future__ import annotations

from bisect import bisect_left

from ..errors import FrameInvalid, LogRotten, UnknownVersion, Unreadable
from ..frames import HEADER_BYTES, FrameHeader, Tail, decode_header
from ..options import STORE_HEADER_BYTES, LogOptions
from ..storage import Directory, Storage, read_ahead
from .index import INDEX_VERSION, IndexEntry, StoredIndex, rebuild_index
from .store import StoreHeader, index_name, store_name
from .survey import Survey

_TAIL_CHUNK_BYTES = 8192


class ReadSegmentCheck:
    """Checks one read segment, and finds where it and its epochs end and begin."""

    def __init__(
        self,
        files: Directory,
        options: LogOptions,
        header: StoreHeader,
        following: StoreHeader,
        epoch_before: int | None,
    ) -> None:
        self._files = files
        self._options = options
        self._header = header
        self._following = following
        self._epoch_before = epoch_before
        self._file = store_name(header.base_index)
        self.end = 0
        self.epochs: list[tuple[int, int]] = []

    def run(self) -> None:
        """Check that the segment ends where the next one begins; set `end` and `epochs`.

        Raises:
            LogRotten: it does not.
            UnknownVersion: a frame has an unknown version, or a later program wrote the index file.
        """
        store = self._files.open(self._file)
        try:
            self.end = store.size
            if not self._fits_by_index(store):
                self._fit_by_walk(store)
        except FrameInvalid as error:
            raise LogRotten(self._file, error.position, error.reason) from error
        finally:
            store.close()

    def _fits_by_index(self, store: Storage) -> bool:
        """Check the end by the index file; return False if that is missing or wrong, and has to be rebuilt.

        No checksum covers its version. A later program is assumed only if the rest does not fit this version either;
        otherwise the field is damaged, and the index is wrong as after any other damage.
        """
        base, name = self._header.base_index, index_name(self._header.base_index)
        try:
            index = StoredIndex(self._files.open(name))
        except FileNotFoundError:
            return False
        try:
            version = index.version(base)
            fits = version is not None and self._fits(store, index)
        except Unreadable:
            return False
        finally:
            index.close()
        if version is not None and version > INDEX_VERSION and not fits:
            raise UnknownVersion(name, version)
        return fits and version == INDEX_VERSION

    def _fits(self, store: Storage, index: StoredIndex) -> bool:
        try:
            if not index.count or self._tail_by_index(store, index.entry(index.count - 1)) != self._following.origin:
                return False
            self._find_epochs(store, index)
        except FrameInvalid:
            return False
        return True

    def _tail_by_index(self, store: Storage, entry: IndexEntry) -> Tail | None:
        """Return the segment's tail, by a walk from its last index entry; None if that is wrong or not the last."""
        position, header = entry.position, None
        if position < STORE_HEADER_BYTES:
            return None
        raw, start = b"", position
        while position < self.end:
            if position - start + HEADER_BYTES > len(raw):
                raw, start = read_ahead(store, position, _TAIL_CHUNK_BYTES, HEADER_BYTES), position
            header = decode_header(raw, position - start)
            if position == entry.position:
                if header.crc32c != entry.crc32c or header.index != self._header.base_index + entry.relative:
                    return None
            elif position >= entry.position + self._options.index_interval_bytes:
                return None
            position += header.size
        if header is None or position != self.end:
            return None
        return header.tail

    def _find_epochs(self, store: Storage, index: StoredIndex) -> None:
        """Find where the segment's epochs begin by binary search, since epochs never decrease."""
        epoch = self._epoch_before
        while epoch != self._following.epoch:
            # The epoch changes between the last entry of this epoch and the next entry.
            place = bisect_left(
                range(index.count), True, key=lambda k: self._is_later(_header_of(store, index.entry(k)), epoch)
            )
            position = index.entry(place - 1).position if place else STORE_HEADER_BYTES
            header = decode_header(store.read_at(position, HEADER_BYTES))
            while not self._is_later(header, epoch):
                position += header.size
                header = decode_header(store.read_at(position, HEADER_BYTES))
            epoch = header.epoch
            self.epochs.append((epoch, header.index))

    @staticmethod
    def _is_later(header: FrameHeader, epoch: int | None) -> bool:
        return epoch is None or header.epoch > epoch

    def _fit_by_walk(self, store: Storage) -> None:
        survey = Survey(self._header, self._options.index_interval_bytes, self._epoch_before)
        survey.glance(store, self.end)
        if survey.tail != self._following.origin:
            raise LogRotten(
                self._file,
                self.end,
                f"its frames end at index {survey.tail.index}, crc32c {survey.tail.crc32c:08x}, but the next segment "
                f"follows index {self._following.base_index}, crc32c {self._following.crc32c:08x}",
            )
        self.epochs = survey.epochs
        rebuild_index(self._files, survey.index)


def _header_of(store: Storage, entry: IndexEntry) -> FrameHeader:
    if entry.position < STORE_HEADER_BYTES:
        raise FrameInvalid("the index names the store header", entry.position)
    header = decode_header(store.read_at(entry.position, HEADER_BYTES))
    if header.crc32c != entry.crc32c:
        raise FrameInvalid("the index names another frame", entry.position)
    return header
