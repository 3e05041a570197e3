"""A snapshot that is being fetched from another node, chunk by chunk; what was fetched survives a restart.

    snapshots/<index>.part/     the manifest first, then chunks, in any order

Each is written as `<name>.tmp`, synced, and only then renamed: what has its name is durable. Without it a chunk that a
killed process left in the page cache, or whose sync failed, would read back as whole, count, and be gone with the
power, when the log in whose place it stands is gone, too. Only one part is kept: that of the snapshot which was
asked for last. Whole, it is read by a machine before it counts: what this node could not use must not take its log's
place.
"""

from collections.abc import Callable
from contextlib import closing

from crc32c import crc32c

from quire.log import Directory

from ..applier import Applier
from ..errors import SnapshotDamaged
from ..machine import StateMachine
from ..sessions.table import Sessions
from .content import restore_content
from .manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, Manifest, decode_manifest
from .store import SnapshotStore, chunk_name, refuse_foreign, snapshot_name, write_file

_PART = ".part"
_TMP = ".tmp"


class SnapshotPart:
    """What is there of one snapshot that is fetched. All methods block; one caller at a time."""

    def __init__(self, store: SnapshotStore, manifest: Manifest) -> None:
        """Use `begin` or `resume`."""
        self.manifest = manifest
        self._store = store
        self._name = snapshot_name(manifest.index) + _PART
        self._folder = store.folder.child(self._name)
        store.fetching = manifest.index

    @classmethod
    def begin(cls, store: SnapshotStore, raw: bytes) -> "SnapshotPart":
        """Take up the part of the snapshot whose manifest this is, or begin one; any other is removed.

        Raises:
            SnapshotDamaged: it is no manifest.
            SnapshotForeign, UnknownVersion: nothing that this node can use.
            DiskFull, OSError: it cannot be written.
        """
        manifest = decode_manifest(raw, "of a peer")
        refuse_foreign(manifest, store.owner)
        name = snapshot_name(manifest.index) + _PART
        known = cls._read(store, name) if name in store.folder.list() else None
        if known != manifest:
            cls.forget(store)
            _write_durably(store.folder.child(name), MANIFEST_NAME, raw)
            store.folder.sync()
        return cls(store, manifest)

    @classmethod
    def resume(cls, store: SnapshotStore) -> None:
        """Let the store know at a start of what part there is; one that cannot be used is removed. Raises OSError."""
        for name in [name for name in store.folder.list() if name.endswith(_PART)]:
            manifest = cls._read(store, name)
            if manifest is None or store.fetching or manifest.index in store.indices:
                store.empty(name)
            else:
                store.fetching = manifest.index

    @staticmethod
    def forget(store: SnapshotStore) -> None:
        """Remove whatever part there is."""
        for name in [name for name in store.folder.list() if name.endswith(_PART)]:
            store.empty(name)
        store.fetching = 0

    @staticmethod
    def _read(store: SnapshotStore, name: str) -> Manifest | None:
        try:
            with closing(store.folder.child(name).open(MANIFEST_NAME)) as file:
                return decode_manifest(file.read_at(0, MAX_MANIFEST_BYTES), name)
        except (FileNotFoundError, SnapshotDamaged):
            return None

    def missing(self) -> list[int]:
        """The numbers of the chunks that are still to be fetched; what is there and torn, or without its name, goes."""
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
        """Take a chunk; durable, but for its name, on return.

        Raises:
            SnapshotDamaged: it is not what the manifest says; nothing was written.
            DiskFull, OSError: it cannot be written.
        """
        chunk = self.manifest.chunks[number]
        if len(data) != chunk.size or crc32c(data) != chunk.crc32c:
            name = snapshot_name(self.manifest.index)
            raise SnapshotDamaged(snapshot=name, reason=f"{chunk_name(number)} failed its crc32c on its way")
        _write_durably(self._folder, chunk_name(number), data)

    def restore(self, new_machine: Callable[[], StateMachine], new_sessions: Callable[[], Sessions]) -> Applier:
        """An applier behind the snapshot, whose chunks are all there. What is there is synced on return.

        Raises:
            SnapshotDamaged: a chunk, or the sum of all, is not what the manifest says.
            SnapshotInvalid: the machine refuses it.
        """
        self._folder.sync()
        machine, sessions = new_machine(), new_sessions()
        name = snapshot_name(self.manifest.index)
        restore_content(self._store.pieces(self.manifest, self._name), machine, sessions, name)
        return Applier(machine, boundary=self.manifest.boundary, sessions=sessions)

    def complete(self) -> None:
        """Let it count; durable on return. Raises OSError."""
        self._store.adopt(self._name, self.manifest.index)
        self._store.fetching = 0


def _write_durably(folder: Directory, name: str, data: bytes) -> None:
    """A file that has its name only when its bytes are synced; raises as `write_file`."""
    write_file(folder, name + _TMP, data)
    folder.rename(name + _TMP, name)
