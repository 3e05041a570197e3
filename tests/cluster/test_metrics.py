"""`GET /metrics` of a real cluster."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from quire.cluster.node.digests import Difference
from quire.cluster.node.views.status import clock_alarms
from tests.cluster.running import RunningCluster, running_cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")

DEADLINE_S = 30
PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
EVERYWHERE = pytest.mark.parametrize("at", ["n1", "n3"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[RunningCluster, None]:
    async with running_cluster(tmp_path_factory.mktemp("metrics")) as running:
        yield running


async def samples(cluster: RunningCluster, at: str) -> dict[str, float]:
    """Every sample by its name and the values of its labels."""
    reply = await cluster.ask(at, "GET", "/metrics")
    assert reply.status == 200
    assert reply.headers["Content-Type"].startswith("text/plain; version=")
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(reply.body.decode())
        for sample in family.samples
    }


async def test_the_write_path_is_counted_where_it_runs(cluster: RunningCluster) -> None:
    before, behind = await samples(cluster, "n1"), await samples(cluster, "n3")

    await cluster.commands("n1", ["add", 1], ["add", 2])
    await cluster.commands("n3", ["add", 3])
    after = await samples(cluster, "n1")

    grown = {name: after[name] - before[name] for name in before if name.startswith("quire_write")}
    assert grown["quire_write_requests_total"] == 2
    assert grown["quire_write_commands_total"] == 3
    assert grown["quire_write_frames_total"] == 2
    assert grown["quire_write_payload_bytes_total"] > 10
    assert (await samples(cluster, "n3"))["quire_write_requests_total"] == behind["quire_write_requests_total"] == 0


@EVERYWHERE
async def test_indices_role_epoch_and_lag_are_the_status_s(cluster: RunningCluster, at: str) -> None:
    highest = (await cluster.ask("n1", "GET", "/index_bounds")).document["highest_index"]
    await cluster.ask(at, "GET", f"/records?from={highest - 1}&kinds=all&wait_ms=10000")

    shown, status = await samples(cluster, at), (await cluster.ask(at, "GET", "/status")).document

    for name in ("epoch", "highest_index", "durable_index", "commit_index", "applied_index", "log_bytes"):
        assert shown[f"quire_{name}"] == status[name], name
    assert shown[f"quire_role {status['role']}"] == 1
    assert sum(value for name, value in shown.items() if name.startswith("quire_role ")) == 1
    assert shown["quire_serving"] == float(at == "n1")
    assert shown["quire_ready"] == 1
    assert {"quire_lag_records", "quire_lag_bytes", "quire_lag_seconds"} <= set(shown)
    assert ("quire_node_lag_records n3" in shown) == (at == "n1")


@EVERYWHERE
async def test_snapshots_and_expiry_are_the_status_s(cluster: RunningCluster, at: str) -> None:
    await cluster.ask(at, "POST", "/admin/snapshot")

    shown, status = await samples(cluster, at), (await cluster.ask(at, "GET", "/status")).document

    newest = status["snapshots"]["kept"][-1]
    assert shown["quire_snapshot_index"] == newest["index"] > 0
    assert shown["quire_snapshot_bytes"] == newest["bytes"] > 0
    assert shown["quire_snapshot_pause_seconds"] == pytest.approx(status["snapshots"]["pause_ms"] / 1000)
    assert shown["quire_snapshot_failed"] == shown["quire_snapshots_damaged"] == 0
    assert shown["quire_expiry_floor_index"] == status["expiry"]["floor"]
    assert shown["quire_expired_segments_total"] == 0


@EVERYWHERE
async def test_answers_are_counted_by_route_whatever_callers_send(cluster: RunningCluster, at: str) -> None:
    before = await samples(cluster, at)

    for path in ("/records/99999", "/records/99998", "/nowhere", "/elsewhere"):
        await cluster.ask(at, "GET", path)
    await cluster.ask(at, "PATCH", "/nowhere")
    after = await samples(cluster, at)

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert grown("quire_http_answers_total GET /records/{index} 404") == 2
    assert grown("quire_http_answers_total GET unknown 404") == 2
    assert grown("quire_http_answers_total other unknown 404") == 1


async def test_the_write_path_s_steps_are_timed_where_they_run(cluster: RunningCluster) -> None:
    before = await samples(cluster, "n1")

    for _ in range(5):
        await cluster.commands("n1", ["add", 1])
    after = await samples(cluster, "n1")

    for name in ("quire_write_frame_seconds", "quire_flush_seconds"):
        assert after[f"{name}_count"] - before[f"{name}_count"] >= 5
        assert after[f"{name}_sum"] > before[f"{name}_sum"]
        buckets = [value for sample, value in after.items() if sample.startswith(f"{name}_bucket ")]
        assert buckets == sorted(buckets)
        assert after[f"{name}_bucket +Inf"] == after[f"{name}_count"]
    behind = await samples(cluster, "n3")
    assert behind["quire_write_frame_seconds_count"] == 0
    assert behind["quire_flush_seconds_count"] >= 5


async def test_every_metric_is_in_the_docs(cluster: RunningCluster) -> None:
    await cluster.commands("n1", ["add", 1])
    await cluster.ask("n1", "PUT", "/cursors/mail", b'{"index": 0}', "application/json")
    end = (await cluster.ask("n1", "GET", "/index_bounds")).document["highest_index"]
    await cluster.ask("n3", "GET", f"/records?from={end - 1}&kinds=all&wait_ms=10000")
    shown: dict[str, str] = {}
    for at in ("n1", "n3"):
        await cluster.nodes[at].node.components.cursor_lags.look()
        reply = await cluster.ask(at, "GET", "/metrics")
        for family in text_string_to_metric_families(reply.body.decode()):
            labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
            row = f"| `{family.name}` | {family.type} | {', '.join(labels)} | {family.documentation} |"
            shown[family.name] = row.replace("|  |", "| |")

    assert list(shown.values()) == [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]


async def test_a_node_with_another_digest_keeps_its_series_though_this_leader_does_not_hear_it(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    differing = {"n9": Difference(7, bytes(16), b"x" * 16)}
    monkeypatch.setattr(cluster.nodes["n1"].node.digests, "differing", differing)
    assert (await samples(cluster, "n1"))["quire_node_digest_differs n9"] == 1


async def test_metrics_take_no_parameters(cluster: RunningCluster) -> None:
    reply = await cluster.ask("n1", "GET", "/metrics?name=quire_epoch")

    assert (reply.status, reply.problem) == (400, "malformed")


async def test_a_clock_that_is_far_from_the_majoritys_is_an_alarm_and_one_somewhat_off_is_none() -> None:
    offsets_us = {"n1": 10_000_000, "n2": 11_000_000, "n3": -3_600_000_000}
    assert clock_alarms(offsets_us) == [
        "the clock of n2 is 11 s ahead of the majority's; set it right (NTP)",
        "the clock of n3 is 3600 s behind the majority's; set it right (NTP)",
    ]


async def test_a_leader_shows_how_far_each_voters_clock_is_off(cluster: RunningCluster) -> None:
    wanted = {f"quire_node_clock_offset_seconds {node}" for node in ("n1", "n2", "n3")}
    async with asyncio.timeout(DEADLINE_S):
        while True:  # An answer that is an election timeout old tells no clock.
            leader = (await cluster.ask("n1", "GET", "/status")).document["leader"] or "n1"
            shown = (await cluster.ask(leader, "GET", "/status")).document.get("clock_offsets_us", {})
            if wanted <= (await samples(cluster, leader)).keys() and len(shown) == 3:
                break
