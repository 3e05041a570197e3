"""A backup as it is read: its manifests, what a restore begins from and where it ends, and its files, checked."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256

from crc32c import crc32c

from quire.log import Tail, UnknownVersion, walk_headers
from quire.sm import SnapshotDamaged
from quire.sm.snapshots.manifest import MAX_MANIFEST_BYTES as MAX_SNAPSHOT_MANIFEST_BYTES
from quire.sm.snapshots.manifest import Manifest as Snapshot
from quire.sm.snapshots.manifest import decode_manifest as decode_snapshot

from ..data_dir.genesis import Genesis, GenesisInvalid, read_genesis
from .manifest import (
    MANIFESTS,
    BackupInvalid,
    BackupRefused,
    Manifest,
    Piece,
    SnapshotRow,
    manifest_number,
    read_manifest,
    snapshot_files,
    snapshot_manifest_key,
    snapshot_row,
)
from .source import checked_range
from .store import Store, StoreDamaged, StoreMissing

MICROSECONDS = 1_000_000
LAST_SHOWN = 253_402_300_799 * MICROSECONDS
"""The end of the year 9999, after which dates have no text."""
LOG_START = Tail(0, 0, 0, 0)


def read_all(store: Store, say: Callable[[str], None]) -> list[Manifest]:
    """The whole manifests, oldest first. Blocks.

    Raises:
        BackupRefused: there is none, or a later quire wrote one.
        StoreFailed: the store failed.
    """
    keys = sorted(key for key in store.list(MANIFESTS) if manifest_number(key) is not None)
    manifests = [manifest for key in keys if (manifest := read_manifest(store, key, say)) is not None]
    if not manifests:
        why = "none of its manifests is whole" if keys else "it has no manifest, which is written last"
        raise BackupRefused(f"there is no backup in {store.name}: {why}")
    return manifests


@dataclass(frozen=True, slots=True)
class Point:
    """What `--at` names: an index, or a time in microseconds since 1970."""

    index: int | None = None
    time: int | None = None

    @classmethod
    def parse(cls, text: str) -> "Point":
        """An index, or an ISO 8601 date and time; without an offset, UTC. Raises ValueError."""
        if text.isascii() and text.isdigit():
            return cls(index=int(text))
        try:
            when = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(f"{text!r:.40} is neither an index nor a time such as 2026-11-27T05:20:00Z") from None
        when = when if when.tzinfo else when.replace(tzinfo=UTC)
        return cls(time=round(when.timestamp() * MICROSECONDS))


def choose(manifests: Sequence[Manifest], point: Point | None) -> Manifest:
    """The manifest to restore from: the newest that has the point; without one, the newest.

    Raises:
        BackupRefused: none has it.
    """
    if point is None:
        return manifests[-1]
    if point.index is not None:
        # Below 1 there is not even a genesis.
        found = [each for each in manifests if max(each.base, 1) <= point.index <= each.end.index]
        asked = f"index {point.index}"
    else:
        time = point.time or 0
        ended = [manifest for manifest, reach in zip(manifests, _reaches_of(manifests), strict=True) if time <= reach]
        found = [manifest for manifest in ended if _begin_times(manifest)[1] <= time]
        if not found:  # Perhaps the first snapshot is early enough; `end_at` knows.
            maybe = [manifest for manifest in ended if _begin_times(manifest)[0] <= time]
            found = [min(maybe, key=lambda manifest: manifest.base)] if maybe else []
        asked = shown_time(time)
    if not found:
        ranges = ", ".join(sorted({_range_of(manifest) for manifest in _widest(manifests)}))
        raise BackupRefused(f"{asked} is not in this backup, which has {ranges}")
    return found[-1]


def _reaches_of(manifests: Sequence[Manifest]) -> list[int]:
    """Up to which time each has all frames: its own, but not later than a later one's, or else its clock was ahead."""
    reaches, earliest = list[int](), 1 << 64
    for manifest in reversed(manifests):
        earliest = min(earliest, manifest.time)
        reaches.append(max(manifest.end.timestamp, earliest))
    return reaches[::-1]


def _widest(manifests: Sequence[Manifest]) -> list[Manifest]:
    """The manifests whose records are not all in a later one of the same chain."""
    return [
        one
        for place, one in enumerate(manifests)
        if not any(two.chain == one.chain and two.base <= one.base for two in manifests[place + 1 :])
    ]


def _range_of(manifest: Manifest) -> str:
    times = f"{shown_time(_begin_times(manifest)[0])} to {shown_time(manifest.time)}"
    return f"[{manifest.base}, {manifest.end.index}] of {times}"


def _begin_times(manifest: Manifest) -> tuple[int, int]:
    """Between which times is the earliest that can be asked for: that of the first snapshot, or of the genesis."""
    within = [piece for piece in manifest.pieces if piece.to_index > manifest.base]
    if not within:
        return manifest.end.timestamp, manifest.end.timestamp
    return within[0].times if manifest.base else (within[0].times[0], within[0].times[0])


def shown_time(time: int) -> str:
    """A time in microseconds since 1970, as text."""
    if time >= LAST_SHOWN:
        return f"{time} us after 1970"
    return datetime.fromtimestamp(time / MICROSECONDS, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class Contents:
    """The files of one manifest, checked as they are read. All methods block.

    Raises everywhere:
        BackupInvalid: a file is missing, damaged, or does not join the others.
        StoreFailed: the store failed.
    """

    def __init__(self, store: Store, manifest: Manifest) -> None:
        self.manifest = manifest
        self._store = store

    def piece(self, piece: Piece) -> bytes:
        """The frames of a piece."""
        raw = self._file(piece.file, piece.size, piece.crc)
        begin = Tail(piece.from_index, 0, 0, piece.chain_first)
        end = checked_range(raw, begin, piece.file).end
        if end != Tail(piece.to_index, piece.epoch, piece.times[1], piece.chain_last):
            raise BackupInvalid(f"{piece.file} ends at {end.index} of epoch {end.epoch}, and not as its manifest says")
        return raw

    def snapshot(self, row: SnapshotRow) -> tuple[bytes, Snapshot]:
        """A snapshot's manifest, as bytes and decoded."""
        key = snapshot_manifest_key(row)
        raw = self._get(key, MAX_SNAPSHOT_MANIFEST_BYTES)
        try:
            snapshot = decode_snapshot(raw, key)
        except SnapshotDamaged as error:
            raise BackupInvalid(str(error)) from error
        except UnknownVersion as error:
            raise BackupRefused(f"{error}; a later quire wrote it: upgrade this one") from error
        if snapshot_row(snapshot) != row or snapshot.cluster_id.hex() != self.manifest.cluster_id:
            raise BackupInvalid(f"{key} is of another snapshot than the backup's manifest says")
        return raw, snapshot

    def chunks(self, row: SnapshotRow, first: int = 0) -> Iterator[bytes]:
        """The chunks of a snapshot from a number on; after all of them, their sha256 is checked."""
        _, snapshot = self.snapshot(row)
        check = sha256()
        for key, size, crc in snapshot_files(row, snapshot)[first:]:
            data = self._file(key, size, crc)
            check.update(data)
            yield data
        if not first and check.digest() != snapshot.sha256:
            raise BackupInvalid(f"{row.folder} is damaged: its sha256 differs")

    def frames(self, from_index: int, to_index: int) -> Iterator[bytes]:
        """The frames from a boundary up to another, in order, a piece at a time."""
        for piece in self.manifest.pieces:
            if piece.to_index <= from_index or piece.from_index >= to_index:
                continue
            raw = self.piece(piece)
            start = 0 if piece.from_index >= from_index else _position_of(raw, from_index)
            stop = len(raw) if piece.to_index <= to_index else _position_of(raw, to_index)
            yield raw if (start, stop) == (0, len(raw)) else raw[start:stop]

    def end_at(self, point: Point | None) -> Tail:
        """The last frame boundary at or below an index, or the end of the last frame stamped at or before a time.

        Raises:
            BackupRefused: its first snapshot is later than that.
        """
        if point is None:
            return self.manifest.end
        end = self.begin
        for piece in self.manifest.pieces:
            if piece.to_index <= end.index:
                continue
            if _reaches(point, piece.to_index, piece.times[1]):
                end = Tail(piece.to_index, piece.epoch, piece.times[1], piece.chain_last)
                continue
            for _, header in walk_headers(self.piece(piece)):
                if header.next_index > end.index:
                    if not _reaches(point, header.next_index, header.timestamp):
                        break
                    end = header.tail
            break
        if point.time is not None and end.timestamp > point.time:
            first = f"whose first snapshot is of {shown_time(end.timestamp)}"
            raise BackupRefused(f"{shown_time(point.time)} is not in {self.manifest.key}, {first}")
        return end

    @cached_property
    def genesis(self) -> Genesis:
        """What the genesis frame in the manifest says. Raises BackupInvalid: it is none, or of another cluster."""
        key = self.manifest.key
        try:
            genesis = read_genesis(self.manifest.genesis)
        except GenesisInvalid as error:
            raise BackupInvalid(f"the genesis in {key} is damaged: {error}") from error
        if (genesis.cluster_id.hex(), genesis.machine) != (self.manifest.cluster_id, self.manifest.machine):
            raise BackupInvalid(f"the genesis in {key} is of another cluster or machine")
        return genesis

    @cached_property
    def begin(self) -> Tail:
        """The first boundary that can be restored: the beginning of the log, or the first snapshot's."""
        if not self.manifest.base:
            return LOG_START
        return self.snapshot(self.manifest.snapshots[0])[1].boundary.tail

    def _file(self, key: str, size: int, crc: int) -> bytes:
        raw = self._get(key, size)
        if len(raw) != size:
            raise BackupInvalid(f"{key} has {len(raw)} bytes, and not {size}")
        if crc32c(raw) != crc:
            raise BackupInvalid(f"{key} is damaged: its crc32c differs")
        return raw

    def _get(self, key: str, most: int) -> bytes:
        try:
            return self._store.get(key, most)
        except StoreMissing as error:
            raise BackupInvalid(f"{error}: the backup has lost it") from error
        except StoreDamaged as error:
            raise BackupInvalid(str(error)) from error


def _reaches(point: Point, index: int, time: int) -> bool:
    """Whether a frame that ends at an index and has this time is within the point."""
    return index <= point.index if point.index is not None else time <= (point.time or 0)


def _position_of(raw: bytes, index: int) -> int:
    """Where in a piece the frame that begins at an index begins."""
    for offset, header in walk_headers(raw):
        if header.index == index:
            return offset
        if header.next_index == index:
            return offset + header.size
    raise BackupInvalid(f"no frame begins at index {index}")
