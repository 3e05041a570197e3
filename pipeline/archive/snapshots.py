"""The snapshots of a data_dir or an archive: read without changing them, and copied from one to the other."""

from __future__ import annotations

import os
from contextlib import closing
from typing import NamedTuple

from quire.log import FileDirectory, NotRegularFile, ReadOnlyDirectory
from quire.sm import Manifest, Owner, SnapshotDamaged, SnapshotStore, write_file
from quire.sm.snapshots.manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, decode_manifest
from quire.sm.snapshots.store import SNAPSHOTS_FOLDER, chunk_name

from .manifest import OWN_FOLDER, is_archive

GENESIS_FILE = "genesis"
MAX_GENESIS_BYTES = 1 << 20
"""As in quire.cluster.data_dir, which takes long to import."""


class StoredSnapshot(NamedTuple):
    """A snapshot, and the data_dir or archive that holds it."""

    path: str
    manifest: Manifest


class StoredSnapshots(NamedTuple):
    """The snapshots of a data_dir or an archive, by their manifests."""

    manifests: list[Manifest]
    """The manifests that are intact, oldest first."""
    damaged: list[SnapshotDamaged]


def snapshot_root(path: str) -> str:
    """The folder with `snapshots/`: a data_dir itself, or an archive's own folder."""
    return os.path.join(path, OWN_FOLDER) if is_archive(path) else path


def stored_snapshots(path: str) -> StoredSnapshots:
    """The snapshots in a data_dir or an archive. Only manifests are checked, not chunks."""
    top, found = snapshot_root(path), StoredSnapshots([], [])
    if not os.path.isdir(os.path.join(top, SNAPSHOTS_FOLDER)):
        return found
    folder = ReadOnlyDirectory(os.path.join(top, SNAPSHOTS_FOLDER))
    for name in sorted(name for name in folder.list() if name.isdigit()):
        try:
            with closing(folder.child(name).open(MANIFEST_NAME)) as file:
                found.manifests.append(decode_manifest(file.read_at(0, MAX_MANIFEST_BYTES), name))
        except FileNotFoundError:
            continue  # The node has removed it in the meantime.
        except SnapshotDamaged as error:
            found.damaged.append(error)
        except (NotADirectoryError, NotRegularFile):
            found.damaged.append(SnapshotDamaged(snapshot=name, reason="it has no manifest that is a file"))
    return found


def reading_store(path: str, manifest: Manifest) -> SnapshotStore:
    """The store to read a snapshot's chunks from."""
    return SnapshotStore(ReadOnlyDirectory(snapshot_root(path)), Owner(manifest.cluster_id, manifest.machine))


def copy_genesis(data_dir: str, archive: str) -> None:
    """Copy the genesis file, which outlives the log's first frame, to an archive that lacks it; durable on return."""
    source, folder = os.path.join(data_dir, GENESIS_FILE), FileDirectory(os.path.join(archive, OWN_FOLDER))
    if GENESIS_FILE in folder.list() or not os.path.isfile(source):
        return
    new = f"{GENESIS_FILE}.new"
    if new in folder.list():
        folder.remove(new)
    with closing(ReadOnlyDirectory(data_dir).open(GENESIS_FILE)) as file:
        write_file(folder, new, file.read_at(0, MAX_GENESIS_BYTES))
    folder.rename(new, GENESIS_FILE)
    folder.sync()


def copy_snapshots(data_dir: str, archive: str, to_index: int) -> list[int]:
    """Copy the snapshots at or below an index to an archive; return the indices of those that were copied.

    Raises:
        SnapshotForeign: they are of another machine than those in the archive.
        DiskFull, OSError: the disk is full, or the file system failed.
    """
    copied: list[int] = []
    for manifest in stored_snapshots(data_dir).manifests:  # The node itself handles damaged ones.
        if manifest.index > to_index:
            continue
        owner = Owner(manifest.cluster_id, manifest.machine)
        kept = SnapshotStore.open(FileDirectory(os.path.join(archive, OWN_FOLDER)), owner)
        if manifest.index in kept.indices:
            continue
        source, folder = reading_store(data_dir, manifest), kept.begin(manifest.index)
        try:
            for number in range(len(manifest.chunks)):
                write_file(folder, chunk_name(number), source.chunk(manifest, number))
        except SnapshotDamaged:
            kept.abandon(manifest.index)  # The node has removed it, or it is damaged, which the node reports itself.
            continue
        write_file(folder, MANIFEST_NAME, manifest.encode())
        folder.sync()
        kept.complete(manifest.index)
        copied.append(manifest.index)
    return copied
