"""What the data directory of a survivor holds: the facts by which survivors of a lost majority are compared.

Nothing is opened for writing, so that `quire recover --inspect` leaves a directory as a crash left it.
"""

from collections.abc import Callable
from contextlib import closing, suppress
from typing import NamedTuple

from quire.log import (
    Directory,
    FrameCorrupt,
    Kind,
    Log,
    Tail,
    Unreadable,
    Verdict,
    decode_system,
    frame_values,
    frames_of,
    store_bases,
    stored_mark,
    verify,
)
from quire.log.segment.survey import MEMBERS_TYPES
from quire.replication import Members, PromiseFile, PromiseLost
from quire.replication.core.messages import Promise
from quire.sm import SnapshotDamaged
from quire.sm.snapshots.manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, Manifest, decode_manifest
from quire.sm.snapshots.store import SNAPSHOTS_FOLDER

from .first_start import LOG_FOLDER
from .identity import DataDirRefused, NodeIdentity, read_identity
from .witnessed import check_end, check_files, read_witnesses

HISTORY_TYPE = "history"
RESTORING_FILE = "restoring"
"""The marker of a restore (`restoration.py`)."""
RESTORE_AGAIN = "a restore into it was interrupted; run the same `quire restore` again, or empty the directory"
OTHER_SURVIVOR = "recover from another survivor, or restore a backup"
START_ONCE = "start this node once with `quire serve`, which finishes it, stop it, and repeat this command"


class Survivor(NamedTuple):
    """A directory's node, the end of its log, and what it knows of the cluster. Survivors compare by `last`."""

    identity: NodeIdentity
    tail: Tail
    """The end of all its records, unacknowledged ones included."""
    commit_index: int
    """Every record below was committed; records from here on may not have been acknowledged."""
    epoch_seen: int
    """The greatest epoch in its files."""
    members: Members
    """In force at the end of its log."""
    features: frozenset[str]
    """Those that its log names."""

    @property
    def last(self) -> tuple[int, int]:
        """(epoch of the last record, end): the survivor with the greatest holds every record that was acknowledged."""
        return self.tail.epoch, self.tail.index

    @property
    def removed_at(self) -> int | None:
        """The index of the record that removed this disk from the cluster; None if it is a member."""
        return self.members.removal_of(self.identity.node_id, self.identity.disk_id)

    @property
    def role(self) -> str:
        """Its role with this disk; empty if it is no member."""
        member = self.members.of_node(self.identity.node_id)
        return str(member.role) if member is not None and member.disk_id == self.identity.disk_id else ""


def inspect(directory: Directory, progress: Callable[[int], None] = lambda _: None) -> Survivor:
    """Read a locked data directory completely, and check it. Blocks; writes no record.

    Raises:
        DataDirRefused: it is no node's, is damaged, or a change of it was interrupted.
        UnknownVersion: a later program wrote it.
    """
    refuse_restoring(directory)
    path, identity = directory.path, read_identity(directory)
    if identity is None:
        raise DataDirRefused(path, f"it holds no node's identity: there is nothing to recover; {OTHER_SURVIVOR}")
    if identity.mode != "cluster":
        raise DataDirRefused(path, f"its mode is {identity.mode!r}: only a cluster's node can be recovered")
    witnesses, promise = read_witnesses(directory, identity.disk_id), _promise_of(directory)
    check_files(directory, witnesses, promise.epoch)
    known = witnesses.known
    verdict = _checked_log(directory, progress)
    tail, lowest = verdict.segments[-1].tail, verdict.segments[0].base_index
    check_end(path, witnesses, tail)
    snapshot = _newest_snapshot(directory)
    boundary = None if snapshot is None else snapshot.boundary
    if boundary is not None and boundary.tail.index > tail.index:
        raise DataDirRefused(path, f"the installation of a snapshot was interrupted; {START_ONCE}")
    if lowest > (0 if boundary is None else boundary.tail.index):
        raise DataDirRefused(path, f"its log begins at {lowest}, and no whole snapshot reaches it; {OTHER_SURVIVOR}")
    said = _members_and_features(directory, tail.index)
    features = said.features.union(() if boundary is None else boundary.features)
    if (record := said.members or (None if boundary is None else boundary.members_record)) is None:
        raise DataDirRefused(path, f"neither its log nor a snapshot names the members; {OTHER_SURVIVOR}")
    mark = stored_mark(directory)
    below = (
        known.commit_index,
        0 if mark is None else mark.commit_index,
        0 if boundary is None else boundary.tail.index,
    )
    seen = max(promise.epoch, known.promised_epoch, known.end_epoch, tail.epoch)
    members = Members.from_record(record)
    return Survivor(identity, tail, min(max(below), tail.index), seen, members, features)


def refuse_restoring(directory: Directory) -> None:
    """Check that no restore into the directory is unfinished.

    Raises:
        DataDirRefused: one is.
    """
    if RESTORING_FILE in directory.list():
        raise DataDirRefused(directory.path, RESTORE_AGAIN)


def _promise_of(directory: Directory) -> Promise:
    try:
        return PromiseFile.read(directory)
    except (PromiseLost, FileNotFoundError) as error:
        why = error if isinstance(error, PromiseLost) else "its promise file is missing"
        raise DataDirRefused(directory.path, f"{why}; {OTHER_SURVIVOR}") from error


def _checked_log(directory: Directory, progress: Callable[[int], None]) -> Verdict:
    if LOG_FOLDER not in directory.list():
        raise DataDirRefused(directory.path, f"its log is missing; {OTHER_SURVIVOR}")
    verdict = verify(directory, progress)
    if rot := [fault for fault in verdict.faults if fault.kind == "rot"]:
        where = f"{rot[0].file} is rotten at byte {rot[0].position}: {rot[0].reason}"
        raise DataDirRefused(directory.path, f"{where}; {OTHER_SURVIVOR}")
    if not verdict.segments:
        raise DataDirRefused(directory.path, f"its log was being emptied for a snapshot; {START_ONCE}")
    return verdict


def _newest_snapshot(directory: Directory) -> Manifest | None:
    """The manifest of the newest snapshot whose manifest is whole."""
    if SNAPSHOTS_FOLDER not in directory.list():
        return None
    folder = directory.existing(SNAPSHOTS_FOLDER)
    for name in sorted((name for name in folder.list() if name.isdigit()), reverse=True):
        with suppress(SnapshotDamaged, FileNotFoundError, Unreadable):
            with closing(folder.existing(name).open(MANIFEST_NAME)) as file:
                raw = file.read_at(0, MAX_MANIFEST_BYTES)
            return decode_manifest(raw, name)
    return None


class _Said(NamedTuple):
    """What the system records of a log say: the last record of members, and all features."""

    members: dict[str, object] | None
    features: frozenset[str]


def _members_and_features(directory: Directory, end: int) -> _Said:
    members: dict[str, object] | None = None
    features = set[str]()
    for record in _system_records(directory, end):
        if record["type"] in MEMBERS_TYPES:
            members = record
        named = record.get("names" if record["type"] == "features" else "features")
        features.update(name for name in (named if isinstance(named, list) else []) if isinstance(name, str))
    return _Said(members, frozenset(features))


def _system_records(directory: Directory, end: int) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for base in store_bases(directory.existing(LOG_FOLDER)):
        with suppress(FrameCorrupt):  # The torn end of a log that was verified.
            for header, payload in frames_of(directory, base):
                if header.index >= end:
                    break
                if header.kind == Kind.SYSTEM and payload is not None:
                    found.append(dict(decode_system(payload)))
    return found


def check_history(path: str, history: bytes, log: Log) -> None:
    """Check that an open log does not continue in a later history than that of the directory's identity.

    A node that joined may hold only a part of the log, without the record of its own history.

    Raises:
        DataDirRefused: it does: its files are of different ages.
    """
    index = log.members_index
    while index is not None and index >= log.bounds.lowest_index:
        (record,) = frame_values(log.reader.frame(index))
        if isinstance(record, dict) and record["type"] == HISTORY_TYPE and _former(record.get("from")) == history:
            reason = f"its identity is of the history {history.hex()}, which its log ended at index {index}"
            raise DataDirRefused(path, f"{reason}; move the whole directory away, and start with an empty one")
        index = log.lookup.members_index_before(index)


def _former(begun: object) -> bytes:
    match begun:
        case [bytes(history), int()]:
            return history
        case _:
            return b""
