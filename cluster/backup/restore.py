"""What is restored from a backup: from which snapshot, up to which frame, as whose node."""

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from quire.log import FEATURES, Tail
from quire.replication.core.members import DISK_ID_BYTES

from ..data_dir.genesis import CLUSTER_ID_BYTES
from ..data_dir.restoration import RestorePlan
from .contents import Contents, Point
from .manifest import BackupRefused, Manifest, SnapshotRow
from .store import Store


class Restored:
    """The content of a backup up to a frame boundary; implements `Restorable` of `data_dir/restoration.py`. Blocks."""

    def __init__(self, contents: Contents, end: Tail) -> None:
        self._contents = contents
        self._end = end
        rows = [row for row in contents.manifest.snapshots if row.index <= end.index]
        self._row: SnapshotRow | None = rows[-1] if rows else None
        self.genesis = contents.manifest.genesis
        self.snapshot = None if self._row is None else contents.snapshot(self._row)[0]

    @property
    def snapshot_index(self) -> int:
        """Where the frames begin that are applied after the snapshot; 0 without one."""
        return 0 if self._row is None else self._row.index

    @property
    def size(self) -> int:
        """The bytes that are read, at most."""
        pieces = self._contents.manifest.pieces
        within = [
            piece for piece in pieces if self.snapshot_index < piece.to_index and piece.from_index < self._end.index
        ]
        return sum(piece.size for piece in within) + (0 if self._row is None else self._row.size)

    def chunks(self, first: int) -> Iterator[bytes]:
        """The snapshot's chunks from this number on."""
        return iter(()) if self._row is None else self._contents.chunks(self._row, first)

    def frames(self, from_index: int) -> Iterator[bytes]:
        """The frames from a boundary on, up to the end."""
        return self._contents.frames(from_index, self._end.index)


class Wanted(NamedTuple):
    """What an operator gave: None is the default of each."""

    point: Point | None = None
    node_id: str | None = None
    address: str | None = None
    name: str | None = None


def plan_of(contents: Contents, wanted: Wanted) -> RestorePlan:
    """The plan to restore a manifest up to a point, in a new history. Blocks.

    The node is the first voter of the backup unless another is wanted; address and name are those of the backup.

    Raises:
        BackupRefused: the address is not known, or a later quire wrote the backup.
        BackupInvalid, StoreFailed: as `Contents`.
    """
    manifest, end = contents.manifest, contents.end_at(wanted.point)
    if unknown := sorted(set(manifest.features) - FEATURES):
        raise BackupRefused(f"the backup uses {', '.join(unknown)}, which this version does not know: upgrade quire")
    voters = sorted(node for node, _, role in manifest.members if role == "voter")
    node = wanted.node_id or voters[0]
    address = wanted.address or {member: where for member, where, _ in manifest.members}.get(node)
    if not address:
        raise BackupRefused(f"the backup has no address of {node}; give --address HOST:PORT")
    return RestorePlan(
        source=_source_of(manifest),
        node_id=node,
        address=address,
        name=manifest.name if wanted.name is None else wanted.name,
        end=end,
        former_history=bytes.fromhex(manifest.history_at(end.index)),
        greatest_epoch=manifest.end.epoch,
        history=os.urandom(CLUSTER_ID_BYTES),
        disk_id=os.urandom(DISK_ID_BYTES),
    )


def continued(plan: RestorePlan, store: Store, manifests: Sequence[Manifest], wanted: Wanted) -> Contents:
    """The contents from which an interrupted restore is finished. Blocks.

    Raises:
        BackupRefused: it was of another backup, its manifest is gone, or something else is wanted now.
    """
    advice = "empty the directory, and restore anew"
    cluster = plan.source.rpartition("/")[0]
    covering = [
        manifest
        for manifest in manifests
        if _source_of(manifest).rpartition("/")[0] == cluster and manifest.base <= plan.end.index <= manifest.end.index
    ]
    # The one that it began from, or another that has the same frames: a backup that goes on thins its manifests.
    covering.sort(key=lambda manifest: _source_of(manifest) == plan.source)
    found = next((each for each in reversed(covering) if _ends(store, each, plan.end)), None)
    if found is None:
        raise BackupRefused(
            f"a restore of {plan.source} was interrupted here, which {store.name} does not have; {advice}"
        )
    contents = Contents(store, found)
    same = (
        wanted.point is None or contents.end_at(wanted.point) == plan.end,
        wanted.node_id in (None, plan.node_id),
        wanted.address in (None, plan.address),
        wanted.name in (None, plan.name),
    )
    if not all(same):
        what = f"up to index {plan.end.index}, as {plan.node_id} at {plan.address}"
        raise BackupRefused(f"a restore {what} was interrupted here; run that command again, or {advice}")
    return contents


def _ends(store: Store, manifest: Manifest, end: Tail) -> bool:
    """Whether a manifest has this very frame boundary."""
    return Contents(store, manifest).end_at(Point(index=end.index)) == end


def _source_of(manifest: Manifest) -> str:
    return f"{manifest.cluster_id}/{manifest.history}/{manifest.number}"
