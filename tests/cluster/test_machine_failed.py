"""A node whose machine has failed: every write is answered, no state is read, and the reason is told."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from quire.cluster.errors import OutcomeUnknown, StateUnavailable
from quire.cluster.node.node import Node
from quire.cluster.node.pending import FutureWaiter
from quire.log import pack
from quire.replication import Write
from quire.sm import ApplyFailed
from tests.cluster.running import running_cluster

MOODY = "tests.cluster.machines:Moody"
DEADLINE_S = 20.0


def proposed(node: Node, *commands: Any, applied: bool = True) -> FutureWaiter:
    """A write that is on its way."""
    waiter = FutureWaiter(applied=applied)
    node.propose(Write(pack(list(commands)), len(commands), owner=waiter))
    return waiter


@pytest.mark.asyncio
async def test_every_write_that_was_on_its_way_when_the_machine_failed_is_answered(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1, machine=MOODY) as cluster, asyncio.timeout(DEADLINE_S):
        node = cluster.nodes["n1"].node
        assert node.formed is not None
        applier = node.formed.applying.applier
        failing, waiters = proposed(node, "apply fails"), list[FutureWaiter]()
        while applier.failure is None:  # A write a turn: some are appended before the failure, some after it.
            waiters.append(proposed(node, "well", applied=bool(len(waiters) % 2)))
            await asyncio.sleep(0)
        with pytest.raises(OutcomeUnknown, match="KeyError: 'apply fails'"):
            await failing.reply
        outcomes = await asyncio.gather(*(waiter.reply for waiter in waiters), return_exceptions=True)
        assert outcomes
        assert all(isinstance(outcome, OutcomeUnknown) for outcome in outcomes[1::2])
        with pytest.raises(StateUnavailable, match="nothing can be answered here"):
            proposed(node, "well")
        for consistency in ("linearizable", "leader", "local"):
            refused = await cluster.ask("n1", "GET", f"/state?consistency={consistency}")
            assert (refused.status, refused.problem) == (503, "state-unavailable")


@pytest.mark.asyncio
async def test_a_write_that_is_appended_only_after_the_machine_failed_is_answered(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1, machine=MOODY) as cluster, asyncio.timeout(DEADLINE_S):
        node = cluster.nodes["n1"].node
        assert node.formed is not None
        failure = ApplyFailed(index=node.applied_index, text="apply raised MemoryError")
        waiters = [proposed(node, "well", applied=applied) for applied in (True, False)]
        node.formed.applying.applier.failure = failure  # In one turn of the loop: none was appended yet.
        node.apply_failed(failure)
        for waiter in waiters:
            with pytest.raises(OutcomeUnknown, match="apply raised MemoryError"):
                await waiter.reply


@pytest.mark.asyncio
async def test_without_memory_beside_the_machine_the_node_halts_and_every_caller_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the machine never saw is no failure of the machine: a restart applies it."""

    def no_memory(*_: object) -> None:
        raise MemoryError("says the test")

    async with running_cluster(tmp_path, 1, machine=MOODY) as cluster, asyncio.timeout(DEADLINE_S):
        node = cluster.nodes["n1"].node
        assert node.formed is not None
        with monkeypatch.context() as lacking:
            lacking.setattr("quire.sm.applier.decode_values", no_memory)
            write = proposed(node, "well")
            read = asyncio.ensure_future(node.formed.applying.reached(node.applied_index + 1))
            with pytest.raises(OutcomeUnknown, match="MemoryError"):
                await write.reply
            with pytest.raises(Exception, match="interrupted"):
                await read
        assert node.failure is not None
        assert "MemoryError('says the test')" in node.failure
        await cluster.restart("n1")
        await cluster.ready()
        assert (await cluster.ask("n1", "GET", "/state")).document["state"] == "well"
