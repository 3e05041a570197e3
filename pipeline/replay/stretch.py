"""One stretch of a log, replayed: from a snapshot or the start of the log to the next snapshot or the log's end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from typing import NamedTuple

from quire.log import HEADER_BYTES, Frame
from quire.log.json_text import to_json
from quire.log.packing import Skimmer
from quire.sm import Applier, Refused, StateMachine, snapshot_name

from ..archive.snapshots import StoredSnapshot, reading_store
from ..origin.origin import Origin
from ..source.options import SourceOptions
from ..source.reading import LogPartition, origin_of
from .difference import Difference, first_difference
from .genesis import Genesis


class RecordedDigest(NamedTuple):
    """The digest at an index, as recorded by a snapshot or a node."""

    index: int  # type: ignore[assignment]
    digest: str
    source: str
    sha256: str = ""
    """Of a snapshot's content; empty for a node."""
    state: bytes | None = None
    """The machine's whole state as JSON, if a node returned it."""


class ReplayPiece(NamedTuple):
    """A stretch to replay, with its start and what to compare it with."""

    options: SourceOptions
    partitions: list[LogPartition]
    from_index: int
    to_index: int
    genesis: Genesis
    machine_spec: str | None
    start: StoredSnapshot | None
    """The snapshot to start from; None: the start of the log."""
    end: StoredSnapshot | None
    """The snapshot that the replay must arrive at."""
    digests: list[RecordedDigest]
    """Of indices in (from_index, to_index], ascending."""


class Replayed(NamedTuple):
    """The result of one stretch."""

    from_index: int
    to_index: int
    records: int
    digest: str
    seconds: float
    equal: dict[str, int]
    """What was compared and is equal, and at which index: a node by its address, a snapshot by its name."""
    differences: list[Difference]
    """What was compared and differs, in the log's order."""


def replay_stretch(piece: ReplayPiece) -> Replayed:
    """Apply all frames of a stretch, and compare with every recorded digest, even after one differs.

    Raises:
        SnapshotDamaged, RestoreFailed: the snapshot to start from is damaged, or the machine does not read it.
        ApplyFailed: the machine failed at an index.
        MachineDiffers, MachineUnknown: the cluster's machine is not available here.
        FrameCorrupt, RecordsLost, ArchiveDamaged: from the log.
    """
    began = time.monotonic()
    applier = begun(piece)
    waiting = list(reversed(piece.digests))
    records = 0
    equal: dict[str, int] = {}
    differences: list[Difference] = []
    for frame in frames_of_piece(piece):
        applier.apply(frame)
        records += frame.header.count
        while waiting and waiting[-1].index <= applier.applied_index:
            expected = waiting.pop()
            difference = _compare(piece, applier, expected)
            if difference is None:
                equal[expected.source] = expected.index
            else:
                differences.append(difference)
    return Replayed(
        piece.from_index,
        piece.to_index,
        records,
        applier.digest.hex(),
        time.monotonic() - began,
        equal,
        differences,
    )


def restored(piece: ReplayPiece, snapshot: StoredSnapshot) -> Applier:
    """An applier at a snapshot. Raises SnapshotDamaged, RestoreFailed."""
    manifest = snapshot.manifest
    machine, sessions = piece.genesis.new_machine(piece.machine_spec), piece.genesis.new_sessions()
    pieces = reading_store(snapshot.path, manifest).pieces(manifest)
    return Applier.restored(pieces, manifest.boundary, machine, sessions, snapshot_name(manifest.index))


def begun(piece: ReplayPiece) -> Applier:
    """An applier at the start of a stretch. Raises as `restored`."""
    if piece.start is None:
        machine = piece.genesis.new_machine(piece.machine_spec)
        return Applier(machine, sessions=piece.genesis.new_sessions())
    return restored(piece, piece.start)


def frames_of_piece(piece: ReplayPiece) -> Iterator[Frame]:
    """The verified frames of a stretch, in order."""
    skimmer = Skimmer()
    for partition in piece.partitions:
        with closing(origin_of(piece.options, partition)) as origin:
            yield from _frames(origin, partition, skimmer)


def _frames(origin: Origin, partition: LogPartition, skimmer: Skimmer) -> Iterator[Frame]:
    for rows in origin.rows(partition.stretch, skimmer):
        for header, offset in rows.frames:
            if partition.stretch.from_index <= header.index < partition.stretch.to_index:
                body = offset + HEADER_BYTES
                yield Frame(header, bytes(rows.raw[body : body + header.length]))


def _compare(piece: ReplayPiece, applier: Applier, expected: RecordedDigest) -> Difference | None:
    """What differs from a recorded digest at its index; None if nothing does."""
    found = applier.digest.hex()
    if applier.applied_index != expected.index:
        reason = f"index {expected.index} is not a frame boundary here: a frame ends at {applier.applied_index}"
        return Difference(expected.index, expected.source, found, expected.digest, reason)
    if found != expected.digest:
        difference = Difference(expected.index, expected.source, found, expected.digest, "the digests differ")
        if piece.end is None or _place_of(piece.end) != (expected.index, expected.digest):
            return difference  # The snapshot's replies belong to its own digest only.
        recorded = restored(piece, piece.end)
        return first_difference(difference, applier.sessions, recorded.sessions, frames_of_piece(piece))
    if expected.sha256:
        check = sha256()
        for chunk in applier.content():
            check.update(chunk)
        if check.hexdigest() != expected.sha256:
            reason = f"every result is equal, but the state differs: its sha256 is {check.hexdigest()}, "
            reason += f"the snapshot's {expected.sha256}"
            return Difference(expected.index, expected.source, found, expected.digest, reason)
    if expected.state is not None:
        state = _state_text(applier.machine)
        if state != expected.state:
            reason = f"every result is equal, but the answer differs: {state[:200]!r}, not {expected.state[:200]!r}"
            return Difference(expected.index, expected.source, found, expected.digest, reason)
    return None


def _place_of(snapshot: StoredSnapshot) -> tuple[int, str]:
    return snapshot.manifest.index, snapshot.manifest.boundary.digest.hex()


def _state_text(machine: StateMachine) -> bytes:
    """The whole state as JSON; or the machine's refusal, as when the state is too large."""
    try:
        return to_json(machine.query(None))
    except Refused as refusal:
        return f"{refusal.code}: {refusal.text}".encode()
