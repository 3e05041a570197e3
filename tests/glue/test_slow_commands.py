"""What makes commands slow is told: in the histogram of its part, in the journal, and as a problem while it lasts."""

import asyncio
from collections.abc import Iterable, Iterator
from random import Random
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from quire.log import pack, unpack
from quire.sm import Context
from tests.glue.cluster import Cluster
from tests.glue.host import GlueDisk, below
from tests.glue.loop import run_until_end
from tests.glue.network import GlueLoop

FORM_S, LOOK_S = 60.0, 0.2
SLOW_MS = 100
TAKES_MS = 150  # Less than an election timeout, and than what makes a disk unfit.
OVER_S = 30.0
BUCKET_S = 0.1
METRICS = {
    "check": "quire_write_check_seconds",
    "queue": "quire_write_queue_seconds",
    "flush": "quire_flush_seconds",
    "majority": "quire_write_majority_seconds",
    "apply": "quire_apply_seconds",
}
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Sleepy:
    """A machine that blocks the loop of one node: at [step, node], in that step."""

    name = "sleepy"
    version = 1
    quick = True

    def __init__(self, initial: Any) -> None:
        self._applied = 0

    def check(self, command: Any) -> None:
        """Block at ["check", node]; have the loop blocked before the command is appended at ["queue", node]."""
        _block("check", command)
        asyncio.get_running_loop().call_soon(_block, "queue", command)

    def apply(self, command: Any, context: Context) -> int:
        """Block at ["apply", node]; count it."""
        _block("apply", command)
        self._applied += 1
        return self._applied

    def query(self, request: Any) -> int:
        """How many were applied."""
        return self._applied

    def snapshot(self) -> Iterator[bytes]:
        """The count as bytes."""
        return iter((pack(self._applied),))

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Take it back."""
        count: Any = unpack(b"".join(chunks))
        self._applied = count


def _block(step: str, command: Any) -> None:
    loop: Any = asyncio.get_running_loop()
    if command == [step, loop.owner.name]:
        loop.block(TAKES_MS / 1000)


async def leader_of(cluster: Cluster) -> str:
    deadline = cluster.loop.time() + FORM_S
    while cluster.loop.time() < deadline:
        for host in cluster.hosts.values():
            if host.node is not None and host.node.leadership.is_leader:
                return host.node_id
        await cluster.loop.after(LOOK_S)
    raise AssertionError("nobody leads")


async def told(cluster: Cluster, node_id: str) -> list[str]:
    """What a node's status says about slow commands."""
    status = await cluster.ask(node_id, "/status", method="GET")
    return [alarm for alarm in status.document["alarms"] if alarm.startswith("commands are slow")]


async def above(cluster: Cluster, node_id: str, metric: str) -> float:
    """How many samples of a histogram are above BUCKET_S."""
    answer = await cluster.ask(node_id, "/metrics", method="GET")
    counts = {
        sample.labels.get("le", ""): sample.value
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
        if sample.name == f"{metric}_bucket"
    }
    return counts["+Inf"] - counts[str(BUCKET_S)]


@pytest.mark.parametrize("part", METRICS)
def test_what_makes_commands_slow_is_told_by_its_part_and_until_it_is_over(part: str) -> None:
    loop, disks = GlueLoop(Random(1)), dict[str, GlueDisk]()
    settings = {"machine": f"{__name__}:Sleepy", "slow_command_ms": SLOW_MS}
    cluster = Cluster(loop, part, disks, settings)

    async def run() -> None:
        cluster.add_hosts(3, 3)
        await cluster.open()
        await asyncio.gather(*(cluster.start(node_id) for node_id in cluster.hosts))
        leader = await leader_of(cluster)
        command = {"commands": [[part, leader]]}
        for _ in range(3):
            assert (await cluster.ask(leader, "/commands", {"commands": [["quick"]]})).status == 200
        assert await told(cluster, leader) == []
        before = {each: await above(cluster, leader, metric) for each, metric in METRICS.items()}

        slow = {"flush": {leader}, "majority": disks.keys() - {leader}}.get(part, set())
        for node_id in slow:
            disks[node_id].lowest_us = disks[node_id].highest_us = TAKES_MS * 1000
        for _ in range(4):
            answer = await cluster.ask(leader, "/commands", command, headers={"traceparent": TRACE})
            assert answer.status == 200
            await loop.after(1.0)

        [alarm] = await told(cluster, leader)
        assert alarm.startswith(f"commands are slow: {part} took up to ")
        after = {each: await above(cluster, leader, metric) for each, metric in METRICS.items()}
        assert {each for each in METRICS if after[each] > before[each]} == {part}
        recent = (await cluster.ask(leader, "/status", method="GET")).document["commands"]
        assert recent["p99_ms"] >= TAKES_MS
        assert 0 < recent["per_second"] < 2

        for node_id in slow:
            disks[node_id].lowest_us, disks[node_id].highest_us = 100, GlueDisk.HIGHEST_US
        await loop.after(OVER_S)
        assert await told(cluster, leader) == []
        assert await leader_of(cluster) == leader
        await cluster.session.close()

    with below(loop, disks, part), capture_logs(processors=[merge_contextvars]) as journal:
        run_until_end(loop, run())

    lines = [line for line in journal if line["event"] == "slow command"]
    assert len(lines) == 4
    for line in lines:
        assert line["command"] == part
        assert (line["traceparent"], line["session"]) == (TRACE, 0)
        times = {name: line[f"{name}_ms"] for name in METRICS}
        assert max(times, key=lambda name: times[name]) == part
        assert SLOW_MS < times[part] <= line["took_ms"]
