"""How a client's stream forms its messages, their limits, and what is refused before it is sent."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from quire.cluster.client import BadRequest, BatchReply, connect
from quire.cluster.client.pipeline import WINDOW_BYTES
from tests.cluster.streaming import DEADLINE_S, MESSAGE_BYTES, answers_of, streaming


@pytest.fixture(autouse=True)
def _endless_gathering(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message takes all submissions, even if the test machine pauses between two calls."""
    monkeypatch.setattr("quire.cluster.client.pipeline.GATHERING_S", DEADLINE_S)


async def test_commands_submitted_together_leave_as_one_message_in_order() -> None:
    async with streaming() as server, connect(server.address) as cluster:
        await cluster.apply("first")
        futures = [await cluster.submit(f"c{number}") for number in range(100)]
        batch = await cluster.submit_batch(["b1", "b2"])

        assert await answers_of(*futures) == list(range(2, 102))
        assert await batch == BatchReply(103, 1, [102, 103], []) or (await batch).results == [102, 103]
        assert server.streams == [[(1, ["first"]), (2, [f"c{number}" for number in range(100)] + ["b1", "b2"])]]


async def test_a_message_takes_at_most_1024_single_commands_and_never_splits_a_batch() -> None:
    async with streaming() as server, connect(server.address) as cluster:
        await cluster.apply("first")
        server.answering.clear()
        futures: list[asyncio.Future[Any]] = [await cluster.submit("held back")]
        await server.heard(2)
        futures += [await it for it in [cluster.submit("s") for _ in range(1025)]]
        futures += [await cluster.submit_batch(["b"] * commands) for commands in (1023, 1, 5, 3000, 1)]
        server.answering.set()
        await answers_of(*futures)

        assert [len(commands) for _, commands in server.streams[0][2:]] == [1024, 1, 1023 + 1, 5, 3000, 1]
        assert all(one + len(commands) == other for (one, commands), (other, _) in pairwise(server.streams[0]))


async def test_a_message_takes_at_most_512_kib() -> None:
    piece = "x" * 1000  # 3 bytes more as msgpack
    fitting = (512 << 10) // 1003
    async with streaming() as server, connect(server.address) as cluster:
        await cluster.apply("first")
        await answers_of(*[await cluster.submit(piece) for _ in range(fitting + 1)])

        assert [len(commands) for _, commands in server.streams[0][1:]] == [fitting, 1]


async def test_a_message_takes_no_command_submitted_long_after_its_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.cluster.client.pipeline.GATHERING_S", -1)  # Each is too late for the previous one.
    async with streaming() as server, connect(server.address) as cluster:
        await cluster.apply("first")
        await answers_of(*[await cluster.submit("x") for _ in range(3)])

        assert [len(commands) for _, commands in server.streams[0][1:]] == [1, 1, 1]


async def test_with_16_messages_in_flight_new_commands_gather_in_one_message() -> None:
    async with streaming() as server, connect(server.address) as cluster:
        await cluster.apply("first")
        server.answering.clear()
        futures = []
        for _ in range(20):
            futures.append(await cluster.submit("x"))
            await cluster.ready(server.address)  # The loop gets its turn.
        server.answering.set()
        await answers_of(*futures)

        assert [len(commands) for _, commands in server.streams[0][1:]] == [1] * 16 + [4]


async def test_a_full_window_blocks_submit() -> None:
    async with streaming(window=10) as server, connect(server.address) as cluster:
        server.answering.clear()
        futures = [await cluster.submit(number) for number in range(10)]
        waiting = asyncio.ensure_future(cluster.submit("eleventh"))
        await server.heard(1)
        assert not waiting.done()

        server.answering.set()
        assert await (await waiting) == 11
        assert await answers_of(*futures) == list(range(1, 11))


async def test_a_full_window_of_bytes_blocks_submit() -> None:
    eighth = "x" * ((512 << 10) - 5)
    async with streaming() as server, connect(server.address) as cluster:
        await cluster.apply("first")
        server.answering.clear()
        futures = [await cluster.submit(eighth) for _ in range(8)]
        waiting = asyncio.ensure_future(cluster.submit(""))
        await server.heard(2)
        assert not waiting.done()

        server.answering.set()
        assert await (await waiting) == 10
        assert await answers_of(*futures) == list(range(2, 10))


async def test_a_command_larger_than_the_window_of_bytes_is_sent_once_nothing_is_in_flight() -> None:
    large = "x" * (2 * WINDOW_BYTES)
    async with streaming(message_bytes=3 * WINDOW_BYTES) as server, connect(server.address) as cluster:
        await cluster.apply("first")
        server.answering.clear()
        before = await cluster.submit("before")
        waiting = [asyncio.ensure_future(cluster.submit(command)) for command in (large, "after", large)]
        await server.heard(2)
        assert not any(submitting.done() for submitting in waiting)

        server.answering.set()
        assert await before == 2
        assert [await (await submitting) for submitting in waiting] == [3, 4, 5]
        assert (await cluster.apply_batch([large])).results == [6]
        assert [len(commands) for _, commands in server.streams[0]] == [1] * 6


async def test_a_batch_larger_than_the_window_is_refused_before_anything_is_sent() -> None:
    async with streaming(window=10) as server, connect(server.address) as cluster:
        assert (await cluster.apply_batch(["x"] * 10)).results[-1] == 10
        with pytest.raises(BadRequest, match="is 11, above the limit of 10") as refused:
            await cluster.apply_batch(["x"] * 11)
        assert refused.value.status == 413
        assert server.executed == ["x"] * 10


async def test_a_command_as_large_as_the_message_limit_is_sent_and_a_larger_one_refused() -> None:
    # 5 bytes of an array's head and 5 of the text's
    fits = "x" * (MESSAGE_BYTES - 10)
    async with streaming() as server, connect(server.address) as cluster:
        assert await cluster.apply(fits) == 1
        with pytest.raises(BadRequest, match="above the limit of 1048576"):
            await cluster.apply(fits + "x")
        assert await cluster.apply("next") == 2
        assert len(server.executed) == 2


async def test_empty_batches_and_values_that_msgpack_cannot_hold_are_refused_at_once() -> None:
    async with streaming() as server, connect(server.address) as cluster:
        for wrong in (cluster.submit_batch([]), cluster.submit(object()), cluster.submit(2**64)):
            with pytest.raises(BadRequest):
                await wrong
        assert server.calls == []


async def test_a_client_that_writes_nothing_opens_no_session_and_one_that_does_closes_it() -> None:
    async with streaming() as server:
        async with connect(server.address):
            pass
        assert server.calls == []
        async with connect(server.address) as cluster:
            await asyncio.gather(cluster.apply(1), cluster.apply(2))
        assert server.calls == [("POST", "/sessions"), ("DELETE", "/sessions/10")]
