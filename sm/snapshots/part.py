"""A snapshot that is being fetched from another node, chunk by chunk; fetched chunks survive a restart.

    snapshots/<index>.part/     the manifest first, then chunks, in any order

Each file is written as `<name>.tmp`, synced, and only then renamed, so a file under its final name is durable.
Otherwise a chunk that a killed process left in the page cache, or whose sync failed, could be read back as whole and
counted, and then be lost in a power loss, when the log that the snapshot replaces is already gone.

Only one part is kept: that of the snapshot requested last. When complete, it is first restored into a machine: a
snapshot that this node cannot use must not replace its log.
"""

from collections.abc import Callable
from contextlib import closing

from crc32c import crc32c

from quire.log import Directory, Unreadable

from ..applier import Applier
from ..errors import SnapshotDamaged
from ..machine import StateMachine
from ..sessions.table import Sessions
from .manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, Manifest, decode_manifest
from .store import SnapshotStore, chunk_name, refuse_foreign, snapshot_name, write_file

_PART = ".part"
_TMP = ".tmp"


class SnapshotPart:
    """The fetched part of one snapshot. All methods block; one caller at a time."""

    def __init__(self, store: SnapshotStore, manifest: Manifest) -> None:
        """Use `begin`."""
        self.manifest = manifest
        self._store = store
        self._name = snapshot_name(manifest.index) + _PART
        self._folder = store.folder.child(self._name)
        store.fetching = manifest.index

    @classmethod
    def begin(cls, store: SnapshotStore, raw: bytes) -> "SnapshotPart":
        """Continue the part of the snapshot with this manifest, or begin one; any other part is removed.

        Raises:
            SnapshotDamaged: `raw` is not a manifest.
            SnapshotForeign, UnknownVersion: this node cannot use the snapshot.
            DiskFull, OSError: the part cannot be written.
        """
        manifest = decode_manifest(raw, "of a peer")
        refuse_foreign(manifest, store.owner)
        name = snapshot_name(manifest.index) + _PART
        known = cls._read(store, name) if name in store.names() else None
        if known != manifest:
            cls.forget(store)
            _write_durably(store.folder.child(name), MANIFEST_NAME, raw)
            store.folder.sync()
        return cls(store, manifest)

    @classmethod
    def resume(cls, store: SnapshotStore) -> None:
        """At a start, register an existing part with the store; an unusable one is removed. Raises OSError."""
        for name in [name for name in store.names() if name.endswith(_PART)]:
            manifest = cls._read(store, name)
            if manifest is None or store.fetching or manifest.index in store.indices:
                store.delete_folder(name)
            else:
                store.fetching = manifest.index

    @staticmethod
    def forget(store: SnapshotStore) -> None:
        """Remove any part."""
        for name in [name for name in store.names() if name.endswith(_PART)]:
            store.delete_folder(name)
        store.fetching = 0

    @staticmethod
    def _read(store: SnapshotStore, name: str) -> Manifest | None:
        try:
            with closing(store.folder.existing(name).open(MANIFEST_NAME)) as file:
                return decode_manifest(file.read_at(0, MAX_MANIFEST_BYTES), name)
        except (FileNotFoundError, SnapshotDamaged, Unreadable):
            return None

    def missing(self) -> list[int]:
        """The numbers of the chunks still to fetch; damaged chunks and temporary files are removed."""
        there = set(self._folder.list())
        for name in there:
            if name.endswith(_TMP):
                self._folder.remove(name)
        missing: list[int] = []
        for number in range(len(self.manifest.chunks)):
            if chunk_name(number) in there:
                try:
                    self._store.chunk(self.manifest, number, self._name)
                    continue
                except SnapshotDamaged:
                    self._folder.remove(chunk_name(number))
            missing.append(number)
        return missing

    def put(self, number: int, data: bytes) -> None:
        """Store a chunk; its bytes are durable on return, its name is not.

        Raises:
            SnapshotDamaged: it does not match the manifest; nothing was written.
            DiskFull, OSError: it cannot be written.
        """
        chunk = self.manifest.chunks[number]
        if len(data) != chunk.size or crc32c(data) != chunk.crc32c:
            name = snapshot_name(self.manifest.index)
            raise SnapshotDamaged(snapshot=name, reason=f"{chunk_name(number)} failed its crc32c in transit")
        _write_durably(self._folder, chunk_name(number), data)

    def restore(self, new_machine: Callable[[], StateMachine], new_sessions: Callable[[], Sessions]) -> Applier:
        """As `SnapshotStore.restore`. All chunks must be present; their names are durable on return.

        Raises:
            SnapshotDamaged: a chunk, or the sha256 of all, does not match the manifest.
        """
        self.sync()
        return self._store.restore(self.manifest, new_machine, new_sessions, self._name)

    def sync(self) -> None:
        """Make the names of all chunks durable."""
        self._folder.sync()

    def complete(self) -> None:
        """Turn the part into a whole snapshot; durable on return. Raises as `SnapshotStore.complete`."""
        self._store.adopt(self._name, self.manifest.index)
        self._store.fetching = 0


def _write_durably(folder: Directory, name: str, data: bytes) -> None:
    """Write a file that gets its name only after its bytes are synced; raises as `write_file`."""
    write_file(folder, name + _TMP, data)
    folder.rename(name + _TMP, name)
