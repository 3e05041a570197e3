"""Clients against a real cluster whose nodes end and come back: the state is the number of commands, to the last."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from quire.cluster.client import Client, CommandRefused, SessionFenced, connect, connect_sync
from quire.log import Value
from tests.cluster.running import RunningCluster, running_cluster

DEADLINE_S = 60


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncGenerator[RunningCluster, None]:
    async with running_cluster(tmp_path, initial=0) as running:
        yield running


def servers_of(cluster: RunningCluster) -> str:
    return ",".join(cluster.address(node_id) for node_id in cluster.nodes)


async def state(cluster: RunningCluster) -> int:
    return int((await cluster.ask("n2", "GET", "/state")).document["state"])


class Writer:
    """A client that adds ones, in singles and batches, until it is told to stop."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.ending = asyncio.Event()
        self.handed_in = 0
        self.answers: list[asyncio.Future[Any]] = []

    async def run(self) -> None:
        async with connect(self.servers, timeout_s=DEADLINE_S) as client:
            while not self.ending.is_set():
                await self._round(client)
            await asyncio.gather(*self.answers)

    async def _round(self, client: Client) -> None:
        for _ in range(20):
            self.answers.append(await client.submit(["add", 1]))
        self.answers.append(await client.submit_batch([["add", 1]] * 7))
        self.handed_in += 27
        await client.apply(["add", 1])
        self.handed_in += 1

    async def gets_on(self) -> None:
        """Return when more was answered than now."""
        goal = self.handed_in + 200
        async with asyncio.timeout(DEADLINE_S):
            while self.handed_in < goal:
                await asyncio.wait(self.answers[-1:] or [asyncio.ensure_future(asyncio.sleep(0))])


async def test_every_command_of_several_clients_executes_once_while_each_node_is_restarted(
    cluster: RunningCluster,
) -> None:
    everybody = servers_of(cluster)
    writers = [Writer(servers) for servers in (everybody, everybody, cluster.address("n2"), cluster.address("n3"))]
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        for writer in writers:
            tasks.create_task(writer.run())
        for node_id in ("n1", "n2", "n1", "n3"):
            await asyncio.gather(*(writer.gets_on() for writer in writers))
            await cluster.restart(node_id)
            await cluster.ready()
        await asyncio.gather(*(writer.gets_on() for writer in writers))
        for writer in writers:
            writer.ending.set()

    assert await state(cluster) == sum(writer.handed_in for writer in writers)


async def test_refused_commands_in_the_middle_take_nothing_with_them(cluster: RunningCluster) -> None:
    commands = [["div", 0] if number % 100 == 50 else ["add", 1] for number in range(5000)]
    async with connect(cluster.address("n3")) as client:
        answers = await asyncio.gather(*[await client.submit(it) for it in commands], return_exceptions=True)

    assert [type(answer) for answer in answers[:150:50]] == [str, CommandRefused, str]
    assert [int(answer) for answer in answers if isinstance(answer, str)] == list(range(1, 4951))
    assert await state(cluster) == 4950


async def test_of_two_holders_of_a_name_only_the_later_one_is_heard(cluster: RunningCluster) -> None:
    everybody = servers_of(cluster)
    async with connect(everybody, session="billing") as old, connect(everybody, session="billing") as new:
        await asyncio.gather(*[await old.submit(["add", 1]) for _ in range(100)])
        assert (await new.session()).sequence == 100
        assert await new.apply(["add", 1]) == "101"
        with pytest.raises(SessionFenced, match="taken over"):
            await old.apply(["add", 1])

    assert await state(cluster) == 101


async def test_the_blocking_client_pipelines_too(cluster: RunningCluster) -> None:
    def session() -> list[Value]:
        with connect_sync(servers_of(cluster), session="blocking") as client:
            answers = [client.submit(["add", 1]) for _ in range(500)]
            dropped = client.submit(["add", 1])
            dropped.cancel()
            with pytest.raises(CommandRefused):
                client.submit(["div", 0]).result(DEADLINE_S)
            return [answer.result(DEADLINE_S) for answer in answers]

    assert await asyncio.to_thread(session) == [str(number) for number in range(1, 501)]
    assert await state(cluster) == 501
