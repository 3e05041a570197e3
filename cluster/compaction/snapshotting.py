"""When and how this node takes a snapshot: at a frame boundary, in a forked child, while the node continues.

    boundary -> due? -> fork -> child: chunks, manifest, synced -> parent: rename, keep two

Commits wait only for the fork. The child sees the machine and the session table between two frames.

A snapshot that is damaged or lost while this node runs is replaced: the next one is due at once, with the usual pause.
"""

import asyncio
import contextvars
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

import structlog

from quire.log import FrameHeader, LogError, ResourcesExhausted
from quire.sm import KEPT_SNAPSHOTS, MachineError, Manifest, SnapshotStore, SnapshotTooEarly, write_snapshot

from ..errors import NodeStopping, SnapshotFailed, StateUnavailable
from ..node.applying import Applying
from .forked import PATIENCE, Child, ChildFailed, in_thread

journal = structlog.get_logger(__name__)

AGAIN_AFTER_S = 300.0
"""The wait after a failed snapshot: the cause may persist, and an attempt may write gigabytes."""
OVERDUE_S = 3600.0
"""An alarm is raised when a snapshot has been overdue for this long."""

NOT_KEPT = "no snapshot is taken with code that neither a majority runs nor you accepted"

Failure = (ChildFailed, LogError, MachineError, OSError)


@dataclass(frozen=True, slots=True)
class SnapshotOptions:
    """A snapshot is due at the first boundary past a multiple of `records`, or after this many bytes; 0: off."""

    records: int
    log_bytes: int


class Snapshotting:
    """Takes snapshots of one applier, one at a time. All methods are called on the event loop."""

    def __init__(
        self,
        store: SnapshotStore,
        applying: Applying,
        options: SnapshotOptions,
        limit: Callable[[], int],
        may_keep: Callable[[], bool],
        pinned: Callable[[], Iterable[int]],
        failed: Callable[[Exception], None],
    ) -> None:
        """`limit` gives the index below which everything is committed and durable here; `pinned`, snapshots to keep.

        `may_keep`: whether a majority runs this node's code, or an operator accepted it. What other code computes must
        not outlast it: once the node has the right code again, it replays its log from a snapshot of before.
        `failed` is called if a snapshot would hold uncommitted records: the node must stop.
        """
        self._store = store
        self._applying = applying
        self._options = options
        self._limit = limit
        self._may_keep = may_keep
        self._pinned = pinned
        self._on_broken = failed
        self._log_bytes = 0
        self._taken_at = time.monotonic()
        self._taking: asyncio.Task[Manifest] | None = None
        self._taking_index: int | None = None
        self._child: Child | None = None
        self._due_since: float | None = None
        self._failed_at = 0.0
        self._replaced = 0
        """How many of the damaged snapshots, counted from the first, have been replaced."""
        self._logged = 0
        """How many of them were logged."""
        self._unchecked = ""
        """Why the snapshots' files could not be checked; empty if they could."""
        self._stopped = False
        self.patience = PATIENCE
        """When the child that writes a snapshot counts as hanging."""
        self.pause_ms = 0.0
        """How long the last fork blocked this process."""
        self.failure = ""
        """Why the last snapshot failed; empty if it did not."""

    @property
    def manifests(self) -> list[Manifest]:
        """The manifests of the whole snapshots, oldest first."""
        return self._store.manifests

    def at_boundary(self, header: FrameHeader) -> None:
        """A frame was applied: take a snapshot if one is due."""
        self._log_bytes += header.size
        if self._taking is None and self._is_due(header) and self._applying.applier.refusal is None:
            if not self._may_keep():
                self._hold_back()
                return
            try:
                self._begin()
            except SnapshotTooEarly as broken:
                self._on_broken(broken)

    def _hold_back(self) -> None:
        """Take the snapshot that is due later: it is overdue from now on."""
        self._log_bytes, self._failed_at, self.failure = 0, time.monotonic(), NOT_KEPT
        if self._due_since is None:
            self._due_since = self._failed_at

    def _is_due(self, header: FrameHeader) -> bool:
        records, log_bytes = self._options.records, self._options.log_bytes
        if records and header.index // records != header.next_index // records:
            return True
        if (self.failure or self._lacks_one) and self._is_pause_over:
            return True
        return bool(log_bytes) and self._log_bytes >= log_bytes

    @property
    def _lacks_one(self) -> bool:
        """Whether a snapshot was damaged or lost and has not been replaced."""
        return len(self._store.damaged) > self._replaced

    @property
    def _is_pause_over(self) -> bool:
        return time.monotonic() - max(self._taken_at, self._failed_at) >= AGAIN_AFTER_S

    async def replace_damaged(self) -> None:
        """Take a snapshot to replace a damaged one when it is due, even if no frame is applied."""
        if self._taking is None and self._lacks_one and self._is_pause_over:
            with suppress(SnapshotFailed, StateUnavailable, NodeStopping):  # It was logged, and is due again.
                await self.take()

    async def check_newest(self) -> None:
        """Check the files of the two newest snapshots. One that lacks a file no longer counts; an alarm names it.

        Raises:
            StateUnavailable: they cannot be checked now.
        """
        try:
            await in_thread(self._store.check_newest)
        except (ResourcesExhausted, OSError) as error:
            if not self._unchecked:
                journal.error("nothing expires: the snapshots cannot be checked", reason=str(error))
            self._unchecked = str(error)
            raise StateUnavailable(f"nothing expires now: the snapshots cannot be checked: {error}") from error
        finally:
            self._log_damaged()
        self._unchecked = ""

    def _log_damaged(self) -> None:
        damaged = self._store.damaged
        for damage in damaged[self._logged :]:
            journal.error("snapshot damaged or lost", snapshot=damage.snapshot, reason=damage.reason)
        self._logged = len(damaged)

    async def take(self) -> Manifest:
        """Return a snapshot of everything applied when this was called, or later.

        Raises:
            SnapshotFailed, DiskFullError: there is none; older ones are untouched.
            StateUnavailable: the machine has stopped applying, or its state is unproven.
        """
        wanted = self._applying.applier.applied_index
        while True:
            newest = self.manifests[-1] if self.manifests else None
            if newest is not None and newest.index >= wanted:
                return newest
            if (refusal := self._applying.applier.refusal) is not None:
                raise StateUnavailable(f"no snapshot can be taken: {refusal}")
            if not self._may_keep():
                raise StateUnavailable(NOT_KEPT)
            if self._taking is None:
                try:
                    await self._applying.at_boundary(lambda _: self._begin_unless_taking(), on_loop=True)
                except SnapshotTooEarly as broken:
                    self._on_broken(broken)
                    raise StateUnavailable(str(broken)) from broken
            if self._taking is None:
                raise SnapshotFailed(self.failure)
            try:
                await asyncio.shield(self._taking)
            except Failure as error:
                raise SnapshotFailed(str(error)) from error

    def _begin_unless_taking(self) -> None:
        if self._taking is None:
            self._begin()

    def _begin(self) -> None:
        """Fork at this boundary, unless it has a snapshot already or the node is stopping."""
        applier, store = self._applying.applier, self._store
        index = applier.applied_index
        self._log_bytes, self._taken_at = 0, time.monotonic()
        if self._stopped or any(manifest.index == index for manifest in self.manifests):
            return
        if index > self._limit():
            raise SnapshotTooEarly(index=index, limit=self._limit())
        boundary, content = applier.boundary, applier.content()

        if self._due_since is None:
            self._due_since = self._taken_at
        if self._child is not None and not self._child.ended:
            self._failed(index, ChildFailed("the child of an earlier one was killed but does not end: check the disk"))
            return

        def work(go_on: Callable[[], None]) -> bytes:
            write_snapshot(store.begin(index), store.owner, boundary, content, before_chunk=go_on)
            return b""

        began = time.monotonic()
        try:
            self._child = Child(work)
        except OSError as error:
            self._failed(index, error)
            return
        self.pause_ms = (time.monotonic() - began) * 1000
        self._taking_index = index
        context = contextvars.Context()  # Its log lines must not name the request of the last frame.
        self._taking = asyncio.create_task(self._finish(self._child, index), name=f"snapshot {index}", context=context)
        self._taking.add_done_callback(self._ended)

    async def _finish(self, child: Child, index: int) -> Manifest:
        try:
            return await self._complete(child, index)
        finally:  # Before the task ends: `take` would wait for one that has ended again and again, without a turn.
            self._taking = self._taking_index = None

    async def _complete(self, child: Child, index: int) -> Manifest:
        try:
            await child.report(self.patience)
            manifest = await in_thread(self._store.complete, index)
            await in_thread(self._store.retain, list(self._pinned()))
        except Failure as error:
            self._failed(index, error)
            if child.ended:  # Otherwise its disk would hold this thread, too. The next start removes the folder.
                await in_thread(self._store.abandon, index)
            raise
        self._log_damaged()
        self.failure, self._due_since = "", None
        if len(self.manifests) >= KEPT_SNAPSHOTS:
            self._replaced = len(self._store.damaged)
        journal.info("snapshot taken", index=index, size=manifest.size, pause_ms=round(self.pause_ms, 1))
        return manifest

    def _ended(self, taking: asyncio.Task[Manifest]) -> None:
        if not taking.cancelled() and (error := taking.exception()) and not isinstance(error, Failure):
            self.failure, self._failed_at = f"a fault of this program: {error!r}", time.monotonic()
            journal.error("no snapshot was taken", exc_info=error)

    def _failed(self, index: int, error: Exception) -> None:
        self.failure, self._failed_at = f"at {index}: {error}", time.monotonic()
        journal.error("no snapshot was taken", index=index, reason=str(error))

    async def stop(self) -> None:
        """Take no more snapshots; abandon the one in progress."""
        self._stopped = True
        if self._child is not None:
            self._child.kill()
        if self._taking is not None:
            await asyncio.gather(self._taking, return_exceptions=True)

    @property
    def overdue_s(self) -> float:
        """For how long a snapshot has been overdue; 0 if none is."""
        return 0.0 if self._due_since is None else time.monotonic() - self._due_since

    @property
    def alarm(self) -> str | None:
        """The alarm about snapshots for an operator; None if there is none, or if the machine answers nothing."""
        if self._applying.applier.refusal is not None:
            return None
        if damaged := self._store.damaged[self._replaced :]:
            failure = f" (the last attempt failed: {self.failure})" if self.failure else ""
            return (
                f"{'; '.join(map(str, damaged))}; so the log cannot expire: find what removes or damages files in"
                f" the data directory, then run `quire snapshot`, or wait for the next one{failure}"
            )
        if self._unchecked:
            return (
                f"the snapshots cannot be checked, so the log does not expire: {self._unchecked}; fix the cause,"
                " and it will expire by itself"
            )
        if self.overdue_s < OVERDUE_S:
            return None
        reason = self.failure or "the one in progress has not ended"
        return (
            f"no snapshot was finished for {self.overdue_s:.0f} s although one was due, so the log cannot expire:"
            f" {reason}; fix the cause, then run `quire snapshot`"
        )

    def document(self) -> dict[str, object]:
        """For `/status`."""
        return {
            "kept": [
                {
                    "index": manifest.index,
                    "epoch": manifest.boundary.tail.epoch,
                    "timestamp": manifest.boundary.tail.timestamp,
                    "bytes": manifest.size,
                    "sha256": manifest.sha256.hex(),
                }
                for manifest in self.manifests
            ],
            "taking": self._taking_index,
            "pause_ms": round(self.pause_ms, 1),
            "failure": self.failure,
            "overdue_seconds": round(self.overdue_s, 1),
            "damaged": [str(damage) for damage in self._store.damaged],
        }
