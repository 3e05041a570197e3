"""The demo's record: what is counted as lost is what the log does not hold where a client was told that it does."""

import asyncio
from pathlib import Path

import pytest
from rich.console import Console

from quire.cluster.client import connect
from quire.cluster.demo.nodes import DemoFailed, DemoNodes
from quire.cluster.demo.scenario import Demo, under_load
from quire.cluster.demo.writers import BATCH_COMMANDS, Writers
from tests.cluster.running import RunningCluster, running_cluster


async def written(cluster: RunningCluster) -> Writers:
    writers = Writers(cluster.address("n1"), 2)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(writers.run())
        await writers.acknowledged(10 * BATCH_COMMANDS)
        writers.end()
    return writers


async def test_nothing_is_lost_where_all_that_was_acknowledged_stands_in_the_log(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1) as cluster, connect(cluster.address("n1")) as client:
        writers = await written(cluster)

        assert await writers.lost(client) == 0
        assert (await client.state()).state == str(42 + writers.sum)


async def test_commands_that_the_log_does_not_hold_at_their_index_are_lost(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1) as cluster, connect(cluster.address("n1")) as client:
        writers = await written(cluster)
        first, last = writers.record[0], writers.record[-1]
        writers.record[0] = first._replace(commands=[["add", -1], *first.commands[1:]])
        writers.record[-1] = last._replace(index=last.index + 10**6)

        assert await writers.lost(client) == 1 + BATCH_COMMANDS


async def test_whoever_waits_for_a_later_epoch_is_told_of_none_that_is_earlier(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        writers = Writers(cluster.address("n1"), 1)
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            tasks.create_task(writers.run())
            before = await writers.acknowledged(1)
            later = tasks.create_task(writers.acknowledged(1, above_epoch=before.epoch))
            await writers.acknowledged(10 * BATCH_COMMANDS)
            assert not later.done()
            await cluster.nodes["n1"].node.leadership.transfer("n2")
            assert (await later).epoch > before.epoch
            writers.end()


async def test_what_goes_wrong_in_a_demo_under_load_is_told_as_it_is(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1) as cluster:
        nodes = DemoNodes(tmp_path)
        nodes.addresses = {"n1": cluster.address("n1")}
        with pytest.raises(DemoFailed, match=r"^too busy$"):
            async with asyncio.timeout(60), under_load(Demo(nodes, Console(), asyncio.Event()), 1):
                raise DemoFailed("too busy")
