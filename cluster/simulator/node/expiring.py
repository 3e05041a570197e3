"""The expiry of a simulated node's segments, by the shipped rules and on the node's clock."""

from collections.abc import Callable

from quire.log import Expiry, LogError
from quire.replication import Disk
from quire.replication.core import Core
from quire.replication.driver import Driver
from quire.sm import SnapshotStore

from ...compaction.retention import Limits, Retention
from ..clock import MILLISECOND
from .life import Life
from .role import Health
from .writes import Proposer

EXPIRY_US = 150 * MILLISECOND


class Expiring:
    """Expires segments again and again, each of them under the checks."""

    def __init__(
        self, life: Life, disk: Disk, core: Core, driver: Driver[Proposer], snapshots: SnapshotStore, health: Health
    ) -> None:
        self._life = life
        self._disk = disk
        self._core = core
        self._driver = driver
        self._snapshots = snapshots
        self._health = health

    def begin(self) -> None:
        """Expire segments after a while, and again."""
        self._life.later(EXPIRY_US, self._expire_all)

    def _expire_all(self) -> None:
        form, log = self._life.form, self._disk.log
        if form.retention_bytes and log.failure is None and not self._health.halt_reason:
            limits = Limits(form.retention_bytes, 0, form.retention_follower_bytes)
            clock = self._life.node.clocks.clock
            # Nobody reports positions here.
            manifests = self._snapshots
            retention = Retention(
                self._disk, self._core.status, {}, self._expire, lambda: manifests.manifests, limits, clock=clock
            )
            try:
                self._snapshots.check_newest()
                retention.expire(lambda _: None, checked=True)
            except LogError as error:
                self._driver.log_failed(error)
                return
        self.begin()

    def _expire(self, begin: Callable[[], Expiry | None]) -> None:
        """Remove the segments that `begin` takes out of the log, each of them under the checks."""
        self._driver.expire(lambda: self._begin(begin))

    def _begin(self, begin: Callable[[], Expiry | None]) -> Expiry | None:
        node, checks = self._life.node, self._life.checks
        before, needed = self._disk.log.bounds.lowest_index, checks.needed(node)
        expiry = begin()
        checks.expired(node, before, needed)
        return expiry
