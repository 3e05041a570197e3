"""A standalone log: its flushes, its mark (each second) and its expiry, besides the requests."""

import asyncio
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

import structlog

from quire.log import (
    Directory,
    Expiry,
    FileDirectory,
    FrameCorrupt,
    GroupFlusher,
    IndexExpired,
    IndexOutOfBounds,
    Log,
    LogClosed,
    LogLocked,
    LogReadOnly,
    NoRoom,
    NotYetFlushed,
    PayloadInvalid,
    RecordsTruncated,
    RecordTooLarge,
    ResourcesExhausted,
    UnexpectedIndex,
    store_bases,
    stored_cluster_id,
    wall_clock,
)
from quire.replication.core.members import DISK_ID_BYTES
from quire.replication.promises import PROMISE_FILE

from ..access.credentials import Credentials
from ..config.access import INSECURE
from ..data_dir.file_system import file_system_alarms, note_held_open
from ..data_dir.first_start import LOG_FOLDER
from ..data_dir.genesis import CLUSTER_ID_BYTES
from ..data_dir.identity import DataDirRefused, NodeIdentity, read_identity, write_identity
from ..data_dir.room import refusing_to_start_when_full, report_room
from ..data_dir.torn import report_torn
from ..data_dir.volume import check_volume, note_volume
from ..errors import (
    CorruptHere,
    DiskFullError,
    Expired,
    LimitExceeded,
    Malformed,
    NodeStopping,
    NotCommitted,
    OutcomeUnknown,
    OutOfBounds,
    ResourcesExhaustedError,
    StateUnavailable,
    Truncated,
    WrongIndex,
)
from .config import MODE, StandaloneConfig

MARK_INTERVAL_S = 1.0
EXPIRY_INTERVAL_S = 10.0
EXPIRY_RETRY_S = 1.0
"""The wait before another attempt to sync a folder when there was no descriptor for it."""

logger = structlog.get_logger(__name__)


class NotFlushed(NotCommitted):
    """The record is appended but not flushed yet, so it cannot be read."""

    def __init__(self, index: int, readable: int) -> None:
        super().__init__(index, readable)

    def __str__(self) -> str:
        return f"index {self.index} is not flushed yet; records below {self.commit_index} are"


class RecordCorrupt(CorruptHere):
    """The record's bytes are damaged."""

    def __str__(self) -> str:
        return f"index {self.index} cannot be read: {self.reason}; check the log with `quire log verify`"


class DiskOfLogFull(DiskFullError):
    """No space is left; nothing was written."""

    def __str__(self) -> str:
        return "the disk is full; nothing was written"


class NotFlushedInTime(OutcomeUnknown):
    """The record was appended; whether it survives a power loss is unknown."""

    def __init__(self, index: int, count: int, reason: str) -> None:
        super().__init__(f"appended at index {index}, but {reason}")
        self.write_index = index
        self.count = count


class LogService:
    """A served log. All methods are called on one event loop."""

    def __init__(self, config: StandaloneConfig, directory: Directory | None = None) -> None:
        """`directory` replaces the folder `data_dir` in tests.

        Raises:
            CredentialsRefused: the certificate or the tokens cannot be used.
        """
        self.config = config
        self.credentials = Credentials(config.credential_files)
        """Its certificate, and the tokens of its callers."""
        self._alarms: list[str] = []
        self._of_disk: list[str] = []
        self.ended = asyncio.Event()
        """Set when the log has failed and cannot continue."""
        self.log: Log
        self._directory = directory
        self._flusher: GroupFlusher
        self._tasks: list[asyncio.Task[None]] = []
        self._is_stranded = self._is_rotten = False

    async def start(self) -> None:
        """Open or create the log.

        Raises:
            DataDirRefused: the directory is in use, belongs to a cluster, or is damaged.
            LogError: the log cannot be opened.
        """
        self.credentials.on_change(self._log_alarms)
        self._log_alarms()
        self.log = await asyncio.to_thread(self._open)
        self._log_alarms()
        self._flusher = GroupFlusher(self.log)
        self._tasks = [asyncio.create_task(self._sync_marks()), asyncio.create_task(self._expire())]

    def _open(self) -> Log:
        if self._directory is None:
            check_volume(self.config.data_dir)
        directory = self._directory = self._directory or FileDirectory(self.config.data_dir)
        try:
            directory.lock()
        except LogLocked as error:
            raise DataDirRefused(directory.path, "another process uses it; stop that one or choose another") from error
        try:
            log = open_log(self.config, directory)
        except BaseException:
            directory.unlock()
            raise
        note_volume(self.config.data_dir)
        self._of_disk = file_system_alarms(directory.path)
        note_held_open(directory.path)
        return log

    def _log_alarms(self) -> None:
        known = self._alarms
        self._alarms = [*([INSECURE] if self.config.insecure else []), *self._of_disk, *self.credentials.alarms()]
        for text in self._alarms:
            if text not in known:
                logger.warning("alarm", alarm=text)

    async def stop(self) -> None:
        """Flush, mark a clean stop, and unlock."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._flusher.close()
        try:
            await asyncio.to_thread(self.log.close)
        finally:
            if self._directory is not None:
                self._directory.unlock()

    @property
    def failure(self) -> str | None:
        """Why the log has failed; None if it has not. If its files are not in place, it says what to do first."""
        return self.log.failure and (self.log.watch.lost or self.log.failure)

    async def settled(self, index: int, count: int) -> None:
        """Wait until `count` records from `index` on are as durable as the flush policy requires.

        Raises:
            Truncated: another caller has truncated all or some of them.
            NotFlushedInTime: they were appended; whether they are durable is unknown.
        """
        timeout_ms = self.config.request_timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._flusher.settled(index + count)
        except TimeoutError:
            raise NotFlushedInTime(index, count, f"not flushed within {timeout_ms} ms") from None
        except RecordsTruncated as error:
            raise Truncated(error.index) from error
        except LogReadOnly as error:
            self._failed()
            raise NotFlushedInTime(index, count, self.failure or error.reason) from error

    @contextmanager
    def answering(self, index: int = 0) -> Generator[None]:
        """Translate the log's errors in the block into those of a request."""
        failed_before = self.log.failure is not None
        try:
            yield
        except IndexOutOfBounds as error:
            raise OutOfBounds(error.index, error.lowest, self.log.readable_index) from error
        except IndexExpired as error:
            raise Expired(error.index, error.lowest) from error
        except NotYetFlushed as error:
            raise NotFlushed(error.index, error.durable) from error
        except FrameCorrupt as error:
            self._found_rot(error)
            raise RecordCorrupt(index, str(error)) from error
        except UnexpectedIndex as error:
            raise WrongIndex(error.expected, error.highest) from error
        except RecordTooLarge as error:
            raise LimitExceeded("the record, with its frame,", error.size, error.limit) from error
        except PayloadInvalid as error:
            raise Malformed(error.reason) from error
        except NoRoom as error:
            exhausted = isinstance(error, ResourcesExhausted)
            raise (ResourcesExhaustedError() if exhausted else DiskOfLogFull()) from error
        except LogClosed as error:
            raise NodeStopping from error
        except LogReadOnly as error:
            self._failed()
            if failed_before:
                raise StateUnavailable(self.failure or str(error)) from error
            # The write failed on its way to the disk: after a restart it may be there.
            raise OutcomeUnknown(self.failure or error.reason) from error

    def _found_rot(self, error: FrameCorrupt) -> None:
        if not self._is_rotten:
            self._is_rotten = True
            logger.error("alarm", alarm=f"the log has rot: {error}; check it with `quire log verify`")

    def _failed(self) -> None:
        """The log accepts no more writes: end the process, unless its open descriptors are all that holds its data."""
        if self.log.watch.judge_failure():
            if not self._is_stranded:
                self._is_stranded = True
                logger.error("the log has failed", reason=self.failure)
        else:
            self.ended.set()

    async def _sync_marks(self) -> None:
        while True:
            await asyncio.sleep(MARK_INTERVAL_S)
            with suppress(LogReadOnly):
                await self._flusher.sync_mark()
            if self.log.failure is not None:
                self._failed()
                return

    async def _expire(self) -> None:
        config = self.config
        age = None if config.retention_ms is None else config.retention_ms * 1000
        ages = self.log.expiry.ages()
        while age is not None or config.retention_bytes is not None:
            try:
                ages.rotate(age, None)
                gone = await self._remove_expired(lambda: ages.aged_to(age))
            except LogReadOnly:
                self._failed()
                return
            if gone:
                logger.info("expired", segments=gone, lowest_index=self.log.bounds.lowest_index)
            await asyncio.sleep(EXPIRY_INTERVAL_S)

    async def _remove_expired(self, aged_to: Callable[[], int]) -> int:
        """Remove expired segments one at a time, their files in a thread; return how many were removed.

        Raises:
            LogReadOnly: the device failed.
        """
        gone, most = 0, self.config.retention_bytes
        while (expiry := self.log.expiry.begin(aged_to=aged_to(), max_bytes=most)) is not None:
            self.log.expiry.end(expiry, await self._removed(expiry))
            gone += 1
        return gone

    async def _removed(self, expiry: Expiry) -> OSError | None:
        """Remove a segment's files; return the device's error."""
        while True:
            try:
                await asyncio.to_thread(expiry.run)
            except ResourcesExhausted:
                await asyncio.sleep(EXPIRY_RETRY_S)
            except OSError as error:
                return error
            else:
                return None


def open_log(config: StandaloneConfig, directory: Directory) -> Log:
    """Check the identity of the data directory, and open its log or create one. Blocks; the caller has the lock.

    The identity is written after the log. A log without an identity (after a crash in between, or written by another
    program with this library) is served with its existing cluster id.

    Raises:
        DataDirRefused, LogError: it cannot be used; nothing was changed.
    """
    path = directory.path
    identity = read_identity(directory)
    if PROMISE_FILE in directory.list() or (identity is not None and identity.mode != MODE):
        raise DataDirRefused(path, "its mode is 'cluster'; start it in that mode, or choose another")
    if identity is not None and not store_bases(directory.child(LOG_FOLDER)):
        raise DataDirRefused(path, "its log is missing; restore a backup, or start with an empty directory")
    try:
        cluster_id = (identity.cluster_id if identity else stored_cluster_id(directory)) or os.urandom(CLUSTER_ID_BYTES)
    except FrameCorrupt as error:
        raise DataDirRefused(path, f"{error}; check the log with `quire log verify`") from error
    with refusing_to_start_when_full(path):
        log = Log.open(
            directory,
            config.options,
            cluster_id=cluster_id,
            initial_index=config.initial_index,
            clock=wall_clock,
            standalone=True,
        )
    report_torn(log)
    report_room(log, path, config.options.segment_bytes)
    if identity is None:
        write_identity(directory, NodeIdentity(cluster_id, MODE, os.urandom(DISK_ID_BYTES), ("log", 1), None, MODE))
    return log
