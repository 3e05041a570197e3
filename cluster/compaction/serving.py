"""This node's snapshots as others read them: peers that install one, and backups, chunk by chunk.

A backup has no connection of its own that would hold a snapshot. So each of its requests keeps the snapshot for
`PINNED_S`. At most PINS_LIMIT snapshots are kept so: the one that was read last the longest ago is given up first.
"""

import asyncio
import time
from collections.abc import Callable

from quire.log import ResourcesExhausted
from quire.replication.net.snapshots import SnapshotRefused
from quire.sm import SnapshotDamaged, SnapshotStore

from ..errors import CorruptHere, Malformed, SnapshotUnknown
from .forked import in_thread

PINNED_S = 60.0
PINS_LIMIT = 4
READS_AT_ONCE = 2
"""A chunk has 4 MiB."""


class StoreSource:
    """The `SnapshotSource` of a node: its store. A damaged snapshot is set aside."""

    def __init__(self, store: SnapshotStore) -> None:
        self._store = store

    def manifest(self, index: int) -> bytes:
        """The manifest of a whole snapshot."""
        for manifest in self._store.manifests:
            if manifest.index == index:
                return manifest.encode()
        raise SnapshotRefused(f"there is no snapshot at {index}")

    def chunk(self, index: int, number: int) -> bytes:
        """One chunk, verified."""
        manifest = next((manifest for manifest in self._store.manifests if manifest.index == index), None)
        if manifest is None or not 0 <= number < len(manifest.chunks):
            raise SnapshotRefused(f"there is no chunk {number} of a snapshot at {index}")
        try:
            return self._store.chunk(manifest, number)
        except SnapshotDamaged as damage:
            if index not in self._store.indices:
                raise SnapshotRefused(f"the snapshot at {index} was removed") from None
            self._store.quarantine(index, damage)
            raise SnapshotRefused(str(damage)) from damage
        except (OSError, ResourcesExhausted) as error:
            raise SnapshotRefused(f"it cannot be read: {error}") from error


class SnapshotReads:
    """Reads of this node's snapshots by backups. All methods are called on the event loop."""

    def __init__(self, store: SnapshotStore, now: Callable[[], float] = time.monotonic) -> None:
        """`now` gives monotonic seconds."""
        self._store = store
        self._source = StoreSource(store)
        self._now = now
        self._pins: dict[int, float] = {}
        self._turns = asyncio.Semaphore(READS_AT_ONCE)

    @property
    def pinned(self) -> list[int]:
        """The indices of the snapshots that were read in the last PINNED_S."""
        now = self._now()
        self._pins = {index: until for index, until in self._pins.items() if until > now}
        return list(self._pins)

    async def manifest(self, index: int) -> bytes:
        """The bytes of a snapshot's manifest; the snapshot is kept for PINNED_S.

        Raises:
            SnapshotUnknown: there is no snapshot at the index.
        """
        self._pin(index)
        try:
            return self._source.manifest(index)
        except SnapshotRefused as error:
            raise CorruptHere(index, str(error)) from error

    async def chunk(self, index: int, number: int) -> bytes:
        """A chunk of a snapshot, which is kept for PINNED_S.

        Raises:
            SnapshotUnknown: as `manifest`.
            Malformed: the snapshot has no such chunk.
            CorruptHere: it cannot be read, or is damaged; then the snapshot no longer counts.
        """
        self._pin(index)
        count = next((len(manifest.chunks) for manifest in self._store.manifests if manifest.index == index), 0)
        if number >= count:
            raise Malformed(f"the snapshot at {index} has {count} chunks, numbered from 0")
        async with self._turns:
            try:
                return await in_thread(self._source.chunk, index, number)
            except (SnapshotRefused, OSError) as error:
                raise CorruptHere(index, str(error)) from error

    def _pin(self, index: int) -> None:
        if index not in (known := self._store.indices):
            raise SnapshotUnknown(index, known)
        self._pins.pop(index, None)
        self._pins[index] = self._now() + PINNED_S
        while len(self._pins) > PINS_LIMIT:
            del self._pins[next(iter(self._pins))]
