"""A fault of the program ends the node, wherever it shows: it is not ready, and its journal says where it was."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from structlog.testing import capture_logs
from structlog.typing import EventDict

from quire.cluster.config.serve import ServeConfig
from quire.cluster.node import components
from quire.cluster.node.node import Node
from quire.cluster.node.views.status import not_ready_reasons
from quire.replication.core import actions
from tests.cluster.running import RunningCluster, free_addresses, running_cluster, started
from tests.replication.loopback import DEADLINE_S, until


class Fault(Exception):
    """What no code here raises on purpose."""


def raises(*_arguments: object, **_options: object) -> Any:
    raise Fault("planted")


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncGenerator[RunningCluster]:
    async with running_cluster(tmp_path, 1) as running:
        yield running


async def ended(node: Node, journal: list[EventDict]) -> None:
    """Wait for the node's end; its journal has one traceback."""
    await asyncio.wait_for(node.health.ended.wait(), DEADLINE_S)
    assert node.health.failure == "a fault of this program: Fault('planted')"
    assert [str(line["exc_info"]) for line in journal if "exc_info" in line] == ["planted"]


def plant_in_a_tick(node: Node, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(node.components.replica.core, "_tick", raises)


def plant_in_what_is_told_aside(node: Node, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(node.components.replica.network, "offer_genesis", raises)


def plant_in_the_mark(node: Node, patch: pytest.MonkeyPatch) -> None:
    assert node.formed is not None
    patch.setattr(node.formed.log.mark_sync, "begin", raises)


def plant_in_the_expiry(node: Node, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(node.components.compaction.retention, "expire", raises)


def plant_in_the_removal_behind_an_install(node: Node, patch: pytest.MonkeyPatch) -> None:
    assert node.formed is not None
    applier = node.formed.applying.applier
    patch.setattr(node.components.compaction.installing, "installed", lambda index: applier)
    patch.setattr(node.components.compaction.store, "remove_all", raises)
    node.components.compaction.installing.snapshot_installed(applier.applied_index)


def plant_in_a_fetch(node: Node, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(node.components.compaction.installing, "_fetch", raises)
    node.components.compaction.installing.fetch_snapshot(actions.FetchSnapshot(1, "n2", 1))


def plant_in_a_slice_of_applying(node: Node, patch: pytest.MonkeyPatch) -> None:
    assert node.formed is not None
    applying = node.formed.applying
    patch.setattr(node.formed.log, "read_frames", raises)
    asyncio.get_running_loop().call_soon(applying.apply_to, applying.applier.applied_index + 1)


@pytest.mark.parametrize(
    "plant",
    [
        plant_in_a_tick,
        plant_in_what_is_told_aside,
        plant_in_the_mark,
        plant_in_the_expiry,
        plant_in_the_removal_behind_an_install,
        plant_in_a_fetch,
        plant_in_a_slice_of_applying,
    ],
)
async def test_a_node_with_a_fault_halts_is_not_ready_and_says_where(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch, plant: Callable[[Node, pytest.MonkeyPatch], None]
) -> None:
    node = cluster.nodes["n1"].node
    with capture_logs() as journal:
        plant(node, monkeypatch)
        await ended(node, journal)
    ready = await cluster.ask("n1", "GET", "/readyz")
    assert (ready.status, ready.document["reasons"]) == (503, [f"the node has halted: {node.health.failure}"])
    assert not (await cluster.ask("n1", "GET", "/status")).document["serving"]
    monkeypatch.undo()
    await asyncio.wait_for(node.stop(), DEADLINE_S)  # As its process does once a node has ended.


async def test_snapshots_that_cannot_be_removed_behind_an_install_are_told_and_no_fault(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_indices: list[int]) -> None:
        raise OSError("planted")

    node = cluster.nodes["n1"].node
    assert node.formed is not None
    applier = node.formed.applying.applier
    monkeypatch.setattr(node.components.compaction.installing, "installed", lambda index: applier)
    monkeypatch.setattr(node.components.compaction.store, "remove_all", fails)
    with capture_logs() as journal:
        node.components.compaction.installing.snapshot_installed(applier.applied_index)
        await until(lambda: any(line["event"] == "older snapshots were not removed" for line in journal))
    assert node.health.failure is None


async def test_a_fault_while_the_cluster_is_formed_ends_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members: dict[str, str] = dict(zip(("n1", "n2"), free_addresses(2), strict=True))
    monkeypatch.setattr(components, "make_genesis", raises)
    configs = [
        ServeConfig(node=node_id, listen=address, members=members, data_dir=tmp_path / node_id)
        for node_id, address in members.items()
    ]
    with capture_logs() as journal:
        running = [await started(config) for config in configs]
        await ended(running[0].node, journal)  # The lowest id forms the cluster, once both are there.
    assert not_ready_reasons(running[0].node) == [f"the node has halted: {running[0].node.health.failure}"]
    for one in running:
        await asyncio.wait_for(one.stop(), DEADLINE_S)
