"""Restoring a data directory: a node with a backup's records, the only voter of a new history (`cluster/DESIGN.md`).

    marker -> genesis -> snapshot -> log: reset to the snapshot, then the frames -> features, history
        -> promise of a new disk -> witnesses of it -> identity -> marker removed

The marker is the file `restoring`, which holds the plan. While it is there, no node starts and nothing is recovered:
the directory is neither an unformatted one nor that of a voter that lost its identity. Each step may be repeated, and
the next run continues where the last one stopped: at the chunk of the snapshot, and at the end of the log.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from quire.log import (
    FEATURES,
    ChainBroken,
    Directory,
    FrameInvalid,
    Log,
    LogOptions,
    PayloadInvalid,
    Tail,
    UnknownVersion,
    decode_system,
)
from quire.replication import Members
from quire.sm import Owner, SnapshotDamaged, SnapshotForeign, SnapshotPart, SnapshotStore
from quire.sm.snapshots.manifest import Manifest, decode_manifest
from quire.sm.snapshots.store import snapshot_name

from .genesis import Genesis, read_genesis, write_genesis_file
from .identity import DataDirRefused, NodeIdentity, write_identity, write_whole_file
from .new_history import (
    EPOCH_STEP,
    NewHistory,
    append_frames,
    decode_plan,
    encode_plan,
    open_log,
    read_plan_file,
    replace_disk,
)
from .survivor import RESTORING_FILE
from .volume import note_volume
from .witnessed import check_epoch

PLAN_VERSION = 1
FLUSH_BYTES = 64 << 20
EMPTIED = "empty the directory, and restore anew"
FOREIGN = frozenset({RESTORING_FILE, f"{RESTORING_FILE}.tmp", "lock", "lost+found"})
"""What a directory may hold in which nothing was restored yet."""


class Restorable(Protocol):
    """What is restored. Nothing of it is believed before it is checked."""

    genesis: bytes
    """The genesis frame."""
    snapshot: bytes | None
    """The manifest of the snapshot to begin from; None: the frames begin at index 0."""

    def chunks(self, first: int) -> Iterator[bytes]:
        """The snapshot's chunks from this number on."""
        ...

    def frames(self, from_index: int) -> Iterator[bytes]:
        """Whole frames from this boundary up to the plan's end, in pieces of any size."""
        ...


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """A restore: of what, up to which frame, and what the directory becomes."""

    source: str
    """Names the backup, so that only the same one continues a restore."""
    node_id: str
    address: str
    name: str
    """Of the cluster, from now on."""
    end: Tail
    """The end of the last frame that is restored."""
    former_history: bytes
    greatest_epoch: int
    """Of the whole backup."""
    history: bytes
    disk_id: bytes

    @property
    def begun(self) -> NewHistory:
        """The history that begins after the restored records."""
        epoch = max(self.greatest_epoch, self.end.epoch) + EPOCH_STEP
        return NewHistory(self.node_id, self.address, self.name, self.former_history, self.history, self.disk_id, epoch)

    def to_bytes(self) -> bytes:
        """The marker's content: crc32c of the rest, and a msgpack map."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return encode_plan({"version": PLAN_VERSION} | fields | {"end": list(self.end)})

    @classmethod
    def from_bytes(cls, raw: bytes) -> "RestorePlan":
        """Decode the marker's content. Raises ValueError: it is damaged, or of another version."""
        match decode_plan(raw):
            case {
                "version": 1,
                "source": str(source),
                "node_id": str(node_id),
                "address": str(address),
                "name": str(name),
                "end": [int(index), int(epoch), int(timestamp), int(crc)],
                "former_history": bytes(former),
                "greatest_epoch": int(greatest),
                "history": bytes(history),
                "disk_id": bytes(disk_id),
            }:
                end = Tail(index, epoch, timestamp, crc)
                return cls(source, node_id, address, name, end, former, greatest, history, disk_id)
            case _:
                raise ValueError("it is of another version")


def read_restore_plan(directory: Directory) -> RestorePlan | None:
    """The plan of an unfinished restore; None if there is none.

    Raises:
        DataDirRefused: it is damaged.
    """
    return read_plan_file(directory, RESTORING_FILE, RestorePlan.from_bytes, EMPTIED)


def check_unused(directory: Directory) -> None:
    """Check that a directory is empty, or holds what an interrupted restore left.

    Raises:
        DataDirRefused: it holds something else.
    """
    names = set(directory.list())
    if RESTORING_FILE not in names and (held := sorted(names - FOREIGN)):
        reason = f"it is not empty: it holds {', '.join(held[:3])}; restore into an empty directory"
        raise DataDirRefused(directory.path, reason)


def restore(
    directory: Directory,
    plan: RestorePlan,
    restorable: Restorable,
    options: LogOptions,
    progress: Callable[[int], None] = lambda _: None,
    volume: Path | None = None,
) -> None:
    """Carry out a plan, or what an interrupted run left of it. The caller holds the lock. Blocks; durable on return.

    Memory holds one chunk or piece. `volume` is the directory's path if it may be a mount point.

    Raises:
        DataDirRefused: the directory is in use or has the marker of another plan, or what is restored is damaged, of
            different clusters, or does not end as planned.
        GenesisInvalid: the genesis is none; nothing was written.
        LogError, OSError: the device failed, or is full; run it again.
    """
    path = directory.path
    check_unused(directory)
    check_epoch(path, "the restore", plan.begun.epoch)
    genesis = read_genesis(restorable.genesis)
    begun = read_restore_plan(directory)
    if begun is None:
        write_whole_file(directory, RESTORING_FILE, plan.to_bytes())
    elif begun != plan:
        # A second history or disk would begin in files of the first.
        interrupted = f"a restore of {begun.source} up to index {begun.end.index} was interrupted here"
        raise DataDirRefused(path, f"{interrupted}; run that command again, or {EMPTIED}")
    write_genesis_file(directory, restorable.genesis)
    boundary = None
    try:
        if restorable.snapshot is not None:
            boundary = _put_snapshot(directory, genesis, restorable.snapshot, restorable, progress)
        members = _put_frames(directory, plan, genesis, restorable, boundary, options, progress)
    except (SnapshotDamaged, SnapshotForeign, ChainBroken, FrameInvalid, UnknownVersion) as error:
        raise DataDirRefused(path, f"what is restored is damaged: {error}; restore another manifest") from error
    frames = plan.begun.frames(plan.end, members, FEATURES, 0)
    append_frames(directory, plan.end.index, frames, genesis.cluster_id, options)
    replace_disk(directory, plan.node_id, plan.disk_id, plan.begun.epoch)
    me = (genesis.cluster_id, plan.node_id, plan.disk_id, genesis.machine, genesis.initial)
    write_identity(directory, NodeIdentity(*me, history=plan.history))
    if volume is not None:
        note_volume(volume)
    directory.remove(RESTORING_FILE)
    directory.sync()


def _put_snapshot(
    directory: Directory, genesis: Genesis, raw: bytes, restorable: Restorable, progress: Callable[[int], None]
) -> Manifest:
    """Write the snapshot, or what is missing of it. Raises SnapshotDamaged, SnapshotForeign."""
    store = SnapshotStore.open(directory, Owner(genesis.cluster_id, genesis.machine))
    manifest = decode_manifest(raw, "of the backup")
    if manifest.index in store.indices:
        return manifest
    part = SnapshotPart.begin(store, raw)
    missing = part.missing()
    if missing:
        for number, data in enumerate(restorable.chunks(missing[0]), missing[0]):
            if number in missing:
                part.put(number, data)
            progress(len(data))
    if part.missing():
        raise SnapshotDamaged(snapshot=snapshot_name(manifest.index), reason="it lacks chunks")
    part.sync()
    part.complete()
    return manifest


def _put_frames(
    directory: Directory,
    plan: RestorePlan,
    genesis: Genesis,
    restorable: Restorable,
    snapshot: Manifest | None,
    options: LogOptions,
    progress: Callable[[int], None],
) -> Members:
    """Append the frames that the log lacks; return the members at the end. Durable on return.

    Raises:
        ChainBroken, FrameInvalid, UnknownVersion: the frames are damaged, or do not join.
        DataDirRefused: they do not end as planned.
    """
    with closing(open_log(directory, genesis.cluster_id, options)) as log:
        if snapshot is not None:
            log.reset(snapshot.boundary.tail, members_index=snapshot.boundary.members_index)
        if log.tail.index > plan.end.index:  # An earlier run began the new history.
            log.truncate(plan.end.index)
        if log.tail.index < plan.end.index:
            unflushed = 0
            for raw in restorable.frames(log.tail.index):
                log.append_frames(raw)
                progress(len(raw))
                unflushed += len(raw)
                if unflushed >= FLUSH_BYTES:
                    log.flush()
                    unflushed = 0
        if log.tail != plan.end:
            ends = f"what is restored ends at index {log.tail.index} of epoch {log.tail.epoch}, not as planned"
            raise DataDirRefused(directory.path, f"{ends}; {EMPTIED}")
        log.mark.commit_index = plan.end.index  # Also if an earlier run appended the frames, and not the mark.
        log.flush()
        if log.bounds.lowest_index == 0 and log.read_frames(0, 1)[0] != restorable.genesis:
            raise DataDirRefused(directory.path, f"the first frame is not the genesis of the backup; {EMPTIED}")
        return _members(directory.path, log, snapshot)


def _members(path: str, log: Log, snapshot: Manifest | None) -> Members:
    """The members at the end of the log."""
    index = log.members_index
    try:
        if index is not None and index >= log.bounds.lowest_index:
            return Members.from_record(decode_system(log.reader.frame(index).payload))
        if snapshot is not None and snapshot.boundary.members_index is not None:
            return Members.from_record(snapshot.boundary.members_record)
    except (PayloadInvalid, ValueError) as error:
        raise DataDirRefused(path, f"what is restored names no possible members: {error}; {EMPTIED}") from error
    raise DataDirRefused(path, f"neither the frames nor a snapshot name the members; {EMPTIED}")
