"""A node's data directory: lock, identity, promise, log and snapshots, opened in this order:

    lock -> identity -> promise (a new disk_id at the first start) -> log (recovery) -> genesis -> snapshots

A directory without an identity is refused unless it was never formatted (`first_start`). An identity without a log, a
mark, a genesis or a promise means a damaged disk: the directory is refused, and nothing in it is changed. A directory
is also refused if a file in it is older than the witnesses say (`witnessed`); these are written last, and never before
the identity.
"""

import os
from collections.abc import Callable
from pathlib import Path

import structlog

from quire.log import (
    Directory,
    FileDirectory,
    Log,
    LogError,
    LogLocked,
    LogOptions,
    LogRotten,
    Unreadable,
    store_bases,
    wall_clock,
)
from quire.replication import PromiseFile, PromiseLost, Witnesses
from quire.replication.core.fitness import REPLACE_DISK
from quire.replication.core.members import DISK_ID_BYTES
from quire.replication.promises import PROMISE_FILE
from quire.sm import Applier, Owner, Sessions, SnapshotPart, SnapshotStore, StateMachine, restore_newest
from quire.sm.snapshots.store import SNAPSHOTS_FOLDER

from .code import CodeRecord, note_start, write_code
from .file_system import file_system_alarms, note_held_open
from .first_start import LOG_FOLDER, MARK_FILE, check_unformatted, set_unfinished_aside
from .genesis import Genesis, read_genesis, read_genesis_file, write_genesis_file
from .identity import DataDirRefused, NodeIdentity, read_identity, write_identity
from .recovery import refuse_unfinished
from .room import refusing_to_start_when_full, report_room
from .survivor import check_history
from .torn import report_torn
from .volume import check_volume, note_volume
from .witnessed import check_end, check_epoch, check_files, check_snapshot, read_witnesses

logger = structlog.get_logger(__name__)


class DataDir:
    """An open, locked data directory. All methods block; one caller at a time."""

    def __init__(self, directory: Directory, options: LogOptions, volume: Path | None = None) -> None:
        self._directory = directory
        self._volume = volume
        self._options = options
        self.identity: NodeIdentity | None = None
        self.promises: PromiseFile
        self.log: Log | None = None
        self.snapshots: SnapshotStore
        self.witnesses: Witnesses | None = None
        """Set once all files were compared with them."""
        self.alarms: list[str] = []
        """What its file system does not do that a node relies on."""
        self._genesis = b""

    @classmethod
    def open(cls, path: Path, node_id: str, options: LogOptions) -> "DataDir":
        """Lock the directory at `path`, and read it; if it is formatted, recover its log.

        Raises:
            DataDirRefused: it is in use, belongs to another node or mode, is damaged, or its volume is not mounted.
            LogError: the log cannot be opened.
        """
        check_volume(path)
        data_dir = cls.open_directory(FileDirectory(path), node_id, options, volume=path)
        if data_dir.identity is not None:
            note_volume(path)
        data_dir.alarms = file_system_alarms(path)
        note_held_open(path)
        return data_dir

    @classmethod
    def open_directory(
        cls, directory: Directory, node_id: str, options: LogOptions, volume: Path | None = None
    ) -> "DataDir":
        """`open` for any kind of Directory; `volume` is its path if it may be a mount point."""
        try:
            directory.lock()
        except LogLocked as error:
            raise DataDirRefused(directory.path, "another process uses it; stop that one or choose another") from error
        data_dir = cls(directory, options, volume)
        try:
            directory.keep()
            with refusing_to_start_when_full(directory.path):
                data_dir._read(node_id)
        except BaseException as error:
            data_dir.close()
            if isinstance(error, Unreadable):
                raise DataDirRefused(directory.path, f"{error}; {REPLACE_DISK}") from error
            raise
        return data_dir

    def _read(self, node_id: str) -> None:
        directory, path = self._directory, self._directory.path
        refuse_unfinished(directory)
        self.identity = read_identity(directory)
        if self.identity is None:
            check_unformatted(directory)
            set_unfinished_aside(directory)
        elif self.identity.mode != "cluster":
            raise DataDirRefused(path, f"its mode is {self.identity.mode!r}; start it in that mode, or choose another")
        elif self.identity.node_id != node_id:
            raise DataDirRefused(path, f"it belongs to node {self.identity.node_id}, not {node_id}; choose another")
        else:
            self._check_log_is_there()
        witnesses = None if self.identity is None else read_witnesses(directory, self.identity.disk_id)
        self._read_promise()
        if self.identity is not None and witnesses is not None:
            check_files(directory, witnesses, self.promises.promise.epoch)
            self.log = self._open_log(self.identity.cluster_id)
            self._read_genesis()
            check_end(path, witnesses, self.log.durable_tail)
            check_history(path, self.identity.history, self.log)
            self._settle(witnesses)

    def _check_log_is_there(self) -> None:
        """A formatted directory has a mark and a log; only during a reset to a snapshot is the log briefly empty."""
        directory, names = self._directory, set(self._directory.list())
        if MARK_FILE not in names:
            raise DataDirRefused(directory.path, f"its mark file is missing; {REPLACE_DISK}")
        stores = store_bases(directory.existing(LOG_FOLDER)) if LOG_FOLDER in names else []
        if not stores and not (SNAPSHOTS_FOLDER in names and directory.existing(SNAPSHOTS_FOLDER).list()):
            raise DataDirRefused(directory.path, f"its log is missing; {REPLACE_DISK}")

    def _read_promise(self) -> None:
        disk_id = self.identity.disk_id if self.identity else None
        try:
            self.promises = PromiseFile.open(self._directory, disk_id)
        except (PromiseLost, FileNotFoundError) as error:
            if self.identity is not None:
                why = error if isinstance(error, PromiseLost) else "its promise file is missing"
                reason = f"{why}; {REPLACE_DISK}"
                raise DataDirRefused(self._directory.path, reason) from error
            # The first start, or a crash during it: no other node knows this disk yet.
            if PROMISE_FILE in self._directory.list():
                self._directory.remove(PROMISE_FILE)  # No slot of it is valid, and nothing else is here.
            self.promises = PromiseFile.create(self._directory, os.urandom(DISK_ID_BYTES))

    def _settle(self, witnesses: Witnesses) -> None:
        log, _ = self._formatted()
        witnesses.settle(self.promises.promise.epoch, log.mark.synced)
        self.witnesses = self.promises.witnesses = witnesses

    def _open_log(self, cluster_id: bytes) -> Log:
        directory, options = self._directory, self._options
        try:
            log = Log.open(directory, options, cluster_id=cluster_id, clock=wall_clock, standalone=False)
        except LogRotten as error:
            where = f"{error.file} is rotten at byte {error.position}: {error.reason}"
            raise DataDirRefused(directory.path, f"{where}; {REPLACE_DISK}") from error
        report_torn(log)
        report_room(log, directory.path, options.segment_bytes)
        return log

    def _read_genesis(self) -> None:
        """Read the genesis frame from its own file, since the log's first segment may have expired.

        Raises:
            DataDirRefused: there is an identity but no genesis, or that of another cluster.
        """
        if (frame := read_genesis_file(self._directory)) is not None:
            self._check_cluster(read_genesis(frame).cluster_id)
            self._genesis = frame
        elif self.log is not None and self.log.bounds.lowest_index == 0 and self.log.durable_index > 0:
            self._genesis, _ = self.log.read_frames(0, 1)
            write_genesis_file(self._directory, self._genesis)  # Earlier versions had it in the log only.
        else:
            raise DataDirRefused(self._directory.path, f"it has no genesis; {REPLACE_DISK}")

    def _check_cluster(self, of_genesis: bytes) -> None:
        if self.identity is not None and of_genesis != self.identity.cluster_id:
            clusters = f"cluster {of_genesis.hex()}, its identity of cluster {self.identity.cluster_id.hex()}"
            raise DataDirRefused(self._directory.path, f"its genesis file is of {clusters}; {REPLACE_DISK}")

    @property
    def history(self) -> bytes:
        """The id of the history of its log; the directory must be formatted."""
        if self.identity is None:
            raise DataDirRefused(self._directory.path, "it is not formatted")
        return self.identity.history

    def genesis_frame(self) -> bytes:
        """The first frame of the log; the directory must be formatted."""
        return self._genesis

    def restore(
        self, new_machine: Callable[[], StateMachine], new_sessions: Callable[[], Sessions], code: bytes = b""
    ) -> Applier:
        """An applier at the boundary of the newest whole snapshot, which the log then joins (rule 16).

        `code` is the fingerprint of the machine's code. If it does not read that snapshot, see `restore_newest`.

        Raises:
            DataDirRefused: no whole snapshot reaches the beginning of the log.
            MachineError, LogError: this node cannot use a snapshot, or the log.
        """
        log, genesis = self._formatted()
        lowest = log.bounds.lowest_index
        self.snapshots = SnapshotStore.open(self._directory, Owner(genesis.cluster_id, genesis.machine, code))
        SnapshotPart.resume(self.snapshots)
        applier = restore_newest(
            self.snapshots,
            new_machine,
            new_sessions,
            lambda tail: tail.index >= lowest and (not tail.index or log.lookup.follows(tail)),
        )
        boundary = applier.boundary
        check_epoch(self._directory.path, "its snapshot", max(boundary.tail.epoch, *dict(boundary.epochs), 0))
        if boundary.tail.index < lowest:
            # Refuse rather than reset: a reset to an older snapshot would lose committed records.
            reason = (
                f"its log begins at {lowest}, and no whole snapshot reaches it (the newest is at {boundary.tail.index})"
            )
            found = [reason, *map(str, self.snapshots.damaged)]
            raise DataDirRefused(self._directory.path, f"{'; '.join(found)}; {REPLACE_DISK}")
        if boundary.tail.index and not log.lookup.follows(boundary.tail):
            check_snapshot(self._directory.path, self.witnesses, log, boundary.tail.index)
            if self.witnesses is not None:
                self.witnesses.forget_end(log.mark.latest)
            # An install interrupted between rename and reset left a log that does not join the snapshot.
            log.reset(boundary.tail, members_index=boundary.members_index)
        return applier

    def note_code(self, machine: tuple[str, int], code: bytes) -> CodeRecord | None:
        """Record that the machine starts with this code; see `note_start`."""
        return note_start(self._directory, machine, code)

    def write_code(self, record: CodeRecord) -> None:
        """Replace the record of the machine's code, durably. Raises LogError, OSError."""
        write_code(self._directory, record)

    def _formatted(self) -> tuple[Log, Genesis]:
        if self.log is None or not self._genesis:
            raise DataDirRefused(self._directory.path, "it is not formatted")
        return self.log, read_genesis(self._genesis)

    def format(self, node_id: str, frame: bytes, history: bytes = b"") -> Genesis:
        """Write the genesis frame to the log and to its file, then the identity: an identity implies a genesis.

        `history` is that of the peer that sent the genesis; empty: the cluster's first one, its cluster_id.

        Raises:
            DataDirRefused: since it was opened, the directory or its promise was moved or removed.
        """
        if misplaced := self._directory.misplaced():
            raise DataDirRefused(self._directory.path, f"{'; '.join(misplaced)}; restart this node")
        genesis = read_genesis(frame)
        with refusing_to_start_when_full(self._directory.path):
            log = self._open_log(genesis.cluster_id)
        self.log = log
        log.append_frames(frame)
        log.flush()
        write_genesis_file(self._directory, frame)
        self._genesis = frame
        self.identity = NodeIdentity(
            genesis.cluster_id, node_id, self.promises.disk_id, genesis.machine, genesis.initial, history=history
        )
        write_identity(self._directory, self.identity)
        self._settle(read_witnesses(self._directory, self.promises.disk_id))
        if self._volume is not None:
            note_volume(self._volume)
        return genesis

    def close(self) -> None:
        """Mark a clean stop, and unlock."""
        if self.log is not None:
            failure = self.log.failure
            try:
                self.log.close()
            except LogError as error:  # Nothing that was acknowledged: the next start finds what is durable.
                failure = str(error)
                logger.warning("the log was not closed cleanly, and the next start checks it", why=failure)
            if self.witnesses is not None and failure is None:
                self.witnesses.note_in_both(self.log.mark.synced)
        if self.witnesses is not None:
            self.witnesses.close()
        if hasattr(self, "promises"):
            self.promises.close()
        self._directory.release()
        self._directory.unlock()
