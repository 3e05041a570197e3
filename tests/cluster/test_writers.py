"""The demo's writers count a command as lost if the log does not hold it at its acknowledged index."""

import asyncio
from pathlib import Path

import pytest

from quire.cluster.cli.console import EscapingConsole
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


async def test_nothing_is_lost_if_the_log_holds_every_acknowledged_command(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1) as cluster, connect(cluster.address("n1")) as client:
        writers = await written(cluster)

        assert await writers.lost(client) == 0
        assert (await client.state()).state == str(42 + writers.sum)


async def test_commands_that_are_not_at_their_acknowledged_index_are_lost(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1) as cluster, connect(cluster.address("n1")) as client:
        writers = await written(cluster)
        first, last = writers.record[0], writers.record[-1]
        writers.record[0] = first._replace(commands=[["add", -1], *first.commands[1:]])
        assert last.index is not None
        writers.record[-1] = last._replace(index=last.index + 10**6)

        assert await writers.lost(client) == 1 + BATCH_COMMANDS


async def test_a_batch_without_an_index_is_lost_if_the_log_holds_it_nowhere(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1) as cluster, connect(cluster.address("n1")) as client:
        writers = await written(cluster)
        first, last = writers.record[0], writers.record[-1]
        writers.record[0] = first._replace(index=None)
        assert await writers.lost(client) == 0
        writers.record[-1] = last._replace(index=None, commands=[["add", -1], *last.commands[1:]])

        assert await writers.lost(client) == 1


async def test_waiting_for_a_later_epoch_ignores_commands_of_earlier_ones(tmp_path: Path) -> None:
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


async def test_an_error_in_a_demo_under_load_is_raised_unwrapped(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1) as cluster:
        nodes = DemoNodes(tmp_path)
        nodes.addresses = {"n1": cluster.address("n1")}
        with pytest.raises(DemoFailed, match=r"^too busy$"):
            async with asyncio.timeout(60), under_load(Demo(nodes, EscapingConsole(), asyncio.Event()), 1):
                raise DemoFailed("too busy")
