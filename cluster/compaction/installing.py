"""Fetches the leader's snapshot and continues from it (rule 16). The core decides when; this moves the bytes.

    FetchSnapshot -> manifest, missing chunks, each verified and synced -> read by a new machine
        -> SnapshotFetched -> (the core checks the promise again) -> place: renamed -> the log is reset
        -> installed: the new machine replaces the old one

Fetched chunks are kept apart from the valid snapshots. The fetch resumes after a broken connection or a restart,
also from another leader that has the same snapshot.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import ParamSpec, Protocol, TypeVar

import structlog
from aiohttp import ClientSession

from quire.log import FEATURES, LogError
from quire.replication import Members
from quire.replication.core import actions, events
from quire.replication.core.messages import Snapshot
from quire.replication.net.hello import LINK_FAILURES, PeerInfo
from quire.replication.net.snapshots import SnapshotFetch, SnapshotRefused
from quire.replication.net.trust import Trust
from quire.replication.replica import watched_task
from quire.sm import (
    Applier,
    MachineError,
    Sessions,
    SnapshotDamaged,
    SnapshotPart,
    SnapshotStore,
    StateMachine,
    snapshot_name,
)
from quire.sm.snapshots.manifest import Manifest

from ..node.applying import Applying
from .forked import in_thread

journal = structlog.get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

AGAIN_AFTER_S = 1.0
"""The pause after a failed fetch: its cause may last."""


async def put_all(
    part: SnapshotPart, chunks: AsyncIterator[tuple[int, bytes]], was_put: Callable[[], None] = lambda: None
) -> None:
    """Store each chunk in a thread while the next one arrives; call `was_put` after each.

    However it ends, no thread is left running. Raises what `chunks` and `SnapshotPart.put` raise.
    """
    putting: asyncio.Task[None] | None = None
    try:
        async for number, data in chunks:
            if putting is not None:
                await asyncio.shield(putting)  # If this is cancelled, the thread still ends first: see below.
                was_put()
            putting = asyncio.create_task(in_thread(part.put, number, data), name=f"put chunk {number}")
    finally:
        if putting is not None:
            await putting
            was_put()


async def _to_its_end(block: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """As `in_thread`, for functions that write: if cancelled, it still waits for the thread to end."""
    running = asyncio.create_task(in_thread(block, *args, **kwargs), name="write a part")
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.gather(running, return_exceptions=True)
        raise


def check_usable(manifest: Manifest) -> None:
    """Check that this node can continue from a snapshot. Raises SnapshotRefused."""
    try:
        if manifest.boundary.members_index is None:
            raise ValueError("no record names them")
        Members.from_record(manifest.boundary.members_record)
    except ValueError as error:
        raise SnapshotRefused(f"its manifest names no members: {error}") from error
    if unknown := sorted(set(manifest.boundary.features) - FEATURES):
        raise SnapshotRefused(f"it uses {', '.join(unknown)}, which this version does not know: upgrade this node")


def check_history(manifest: Manifest, applier: Applier) -> None:
    """Check that a snapshot from above this node's `history` record is of that history, too. Raises SnapshotRefused.

    One from below may be of an earlier history: the log between it and the record follows.
    """
    boundary = manifest.boundary
    if applier.history and manifest.index > applier.sessions.history_index and boundary.history != applier.history:
        raise SnapshotRefused(f"it is of history {manifest.history.hex()}, this node of {applier.history.hex()}")


class InstalledDigests(Protocol):
    """This node's digests."""

    def installed(self, index: int, digest: bytes) -> None:
        """This node now has another node's state at `index`."""
        ...


@dataclass(frozen=True, slots=True)
class AfterInstall:
    """What continues from an installed snapshot."""

    applying: Applying
    digests: InstalledDigests


class Installing:
    """One node's fetches, one at a time; implements `Installs` of replication's ports.

    All methods but `place_snapshot` are called on the event loop.
    """

    def __init__(
        self,
        store: SnapshotStore,
        step: Callable[[events.Event], None],
        new_machine: Callable[[], StateMachine],
        new_sessions: Callable[[], Sessions],
        dial: tuple[ClientSession, Callable[[], PeerInfo], Trust],
        address_of: Callable[[str], str | None],
        after: AfterInstall,
        failed: Callable[[Exception], None],
    ) -> None:
        """`dial`: the HTTP session, this node's PeerInfo, whom it trusts. `failed` gets an error that ends the node."""
        self._store = store
        self._step = step
        self._after = after
        self._removing: asyncio.Task[None] | None = None
        self._new_machine, self._new_sessions = new_machine, new_sessions
        self._session, self._me, self._trust = dial
        self._address_of = address_of
        self._failed = failed
        self._task: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()  # A part has one user at a time.
        self._part: SnapshotPart | None = None
        self._applier: Applier | None = None
        self._chunks = 0
        self.failure = ""
        """Why the last fetch failed; empty once a snapshot was installed."""

    def fetch_snapshot(self, action: actions.FetchSnapshot) -> None:
        """Begin a fetch. An earlier one ends before this one uses what it has fetched."""
        if self._task is not None:
            self._task.cancel()
        name = f"fetch {action.index} for stream {action.stream_id}"
        self._task = watched_task(self._run(action), name, self._failed)

    async def _run(self, action: actions.FetchSnapshot) -> None:
        try:
            async with self._writing:
                snapshot = await self._fetch(action)
        except (*LINK_FAILURES, SnapshotRefused, MachineError, LogError) as error:
            reason = str(error) or type(error).__name__
            was, self.failure = self.failure, f"the snapshot at {action.index} of {action.leader_id}: {reason}"
            if self.failure != was:  # Else the journal has it.
                journal.warning("no snapshot was fetched", index=action.index, leader=action.leader_id, reason=reason)
            await asyncio.sleep(AGAIN_AFTER_S)
            self._step(events.FetchFailed(action.stream_id, reason))
        else:
            self._step(events.SnapshotFetched(action.stream_id, snapshot))

    async def _fetch(self, action: actions.FetchSnapshot) -> Snapshot:
        """Raises one of LINK_FAILURES, SnapshotRefused, MachineError, LogError."""
        address = self._address_of(action.leader_id)
        if address is None:
            raise SnapshotRefused(f"the address of {action.leader_id} is not known")
        leader = (action.leader_id, address)
        async with SnapshotFetch.dialled(self._session, self._me, leader, action.index, self._trust) as fetch:
            part = await _to_its_end(SnapshotPart.begin, self._store, await fetch.manifest())
            if part.manifest.index != action.index:
                raise SnapshotRefused(f"{action.leader_id} sent the one at {part.manifest.index}")
            check_usable(part.manifest)
            check_history(part.manifest, self._after.applying.applier)
            missing = await _to_its_end(part.missing)
            self._part, self._chunks = part, len(part.manifest.chunks) - len(missing)
            await put_all(part, fetch.chunks(missing), self._count)
        try:
            self._applier = await in_thread(part.restore, self._new_machine, self._new_sessions)
        except SnapshotDamaged:
            await _to_its_end(SnapshotPart.forget, self._store)
            raise
        boundary = part.manifest.boundary
        return Snapshot(*boundary.tail, boundary.members_index, boundary.epochs)

    def _count(self) -> None:
        self._chunks += 1

    def place_snapshot(self, index: int) -> None:
        """Make the fetched snapshot a valid one. Blocks; durable on return. Raises as `Installs.place_snapshot`."""
        part = self._part
        if part is None or part.manifest.index != index:
            raise OSError(f"no snapshot at {index} was fetched")
        part.complete()

    def snapshot_installed(self, index: int) -> None:
        """The log now begins at the fetched snapshot: replace the machine and remove the older snapshots."""
        applying = self._after.applying
        applying.continue_from(self.installed(index))
        older = [kept for kept in self._store.indices if kept < index]
        self._removing = watched_task(self._remove(older), f"removal of snapshots below {index}", self._failed)
        self._after.digests.installed(applying.applied_index, applying.digest)
        applying.visibility.grew()

    def installed(self, index: int) -> Applier:
        """The machine and the sessions of the snapshot that was just placed."""
        applier, self._applier, self._part, self.failure = self._applier, None, None, ""
        if applier is None or applier.applied_index != index:
            raise RuntimeError(f"the snapshot at {index} was installed but never read")
        journal.info("snapshot installed", index=index, snapshot=snapshot_name(index))
        return applier

    async def _remove(self, older: list[int]) -> None:
        try:
            await in_thread(self._store.remove_all, older)
        except OSError as error:  # They do no harm: the next snapshot's retention removes them.
            journal.error("older snapshots were not removed", indices=older, reason=str(error))

    async def stop(self) -> None:
        """Stop fetching; return when all writing has ended. Fetched chunks are kept."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        async with self._writing:  # The one before may not have ended.
            pass

    async def removed(self) -> None:
        """Return when no older snapshots are being removed."""
        if self._removing is not None:
            await asyncio.gather(self._removing, return_exceptions=True)

    def document(self) -> dict[str, object]:
        """For `/status`."""
        part = self._part
        return {
            "index": part.manifest.index if part else None,
            "chunks": len(part.manifest.chunks) if part else 0,
            "fetched_chunks": self._chunks if part else 0,
            "failure": self.failure,
        }
