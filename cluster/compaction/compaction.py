"""Compaction keeps a node's disk bounded and its restart short: snapshots, expiry and installs.

It writes the snapshot store; segments are removed by the driver. Of the node it knows the machine that it snapshots,
and what continues after an install (`AfterInstall`).
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import structlog
from aiohttp import ClientSession

from quire.log import Expirable, LogError
from quire.replication import Disk, Replica
from quire.replication.net.snapshots import SnapshotServer
from quire.replication.replica import watched_task
from quire.sm import Sessions, SnapshotStore, StateMachine

from ..config.serve import ServeConfig
from ..errors import StateUnavailable
from ..node.writing import Waiter
from .installing import AfterInstall, Installing
from .retention import EXPIRY_PAUSE_S, Limits, Needed, Retention
from .serving import SnapshotReads, StoreSource
from .snapshotting import SnapshotOptions, Snapshotting

journal = structlog.get_logger(__name__)


class Factories(NamedTuple):
    """Make this cluster's machine and session table, in their initial state."""

    machine: Callable[[], StateMachine]
    sessions: Callable[[], Sessions]


class Compaction:
    """One node's compaction. All methods run on the event loop; `failed` is called with an error that ends the node."""

    def __init__(
        self,
        store: SnapshotStore,
        disk: Disk,
        replica: Replica[Waiter],
        after: AfterInstall,
        factories: Factories,
        session: ClientSession,
        config: ServeConfig,
        failed: Callable[[Exception], None],
        needed: Callable[[], Sequence[Needed] | None],
    ) -> None:
        """`session` is for dialling peers; `needed` is as in `Retention`."""
        trust, me = replica.network.trust, replica.network.me
        self.store = store
        self.snapshotting = Snapshotting(
            store,
            after.applying,
            SnapshotOptions(config.snapshot_records, config.snapshot_log_bytes),
            lambda: min(replica.core.commit_index, disk.log.durable_index),
            lambda: replica.core.status().may_snapshot,
            lambda: [*_being_installed(replica), *self.server.served, *self.reads.pinned],
            failed,
        )
        self.reads = SnapshotReads(store)
        self.server = SnapshotServer(me, StoreSource(store), trust, replica.network.link_server.admit)
        self.installing = Installing(
            store,
            replica.driver.step,
            factories.machine,
            factories.sessions,
            (session, me, trust),
            replica.network.address_of,
            after,
            failed,
        )
        limits = Limits(config.retention_bytes, config.retention_ms, config.retention_follower_bytes)
        self.retention = Retention(
            disk,
            replica.core.status,
            replica.lags.positions,
            replica.driver.expire,
            lambda: store.manifests,
            limits,
            needed,
        )
        self._failed = failed
        self._expiring: asyncio.Task[None] | None = None
        self._expiries: set[asyncio.Future[Expirable]] = set()
        self._stopped = False

    def start(self) -> None:
        """Start to expire the log, and to replace lost snapshots, once a second."""
        self._expiring = watched_task(self._expire_forever(), "expiry", self._failed)

    async def stop(self) -> None:
        """Stop; return when all writing has ended."""
        self._stopped = True
        if self._expiring is not None:
            self._expiring.cancel()
        for expiry in list(self._expiries):
            expiry.cancel()
        await self.server.close()
        await self.installing.stop()
        await self.snapshotting.stop()
        await self.installing.removed()

    async def expire(self, *, dry_run: bool) -> Expirable:
        """Remove the expirable segments of this node's log now, or only return what would be removed.

        Raises:
            StateUnavailable: the log or the snapshots cannot be read or written, or this node stops.
        """
        try:
            return self.retention.due() if dry_run else await self._expire()
        except LogError as error:
            self._failed(error)
            raise StateUnavailable(str(error)) from error
        except asyncio.CancelledError:
            if not self._stopped:
                raise
            raise StateUnavailable("this node stops") from None

    async def _expire(self) -> Expirable:
        """Return what was removed, including what another caller began to remove meanwhile."""
        ended: asyncio.Future[Expirable] = asyncio.get_running_loop().create_future()
        self._expiries.add(ended)
        ended.add_done_callback(self._expiries.discard)
        try:
            if is_due := self.retention.due().segments > 0:
                await self.snapshotting.check_newest()
        except BaseException:
            ended.cancel()
            raise
        if not ended.done():  # Otherwise this node stops.
            self.retention.expire(lambda gone: None if ended.done() else ended.set_result(gone), checked=is_due)
        gone = await ended
        if gone.segments:
            journal.info("expired", segments=gone.segments, to_index=gone.to_index, size=gone.size)
        return gone

    async def _expire_forever(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_PAUSE_S)
            with suppress(StateUnavailable):  # It was logged, and `/status` says it.
                await self._expire()
            await self.snapshotting.replace_damaged()

    def document(self) -> dict[str, object]:
        """For `/status`."""
        return {
            "snapshots": self.snapshotting.document(),
            "install": self.installing.document(),
            "expiry": self.retention.document(),
        }


def _being_installed(replica: Replica[Waiter]) -> list[int]:
    """Indices of the snapshots that followers of this leader must fetch."""
    leader = replica.core.status().leader
    return [] if leader is None else [install.snapshot_index for install in leader.installs]
