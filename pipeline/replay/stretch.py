"""One stretch of a log, applied again: from a snapshot, or the log's beginning, up to the next snapshot or an end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from typing import NamedTuple

from quire.log import HEADER_BYTES, Frame
from quire.log.json_text import to_json
from quire.log.packing import Skimmer
from quire.sm import Applier, Refused, Sessions, StateMachine, restore_content, snapshot_name

from ..archive.snapshots import StoredSnapshot, reading_store
from ..origin.origin import Origin
from ..source.options import SourceOptions
from ..source.reading import LogPartition, origin_of
from .difference import Difference, first_difference
from .genesis import Genesis


class RecordedDigest(NamedTuple):
    """Somebody's word for what the digest is at an index."""

    index: int  # type: ignore[assignment]
    digest: str
    source: str
    sha256: str = ""
    """Of a snapshot's content; empty where only the digest is known."""
    state: bytes | None = None
    """The machine's whole state as JSON, where that is known."""


class ReplayPiece(NamedTuple):
    """A stretch, and what it begins and ends with."""

    options: SourceOptions
    partitions: list[LogPartition]
    from_index: int
    to_index: int
    genesis: Genesis
    machine_spec: str | None
    start: StoredSnapshot | None
    """The snapshot to begin from; None: the log's beginning."""
    end: StoredSnapshot | None
    """The one that it must come to."""
    witnesses: list[RecordedDigest]
    """Of indices in (from_index, to_index], ascending."""


class Replayed(NamedTuple):
    """What came of a stretch."""

    from_index: int
    to_index: int
    records: int
    digest: str
    seconds: float
    equal: dict[str, int]
    """Who was compared and is right, and at which index: a node by its address, a snapshot by its name."""
    differences: list[Difference]
    """Whose word was another, in the log's order."""


def replay_stretch(piece: ReplayPiece) -> Replayed:
    """Apply all frames of a stretch, and compare with each witness, whatever the others said.

    Raises:
        SnapshotDamaged, SnapshotInvalid: it cannot begin from its snapshot.
        ApplyFailed: the machine failed at an index.
        MachineDiffers, MachineUnknown: there is no such machine here.
        FrameCorrupt, RecordsLost, ArchiveDamaged: as the log is found.
    """
    began = time.monotonic()
    applier = _begin(piece)
    waiting = list(reversed(piece.witnesses))
    records = 0
    equal: dict[str, int] = {}
    differences: list[Difference] = []
    for frame in frames_of_piece(piece):
        applier.apply(frame)
        records += frame.header.count
        while waiting and waiting[-1].index <= applier.applied_index:
            witness = waiting.pop()
            difference = _compare(piece, applier, witness)
            if difference is None:
                equal[witness.source] = witness.index
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


def restored(piece: ReplayPiece, snapshot: StoredSnapshot) -> tuple[StateMachine, Sessions]:
    """The machine and the session table of a snapshot. Raises SnapshotDamaged, SnapshotInvalid."""
    manifest = snapshot.manifest
    machine, sessions = piece.genesis.new_machine(piece.machine_spec), piece.genesis.new_sessions()
    pieces = reading_store(snapshot.path, manifest).pieces(manifest)
    restore_content(pieces, machine, sessions, snapshot_name(manifest.index))
    return machine, sessions


def _begin(piece: ReplayPiece) -> Applier:
    if piece.start is None:
        machine = piece.genesis.new_machine(piece.machine_spec)
        return Applier(machine, sessions=piece.genesis.new_sessions())
    machine, sessions = restored(piece, piece.start)
    return Applier(machine, boundary=piece.start.manifest.boundary, sessions=sessions)


def frames_of_piece(piece: ReplayPiece) -> Iterator[Frame]:
    """The frames of a stretch, verified, each once."""
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


def _compare(piece: ReplayPiece, applier: Applier, witness: RecordedDigest) -> Difference | None:
    """What is wrong at a witness's index, None if nothing is."""
    found = applier.digest.hex()
    if applier.applied_index != witness.index:
        reason = f"index {witness.index} is no frame boundary here: a frame ends at {applier.applied_index}"
        return Difference(witness.index, witness.source, found, witness.digest, reason)
    if found != witness.digest:
        difference = Difference(witness.index, witness.source, found, witness.digest, "the digests differ")
        if piece.end is None or _place_of(piece.end) != (witness.index, witness.digest):
            return difference  # The snapshot's replies are those of who came to its digest, and of no other.
        _, recorded = restored(piece, piece.end)
        return first_difference(difference, applier.sessions, recorded, frames_of_piece(piece))
    if witness.sha256:
        check = sha256()
        for chunk in applier.content():
            check.update(chunk)
        if check.hexdigest() != witness.sha256:
            reason = f"every result is right, and the state is another: its sha256 is {check.hexdigest()}, "
            reason += f"the snapshot's {witness.sha256}"
            return Difference(witness.index, witness.source, found, witness.digest, reason)
    if witness.state is not None:
        state = _state_text(applier.machine)
        if state != witness.state:
            reason = f"every result is right, and the answer is another: {state[:200]!r}, not {witness.state[:200]!r}"
            return Difference(witness.index, witness.source, found, witness.digest, reason)
    return None


def _place_of(snapshot: StoredSnapshot) -> tuple[int, str]:
    return snapshot.manifest.index, snapshot.manifest.boundary.digest.hex()


def _state_text(machine: StateMachine) -> bytes:
    """The whole state as JSON; the refusal where the machine does not tell it, as it does when it is too large."""
    try:
        return to_json(machine.query(None))
    except Refused as refusal:
        return f"{refusal.code}: {refusal.text}".encode()
