"""A backup that is kept up to date goes on through outages of the store and of nodes, and says how far it lags."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from quire.cluster import client as quire_client
from quire.cluster.backup.keeper import Keeper, KeeperCollector
from quire.cluster.backup.run import Backup
from quire.cluster.backup.store import FolderStore, StoreFailed, StoreRefused
from quire.log import wall_clock
from tests.backup.backed_up import MACHINE
from tests.processes.cluster import DEADLINE_S, Cluster, Clusters


class Outage(FolderStore):
    """A folder that may be away."""

    is_away = False
    error = StoreFailed("the store is away")

    def put(self, key: str, data: bytes) -> None:
        if self.is_away:
            raise self.error
        super().put(key, data)


class Kept:
    """A keeper of one cluster, and what it said."""

    def __init__(self, cluster: Cluster, store: FolderStore) -> None:
        backup = Backup(store, wall_clock, lambda _: None)
        servers = cluster.servers.split(",")
        self.failed: list[str] = []
        self.ends: list[int] = []
        self.keeper = Keeper(backup, lambda: quire_client.connect(servers, timeout_s=1.0), servers, wall_clock)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Keep the backup until something holds."""
        task = asyncio.create_task(
            self.keeper.keep(0.02, lambda outcome: self.ends.append(outcome.manifest.end.index), self.failed.append)
        )
        async with asyncio.timeout(DEADLINE_S):
            while not holds():
                await asyncio.wait([task], timeout=0.02)
                assert not task.done(), task.exception()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def metrics(self) -> str:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(KeeperCollector(self.keeper))
        return generate_latest(registry).decode()


@pytest.mark.slow
def test_wrong_credentials_end_a_backup_that_never_ran_and_not_one_that_did(clusters: Clusters, tmp_path: Path) -> None:
    cluster, store = clusters.make(["n1"], flags=MACHINE), Outage(tmp_path / "b")
    cluster.start()
    store.error = StoreRefused("the store refuses the credentials")
    store.is_away = True
    with pytest.raises(StoreRefused):
        asyncio.run(Kept(cluster, store).keeper.keep(0.02, lambda _: None, lambda _: None))

    store.is_away = False
    kept = Kept(cluster, store)
    asyncio.run(kept.until(lambda: bool(kept.ends)))
    store.is_away = True
    cluster.leader.apply(["add", 1])
    asyncio.run(kept.until(lambda: bool(kept.failed)))
    store.is_away = False
    end = kept.ends[-1]
    asyncio.run(kept.until(lambda: kept.ends[-1] > end))


@pytest.mark.slow
def test_outages_of_the_store_and_of_nodes_are_survived_and_said(clusters: Clusters, tmp_path: Path) -> None:
    cluster, store = clusters.formed(flags=MACHINE), Outage(tmp_path / "b")
    kept = Kept(cluster, store)
    assert "an unknown number of records" in str(kept.keeper.lag)
    asyncio.run(kept.until(lambda: bool(kept.ends)))
    assert str(kept.keeper.lag).startswith("0 records")
    assert "quire_backup_lag_records 0.0" in kept.metrics()

    store.is_away = True
    cluster.leader.apply(["add", 1])
    asyncio.run(kept.until(lambda: len(kept.failed) >= 2))
    assert "the backup lags by an unknown number of records and" in kept.failed[0]
    assert "the store is away; trying again in" in kept.failed[0]
    assert "quire_backup_lag_records" not in kept.metrics()
    assert 'quire_backup_runs_total{result="failed"}' in kept.metrics()
    store.is_away = False
    end = kept.ends[-1]
    asyncio.run(kept.until(lambda: kept.ends[-1] > end))

    cluster["n3"].kill()
    cluster.leader.apply(["add", 1])
    end = int(cluster.leader.status()["applied_index"])
    asyncio.run(kept.until(lambda: kept.ends[-1] >= end))

    failures = len(kept.failed)
    cluster.kill_all()
    asyncio.run(kept.until(lambda: len(kept.failed) > failures))
    for node in cluster:
        node.start()
    cluster.wait_until_ready()
    cluster.leader.apply(["add", 1])
    end = int(cluster.leader.status()["applied_index"])
    asyncio.run(kept.until(lambda: kept.ends[-1] >= end))
    assert kept.keeper.failure == ""
