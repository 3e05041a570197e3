"""The snapshots in a data directory: writing, reading, retaining, quarantining.

    snapshots/00000000000000042000.new/      being written
    snapshots/00000000000000042000/          whole: manifest, 00000000.chunk, 00000001.chunk, ...; code
    snapshots/00000000000000042000.1.gone/   being removed
    snapshots/00000000000000042000.part/     being fetched from another node (part.py)
    quarantine/snapshot-1-00000000000000042000/      damaged; the program never removes it

The steps, and why they are in this order:

1. Each chunk is written and synced, then the manifest, then the `.new` folder: when it gets its name, it is whole.
2. The folder is renamed and `snapshots/` is synced: from here on the snapshot is valid.
3. A snapshot older than the two newest is renamed to `.gone`, `snapshots/` is synced, and only then is the folder
   emptied. Where an overlay does not rename it, its manifest is renamed to `manifest.gone` instead, which goes last. So
   a folder without a suffix that has its manifest is never partly removed.

A crash leaves `.new` and `.gone` folders, and one with a `manifest.gone`; `open` removes them.

Other programs may remove or truncate files while this one runs. So before anything is deleted because a snapshot
replaces it (segments of the log, or an older snapshot), `check_newest` checks the files of the two newest.
"""

import errno
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from hashlib import sha256
from threading import Lock
from typing import NamedTuple

from crc32c import crc32c

from quire.log import Directory, DiskFull, NotRegularFile, ResourcesExhausted, Tail, Unreadable, is_exhaustion
from quire.log.files import refusing_full

from ..applier import Applier
from ..boundary import LOG_START, Boundary
from ..cursors import Cursors
from ..errors import (
    GIVE_CODE,
    RESTART,
    ApplyFailed,
    RestoreFailed,
    SnapshotDamaged,
    SnapshotForeign,
    StateUnproven,
)
from ..machine import StateMachine
from ..machines.fingerprint import short
from ..sessions.table import Sessions
from .content import restore_content
from .manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, Chunk, Manifest, decode_manifest

SNAPSHOTS_FOLDER = "snapshots"
QUARANTINE_FOLDER = "quarantine"
CODE_NAME = "code"
"""The fingerprint of the code that wrote the snapshot, after its crc32c. Manifests depend on the log alone."""
CHUNK_BYTES = 4 << 20
WRITE_BYTES = 1 << 20
"""Measured on Linux: one write of 4 MiB to a new file takes 3 to 12 times as long as four of 1 MiB."""
KEPT_SNAPSHOTS = 2

NAME_DIGITS = 20
_CRC_BYTES, _CODE_BYTES = 4, 36
_NEW, _GONE = ".new", ".gone"
_RETIRED = MANIFEST_NAME + _GONE
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class Owner(NamedTuple):
    """The cluster and the machine (name, version) whose snapshots a store accepts, and the code that writes them."""

    cluster_id: bytes
    machine: tuple[str, int]
    code: bytes = b""
    """The fingerprint of the machine's code that runs here; empty if it is unknown."""


def snapshot_name(index: int) -> str:
    """The folder name of the snapshot at `index`."""
    return f"{index:0{NAME_DIGITS}d}"


def chunk_name(number: int) -> str:
    """The file name of a chunk."""
    return f"{number:08d}.chunk"


@contextmanager
def _needing_descriptors(name: str) -> Generator[None]:
    """Distinguish a process that can open no more files or folders from a failed device."""
    try:
        yield
    except OSError as error:
        if is_exhaustion(error):
            raise ResourcesExhausted(name, str(error)) from error
        raise


class SnapshotStore:
    """The snapshots of one data directory. All methods block; one caller of each at a time."""

    def __init__(self, directory: Directory, owner: Owner) -> None:
        self.owner = owner
        self.damaged: list[SnapshotDamaged] = []
        """The snapshots quarantined since this store was opened, and why."""
        self._directory = directory
        self._folder = directory.child(SNAPSHOTS_FOLDER)
        self._manifests: dict[int, Manifest] = {}
        self._lock = Lock()
        self.fetching = 0
        """The index of the snapshot that is being fetched, 0 if there is none."""

    @classmethod
    def open(cls, directory: Directory, owner: Owner) -> "SnapshotStore":
        """Read all manifests, quarantine damaged snapshots, remove unfinished ones.

        Raises:
            SnapshotForeign: a snapshot is of another cluster, machine or machine version; nothing was changed.
            UnknownVersion: a snapshot has another format version; nothing was changed.
            OSError: the device failed.
        """
        store = cls(directory, owner)
        directory.sync()
        store._folder.sync()  # After a kill a name may be in memory only; a snapshot must survive a power loss.
        names = store._folder.list()
        for name in sorted(name for name in names if name.isdigit()):
            try:
                store._manifests[int(name)] = store._read_manifest(name)
            except SnapshotDamaged as damage:
                if store._is_retired(name):
                    store.delete_folder(name)
                else:
                    store.quarantine(int(name), damage)
        for name in names:
            if name.endswith((_NEW, _GONE)):
                store.delete_folder(name)
        return store

    @property
    def folder(self) -> Directory:
        """The folder `snapshots/`."""
        return self._folder

    def names(self) -> list[str]:
        """The names in `snapshots/`; if the folder was removed, it is created again. Raises OSError."""
        try:
            return self._folder.list()
        except FileNotFoundError:
            self._directory.list()  # It raises if the whole data directory is gone, which must not be created again.
            self._directory.child(SNAPSHOTS_FOLDER)
            return []

    @property
    def indices(self) -> list[int]:
        """The indices of the whole snapshots, ascending."""
        return sorted(self._manifests)

    @property
    def manifests(self) -> list[Manifest]:
        """The manifests of the whole snapshots, the oldest first."""
        held = self._manifests  # Read once: other threads replace it.
        return [held[index] for index in sorted(held)]

    def members_of(self, members_index: int) -> Mapping[str, object] | None:
        """The fields `members` and `removed` of the record at `members_index`, if it is the last one below some whole
        snapshot; else None.
        """
        boundaries = (manifest.boundary for manifest in self.manifests)
        return next(
            (boundary.members_record for boundary in boundaries if boundary.members_index == members_index), None
        )

    # Writing

    def begin(self, index: int) -> Directory:
        """An empty folder for a new snapshot at `index`.

        Raises:
            DiskFull, OSError: it cannot be created.
        """
        name = snapshot_name(index) + _NEW
        if name in self.names():
            self.delete_folder(name)
        return self._folder.child(name)

    def complete(self, index: int) -> Manifest:
        """Make the snapshot in the folder of `begin` valid; durable on return.

        Raises:
            SnapshotDamaged: its manifest is damaged; it does not become valid.
            DiskFull, ResourcesExhausted: there is no room for the copy of a folder that an overlay does not rename, or
                no descriptor; it is not valid until a later call succeeds.
            OSError: the device failed.
        """
        return self.adopt(snapshot_name(index) + _NEW, index)

    def adopt(self, written: str, index: int) -> Manifest:
        """Make the whole snapshot in the folder `written` valid; raises as `complete`."""
        name = snapshot_name(index)
        with self._lock, _needing_descriptors(name):
            # It has its name already, and no other, if an earlier call found no descriptor for the sync.
            names = self._folder.list()
            is_named = index not in self._manifests and name in names and written not in names
            manifest = self._read_manifest(name if is_named else written)
            if manifest.index != index:
                raise SnapshotDamaged(snapshot=name, reason=f"its manifest has index {manifest.index}")
            if index not in self._manifests:
                if not is_named:
                    if name in names:
                        self._move_aside(name)  # It could not be read.
                    self._rename(written, name)
                self._folder.sync()
            self._manifests = {**self._manifests, index: manifest}  # Replaced, not changed: other threads read it.
        return manifest

    def _rename(self, written: str, name: str) -> None:
        try:
            self._folder.rename(written, name)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            with refusing_full(name):
                self._folder.move(written, self._folder, name)

    def abandon(self, index: int) -> None:
        """Remove the files of an abandoned snapshot."""
        name = snapshot_name(index) + _NEW
        if name in self.names():
            self.delete_folder(name)

    # Keeping

    def retain(self, pinned: Iterable[int] = ()) -> None:
        """Remove all snapshots but the two newest whose files are there, and those at the pinned indices.

        Raises as `check_newest`.
        """
        with self._lock, _needing_descriptors(SNAPSHOTS_FOLDER):
            self._check_newest()
            kept = {*self.indices[-KEPT_SNAPSHOTS:], *pinned}
            for index in [index for index in self._manifests if index not in kept]:
                self.remove(index)

    def check_newest(self) -> None:
        """Quarantine the newest snapshots that lack a file, or have one of another size, until two are whole.

        Raises:
            ResourcesExhausted: a file cannot be opened now; the snapshots may be fine.
            OSError: the device failed.
        """
        with self._lock, _needing_descriptors(SNAPSHOTS_FOLDER):
            self._check_newest()

    def _check_newest(self) -> None:
        """`check_newest`, with the lock held, so that no snapshot is added, renamed or removed meanwhile."""
        whole = 0
        for manifest in reversed(self.manifests):
            if whole == KEPT_SNAPSHOTS:
                return
            if (damage := self._loss(manifest)) is None:
                whole += 1
            else:
                self._quarantine(manifest.index, damage)

    def _loss(self, manifest: Manifest) -> SnapshotDamaged | None:
        """The first file of a snapshot that is missing or has another size than was written."""
        name = snapshot_name(manifest.index)
        sizes = {MANIFEST_NAME: len(manifest.encode())}
        sizes |= {chunk_name(number): chunk.size for number, chunk in enumerate(manifest.chunks)}
        for file_name, size in sizes.items():
            try:
                with closing(self._folder.existing(name).open(file_name)) as file:
                    found = file.size
            except (FileNotFoundError, NotADirectoryError, NotRegularFile):
                return SnapshotDamaged(snapshot=name, reason=f"{file_name} is missing")
            if found != size:
                return SnapshotDamaged(snapshot=name, reason=f"{file_name} has {found} bytes, not {size}")
        return None

    def remove_all(self, indices: Iterable[int]) -> None:
        """Remove the snapshots at these indices."""
        with self._lock:
            for index in indices:
                self.remove(index)

    def remove(self, index: int) -> None:
        """Remove a snapshot; after the first durable step it no longer counts."""
        self._forget(index)
        name, names = snapshot_name(index), self.names()
        if name not in names:  # Another program removed it.
            return
        # A folder of an earlier one stays while another program holds a file in it open.
        gone = next(f"{name}.{n}{_GONE}" for n in range(1, len(names) + 2) if f"{name}.{n}{_GONE}" not in names)
        try:
            self._folder.rename(name, gone)
            self._folder.sync()
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            folder, gone = self._folder.child(name), name
            with suppress(FileNotFoundError):
                folder.rename(MANIFEST_NAME, _RETIRED)
            folder.sync()
        self.delete_folder(gone)

    def _is_retired(self, name: str) -> bool:
        with suppress(FileNotFoundError, NotADirectoryError):
            return _RETIRED in self._folder.existing(name).list()
        return False

    def quarantine(self, index: int, damage: SnapshotDamaged) -> None:
        """Stop counting a damaged snapshot; move its remaining files to the quarantine, which is never emptied.

        One that the device does not give stays: the next start may read it. One that another thread removed or moved
        in the meantime is left alone. Raises OSError.
        """
        with self._lock:
            self._quarantine(index, damage)

    def _quarantine(self, index: int, damage: SnapshotDamaged) -> None:
        name = snapshot_name(index)
        is_there = name in self.names()
        if not is_there and index not in self._manifests:
            return
        self.damaged.append(damage)
        self._forget(index)
        if is_there and not isinstance(damage.__cause__, Unreadable):
            self._move_aside(name)

    def _move_aside(self, name: str) -> None:
        folder = self._directory.child(QUARANTINE_FOLDER)
        self._directory.sync()
        held = set(folder.list())
        number = next(number for number in range(1, len(held) + 2) if f"snapshot-{number}-{name}" not in held)
        self._folder.move(name, folder, f"snapshot-{number}-{name}")
        folder.sync()
        self._folder.sync()

    def _forget(self, index: int) -> None:
        self._manifests = {kept: manifest for kept, manifest in self._manifests.items() if kept != index}

    def delete_folder(self, name: str) -> None:
        """Remove a folder and the files in it."""
        folder = self._folder.child(name)
        for file in sorted(folder.list()):  # A `manifest.gone` is the last one.
            folder.remove(file)
        folder.sync()
        self._folder.remove_child(name)
        self._folder.sync()

    # Reading

    def pieces(self, manifest: Manifest, folder: str = "") -> Iterator[bytes]:
        """The chunks in order, each verified, and at the end the sha256 of all; from `folder` if it is given.

        Raises:
            SnapshotDamaged: a chunk is missing or does not match the manifest.
            OSError: the device failed.
        """
        check = sha256()
        for number in range(len(manifest.chunks)):
            data = self.chunk(manifest, number, folder)
            check.update(data)
            yield data
        if check.digest() != manifest.sha256:
            raise SnapshotDamaged(snapshot=snapshot_name(manifest.index), reason="its sha256 differs")

    def chunk(self, manifest: Manifest, number: int, folder: str = "") -> bytes:
        """Read and verify a chunk; from `folder` if it is given.

        Raises:
            SnapshotDamaged: it is missing or does not match the manifest.
            OSError: the device failed.
        """
        name, chunk = snapshot_name(manifest.index), manifest.chunks[number]
        try:
            with closing(self._folder.existing(folder or name).open(chunk_name(number))) as file:
                data = file.read_at(0, chunk.size + 1)
        except (FileNotFoundError, NotRegularFile):
            raise SnapshotDamaged(snapshot=name, reason=f"{chunk_name(number)} is missing, or no file") from None
        except Unreadable as error:
            raise SnapshotDamaged(snapshot=name, reason=f"{chunk_name(number)}: {error.reason}") from error
        if len(data) != chunk.size or crc32c(data) != chunk.crc32c:
            raise SnapshotDamaged(snapshot=name, reason=f"{chunk_name(number)} fails its crc32c")
        return data

    def restore(
        self,
        manifest: Manifest,
        new_machine: Callable[[], StateMachine],
        new_sessions: Callable[[], Sessions],
        folder: str = "",
    ) -> Applier:
        """An applier at the snapshot's boundary; if the machine's `restore` raises, it has failed and says why.

        Raises as `pieces`.
        """
        machine, sessions, cursors, failure = new_machine(), new_sessions(), Cursors(), None
        try:
            pieces = self.pieces(manifest, folder)
            restore_content(pieces, machine, sessions, cursors, snapshot_name(manifest.index))
        except RestoreFailed as raised:
            (title, version), code = manifest.machine, self._code(folder or snapshot_name(manifest.index))
            wrote = f"{title} version {version} wrote with {f'code {short(code)}' if code else 'unknown code'}"
            text = f"restore of the snapshot there, which {wrote}, raised {raised.reason}"
            do = RESTART if isinstance(raised.__cause__, MemoryError) else GIVE_CODE
            failure = ApplyFailed(index=manifest.index, text=text, do=do)
            machine = new_machine()  # The other one may be half restored.
        applier = Applier(machine, boundary=manifest.boundary, sessions=sessions, cursors=cursors)
        applier.failure = applier.failure or failure
        return applier

    def _code(self, name: str) -> bytes:
        """The fingerprint in a snapshot's folder; empty if it is not known, as that of another node."""
        try:
            with closing(self._folder.existing(name).open(CODE_NAME)) as file:
                raw = file.read_at(0, _CODE_BYTES)
        except OSError:
            return b""
        return raw[_CRC_BYTES:] if raw == _checked(raw[_CRC_BYTES:]) else b""

    def _read_manifest(self, name: str) -> Manifest:
        try:
            with closing(self._folder.existing(name).open(MANIFEST_NAME)) as file:
                raw = file.read_at(0, MAX_MANIFEST_BYTES)
        except (FileNotFoundError, NotADirectoryError, NotRegularFile):
            raise SnapshotDamaged(snapshot=name, reason="its manifest is missing, or no file") from None
        except Unreadable as error:
            raise SnapshotDamaged(snapshot=name, reason=f"its manifest: {error.reason}") from error
        manifest = decode_manifest(raw, name)
        refuse_foreign(manifest, self.owner)
        return manifest


def refuse_foreign(manifest: Manifest, owner: Owner) -> None:
    """Raise SnapshotForeign if the snapshot is of another cluster, machine or machine version."""
    name = snapshot_name(manifest.index)
    if manifest.cluster_id != owner.cluster_id:
        found, expected = manifest.cluster_id.hex(), owner.cluster_id.hex()
        raise SnapshotForeign(snapshot=name, what="cluster", found=found, expected=expected)
    if manifest.machine != owner.machine:
        found, expected = (" version ".join(map(str, machine)) for machine in (manifest.machine, owner.machine))
        raise SnapshotForeign(snapshot=name, what="machine", found=found, expected=expected)


def restore_newest(
    store: SnapshotStore,
    new_machine: Callable[[], StateMachine],
    new_sessions: Callable[[], Sessions],
    joins: Callable[[Tail], bool] = lambda _: True,
) -> Applier:
    """An applier at the boundary of the newest whole snapshot, or at the log's start. Blocks.

    A damaged snapshot is quarantined, one that cannot be read passed over, and the next older one is used, with more of
    the log to apply. So is an older one if the machine does not read the newest, and the log `joins` both: the state is
    then `unproven`. If there is none, the applier is at the newest, and has failed.

    Raises:
        OSError: the device failed.
    """
    unread: Applier | None = None
    for manifest in reversed(store.manifests):
        if unread is not None and not _reaches(unread, manifest.boundary, joins):
            break
        try:
            applier = store.restore(manifest, new_machine, new_sessions)
        except SnapshotDamaged as damage:
            store.quarantine(manifest.index, damage)
            continue
        if unread is not None and applier.failure is None:
            return _unproven(applier, unread)
        # An older one helps neither who lacks memory nor who lacks a feature.
        if unread is None and (applier.failure is None or applier.failure.do != GIVE_CODE):
            return applier
        unread = unread or applier
    if unread is not None and not _reaches(unread, LOG_START, joins):
        return unread
    first = Applier(new_machine(), sessions=new_sessions())
    return first if unread is None else _unproven(first, unread)


def _reaches(unread: Applier, boundary: Boundary, joins: Callable[[Tail], bool]) -> bool:
    """Whether the log reaches from a boundary to that of the snapshot not read."""
    return joins(boundary.tail) and joins(unread.boundary.tail)


def _unproven(applier: Applier, unread: Applier) -> Applier:
    """The applier of an older boundary, whose state counts once it is as good as that of the snapshot not read."""
    failure = unread.failure
    if failure is not None:
        index, text, do = failure.index, failure.text, failure.do
        applier.unproven = StateUnproven(
            index=index, text=text, do=do, digest=unread.digest, from_index=applier.applied_index
        )
    return applier


def write_snapshot(
    folder: Directory,
    owner: Owner,
    boundary: Boundary,
    content: Iterable[bytes],
    *,
    chunk_bytes: int = CHUNK_BYTES,
    before_chunk: Callable[[], None] = lambda: None,
) -> Manifest:
    """Write the content as chunks, then the manifest; all durable on return, but the folder still has to be renamed.

    `before_chunk` is called before each chunk; it may raise to stop.

    Raises:
        DiskFull: no space; the folder holds a part.
        OSError: the device failed.
    """
    check, chunks = sha256(), list[Chunk]()
    for data in _in_chunks(content, chunk_bytes):
        before_chunk()
        check.update(data)
        write_file(folder, chunk_name(len(chunks)), data)
        chunks.append(Chunk(len(data), crc32c(data)))
    if owner.code:
        write_file(folder, CODE_NAME, _checked(owner.code))
    manifest = Manifest(owner.cluster_id, owner.machine, boundary, tuple(chunks), check.digest())
    write_file(folder, MANIFEST_NAME, manifest.encode())
    folder.sync()
    return manifest


def _checked(code: bytes) -> bytes:
    """The content of a snapshot's file of its code."""
    return crc32c(code).to_bytes(_CRC_BYTES, "little") + code


def write_file(folder: Directory, name: str, data: bytes) -> None:
    """Create a file with this content and sync it.

    Raises:
        DiskFull: no space.
        OSError: the device failed.
    """
    whole = memoryview(data)
    with closing(folder.create(name)) as file:
        try:
            file.allocate(len(data))
            for start in range(0, len(data), WRITE_BYTES):
                file.write_at(start, whole[start : start + WRITE_BYTES])
            file.sync()
        except OSError as error:
            if error.errno in _FULL:  # Some file systems accept the allocation and then have no space.
                raise DiskFull(name, len(data)) from error
            raise


def _in_chunks(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    """The same bytes in chunks of `size`, the last one shorter; no chunk if there are no bytes."""
    buffer = bytearray()
    for piece in pieces:
        buffer += piece
        while len(buffer) >= size:
            yield bytes(buffer[:size])
            del buffer[:size]
    if buffer:
        yield bytes(buffer)
