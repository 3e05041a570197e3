"""Verifying a backup: every crc and the chain, and with a replay the digests that the nodes reported."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from quire.log import Tail, walk_frames, walk_headers
from quire.sm import Applier, ApplyFailed, MachineError, SnapshotDamaged, StateMachine
from quire.sm.errors import reason_of

from .contents import Contents
from .manifest import MANIFESTS, BackupInvalid, BackupRefused, Manifest, SnapshotRow
from .store import Store

Progress = Callable[[int], None]


class Verified(NamedTuple):
    """What was checked."""

    manifests: int
    files: int
    size: int


class Verification:
    """Checks manifests and the files that they name, each file once. Blocks; memory holds one file."""

    def __init__(self, store: Store, progress: Progress) -> None:
        self._store = store
        self._progress = progress
        self._seen = set[str]()
        self._joined = set[tuple[str, int]]()
        self._bytes = 0

    def check(self, manifests: Sequence[Manifest]) -> Verified:
        """Check all files.

        Raises:
            BackupInvalid: the first one that is missing, damaged, or does not join the others.
            StoreFailed: the store failed.
        """
        checked = 0
        for manifest in manifests:
            try:
                self._check(Contents(self._store, manifest))
            except BackupInvalid:
                if manifest.key in self._store.list(MANIFESTS):
                    raise
                continue  # A backup that goes on has thinned it meanwhile, and deleted what only it named.
            checked += 1
        return Verified(checked, len(self._seen), self._bytes)

    def _check(self, contents: Contents) -> None:
        manifest = contents.manifest
        _ = contents.genesis
        for row in manifest.snapshots:
            if row.folder not in self._seen:
                for data in contents.chunks(row):
                    self._count(len(data))
                self._seen.add(row.folder)
        boundaries = {row.index: contents.snapshot(row)[1].boundary.tail for row in manifest.snapshots}
        for piece in manifest.pieces:
            within = {index: tail for index, tail in boundaries.items() if piece.from_index <= index <= piece.to_index}
            joins = {(piece.file, index) for index in within}
            if piece.file in self._seen and joins <= self._joined:
                continue
            raw = contents.piece(piece)
            if not piece.from_index and not raw.startswith(manifest.genesis):
                raise BackupInvalid(f"{piece.file} does not begin with the genesis of {manifest.key}")
            if piece.file not in self._seen:
                self._count(len(raw))
            _check_joins(piece.file, raw, piece.chain_first, within)
            self._seen.add(piece.file)
            self._joined |= joins

    def _count(self, size: int) -> None:
        self._bytes += size
        self._progress(size)


def _check_joins(file: str, raw: bytes, chain_first: int, boundaries: dict[int, Tail]) -> None:
    """Check that snapshots were taken at boundaries of these frames. Raises BackupInvalid."""
    left = dict(boundaries)
    for _, header in walk_headers(raw):
        if (tail := left.get(header.index)) is not None and tail.crc32c == (chain_first if header.index else 0):
            del left[header.index]
        if (tail := left.get(header.next_index)) is not None and tail == header.tail:
            del left[header.next_index]
        chain_first = header.crc32c
    if left:
        raise BackupInvalid(f"the snapshot at index {min(left)} does not join the frames of {file}")


def replay(
    store: Store, manifests: Sequence[Manifest], machine: type[StateMachine], progress: Progress
) -> tuple[int, Applier]:
    """Apply everything again; return how many reported digests were confirmed, and the applier at the end. Blocks.

    From the first record that can be restored to the last one. The digest of every snapshot, and every digest that a
    node had reported for a manifest, is compared on the way. Before that the machine reads the newest snapshot, as a
    node does at its start.

    Raises:
        BackupInvalid: a digest differs, or a file is damaged.
        BackupRefused: the machine is another one, does not read a snapshot, or failed.
        StoreFailed: the store failed.
    """
    if rows := manifests[-1].snapshots:
        applier_of(Contents(store, manifests[-1]), rows[-1], machine)
    expected, applier = _Expected({manifest.applied for manifest in manifests}), None
    while (contents := _next(store, manifests, applier)) is not None:
        if applier is None or contents.manifest.base > applier.applied_index:
            rows = contents.manifest.snapshots
            applier = applier_of(contents, rows[0] if contents.manifest.base else None, machine)
        _apply(contents, applier, expected, progress)
    if applier is None:
        raise BackupRefused(f"{store.name} has nothing to replay")
    return expected.confirmed, applier


def _next(store: Store, manifests: Sequence[Manifest], applier: Applier | None) -> Contents | None:
    """What to apply next: a manifest that continues from the applier and reaches furthest, or one after a gap."""
    index = -1 if applier is None else applier.applied_index
    on = [manifest for manifest in manifests if manifest.base <= index < manifest.end.index]
    if on:
        return Contents(store, max(on, key=lambda manifest: manifest.end.index))
    later = [manifest for manifest in manifests if manifest.base > index]
    return Contents(store, min(later, key=lambda each: (each.base, -each.end.index))) if later else None


class _Expected:
    """Digests by index, and how many of the reported ones were met."""

    def __init__(self, reported: set[tuple[int, str]]) -> None:
        self._reported = dict(reported)
        self.confirmed = 0

    def compare(self, applier: Applier, in_snapshots: dict[int, str]) -> None:
        """Raises BackupInvalid."""
        index = applier.applied_index
        for what, digests in (("a node reported", self._reported), ("a snapshot has", in_snapshots)):
            if (digest := digests.get(index)) is not None and digest != applier.digest.hex():
                ours = applier.digest.hex()
                raise BackupInvalid(f"the replay has the digest {ours} at index {index}, and {what} {digest}")
        self.confirmed += index in self._reported


def applier_of(contents: Contents, row: SnapshotRow | None, machine: type[StateMachine]) -> Applier:
    """An applier at a snapshot, or at the beginning of the log. Blocks.

    Raises:
        BackupRefused: the machine is another one, or cannot read the snapshot.
        BackupInvalid: the snapshot is damaged.
    """
    manifest, genesis = contents.manifest, contents.genesis
    if (machine.name, machine.version) != manifest.machine:
        has, ours = (" version ".join(map(str, each)) for each in (manifest.machine, (machine.name, machine.version)))
        raise BackupRefused(f"the backup is of the machine {has}, and this is {ours}; give its own by --machine")
    try:
        new = genesis.new_machine(machine)
    except MachineError:
        raise
    except Exception as error:
        raise BackupRefused(f"{machine.__name__} does not take the initial value: {reason_of(error)}") from error
    sessions = genesis.new_sessions()
    if row is None:
        return Applier(new, sessions=sessions)
    try:
        boundary = contents.snapshot(row)[1].boundary
        applier = Applier.restored(contents.chunks(row), boundary, new, sessions, row.folder)
    except SnapshotDamaged as error:
        raise BackupInvalid(str(error)) from error
    except MachineError as error:
        raise BackupRefused(str(error)) from error
    if applier.failure is not None:
        raise BackupRefused(str(applier.failure))
    return applier


def _apply(contents: Contents, applier: Applier, expected: _Expected, progress: Progress) -> None:
    """Apply the frames of a manifest that are still to be applied."""
    manifest = contents.manifest
    in_snapshots = {row.index: contents.snapshot(row)[1].boundary.digest.hex() for row in manifest.snapshots}
    for raw in contents.frames(applier.applied_index, manifest.end.index):
        for frame in walk_frames(raw):
            try:
                applier.apply(frame)
            except ApplyFailed as error:
                raise BackupRefused(f"{error}; the digests below that index agree") from error
            expected.compare(applier, in_snapshots)
        progress(len(raw))
