"""A backup that is kept up to date: a run at each interval, through outages of the store and of nodes, and its lag."""

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from quire.log import time_since_boot

from ..client import Client, ClientError, Forbidden, Unauthorized
from .manifest import BackupInvalid
from .run import Backup, Outcome
from .store import StoreFailed, StoreRefused

MICROSECONDS = 1_000_000
RETRY_S = (1.0, 60.0)
"""The pauses after failed runs: the first, and the longest."""

Temporary = (ClientError, StoreFailed, BackupInvalid)
"""What may be over at the next run: a node that sends damaged frames may not be the one that is chosen then."""


Misconfigured = (StoreRefused, Unauthorized, Forbidden)
"""What is wrong from the start unless it was right before, as when credentials are being replaced."""


class Lag(NamedTuple):
    """What the backup lacks: records (None if no node says), and for how many seconds it has been so, at most."""

    records: int | None
    seconds: float

    def __str__(self) -> str:
        records = "an unknown number of" if self.records is None else f"{self.records:,}"
        return f"{records} records and {self.seconds:.0f} s"


class Keeper:
    """Runs a backup again and again. Its attributes are for metrics, which another thread reads."""

    def __init__(
        self,
        backup: Backup,
        new_client: Callable[[], Client],
        servers: Sequence[str],
        clock: Callable[[], int],
        prepare: Callable[[], None] = lambda: None,
        now: Callable[[], int] = time_since_boot,
    ) -> None:
        """`prepare` blocks, and is called until it succeeds, before any run.

        `clock` gives microseconds since 1970, `now` those since boot. Lags are by `now`; `clock` only tells the age of
        the manifest that is there before the first run.
        """
        self._prepare: Callable[[], None] | None = prepare
        self._backup = backup
        self._new_client = new_client
        self._servers = servers
        self._clock = clock
        self._last: Outcome | None = None
        self._now = now
        self._began = self._level_at = now()
        self.failure = ""
        """Why the last run failed; empty if it did not."""
        self.runs, self.failures, self.put_bytes = 0, 0, 0

    @property
    def lag(self) -> Lag:
        """What the backup lacks now, as far as the last run knows."""
        seconds = (self._now() - self._level_at) / MICROSECONDS
        if self._last is None or self.failure:
            return Lag(None, seconds)
        return Lag(self._last.committed - self._last.manifest.end.index, seconds)

    @property
    def end(self) -> int:
        """Where the last manifest ends; 0 before the first run."""
        return 0 if self._last is None else self._last.manifest.end.index

    async def run(self) -> Outcome:
        """One run. Raises as `Backup.run`."""
        began = self._now()
        try:
            if self._prepare is not None:
                await asyncio.to_thread(self._prepare)
                self._prepare = None
            async with self._new_client() as client:
                outcome = await self._backup.run(client, self._servers)
        except Temporary as error:
            self.failures += 1
            self.failure = str(error)
            if self._last is None and self._backup.last_time is not None:
                self._level_at = min(self._level_at, self._now() - (self._clock() - self._backup.last_time))
            raise
        self.runs += 1
        self.put_bytes += outcome.size
        end, before = outcome.manifest.end.index, self._last
        if end >= outcome.committed:
            self._level_at = began
        elif before is None:
            self._level_at = began - outcome.age
        elif end >= before.committed:  # It has all that there was at the last run.
            self._level_at = self._began
        self.failure, self._last, self._began = "", outcome, began
        return outcome

    async def keep(self, every_s: float, done: Callable[[Outcome], None], failed: Callable[[str], None]) -> None:
        """Run every `every_s` seconds until cancelled. `failed` gets a sentence about each failed run.

        Raises:
            BackupRefused: another writer or history has the place; only an operator can end that.
            StoreRefused, Unauthorized, Forbidden: before any run has succeeded.
        """
        pause = RETRY_S[0]
        while True:
            try:
                done(await self.run())
            except Temporary as error:
                if isinstance(error, Misconfigured) and not self.runs:
                    raise
                failed(f"the backup lags by {self.lag}: {error}; trying again in {pause:.0f} s")
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(pause * 2, every_s, RETRY_S[1])
            else:
                pause = RETRY_S[0]
                await asyncio.sleep(every_s)


class KeeperCollector(Collector):
    """The metrics of a keeper, read at the scrape."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    def collect(self) -> Iterator[Metric]:
        """Every metric, with its value now."""
        keeper, lag = self._keeper, self._keeper.lag
        yield GaugeMetricFamily("quire_backup_lag_seconds", "For how long the backup may lack records", lag.seconds)
        if lag.records is not None:
            text = "Committed records that the last run left out"
            yield GaugeMetricFamily("quire_backup_lag_records", text, lag.records)
        yield GaugeMetricFamily("quire_backup_end_index", "The end of the last manifest", keeper.end)
        runs = CounterMetricFamily("quire_backup_runs", "Runs of the backup", labels=["result"])
        runs.add_metric(["done"], keeper.runs)
        runs.add_metric(["failed"], keeper.failures)
        yield runs
        yield CounterMetricFamily("quire_backup_put_bytes", "Bytes written to the store", keeper.put_bytes)


def serve_metrics(keeper: Keeper, host: str, port: int) -> None:
    """Serve the metrics of a keeper at http://host:port/metrics, in a thread, until the process ends.

    Raises:
        OSError: the port cannot be used.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(KeeperCollector(keeper))
    start_http_server(port, host, registry)
