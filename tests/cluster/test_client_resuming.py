"""A client that resumes a named session at a given sequence."""

import pytest

from quire.cluster.client import connect
from tests.cluster.streaming import streaming


async def test_a_resumed_session_answers_executed_commands_and_executes_only_the_rest() -> None:
    async with streaming() as server:
        async with connect(server.address, session="billing") as old:
            first = await old.apply_batch(["a", "b", "c"])
        async with connect(server.address, session="billing") as cluster:
            assert (await cluster.resume_at(2)).sequence == 3
            again = await cluster.apply_batch(["b", "c", "d"])

            assert again.results[:2] == first.results[1:]
            assert again.results[2] == int(str(first.results[2])) + 1
            assert server.streams[-1] == [(2, ["b", "c", "d"])]


async def test_a_session_resumes_neither_with_a_gap_nor_with_commands_in_flight() -> None:
    async with streaming() as server, connect(server.address, session="billing") as cluster:
        for sequence in (0, 2):
            with pytest.raises(ValueError, match="the session is at sequence 0"):
                await cluster.resume_at(sequence)
        server.answering.clear()
        future = await cluster.submit("a")
        with pytest.raises(ValueError, match="while commands are in flight"):
            await cluster.resume_at(1)
        server.answering.set()

        assert await future == 1
