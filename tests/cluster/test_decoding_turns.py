"""Large bodies have turns of the loop of their own; under overload they are refused before they are decoded."""

import asyncio

import pytest

from quire.cluster.errors import Overloaded, StateUnavailable
from quire.cluster.http.admission.decoding import LARGE_BYTES, WAIT_S, DecodingTurns

LARGE = LARGE_BYTES + 1


class Caller:
    """Callers whose bodies are decoded, each with the number of the loop's turn in which that was."""

    def __init__(self, turns: DecodingTurns) -> None:
        self._turns = turns
        self._turn = 0
        self.decoded: list[tuple[str, int]] = []
        self.refused: list[str] = []
        self._count()

    def _count(self) -> None:
        self._turn += 1
        asyncio.get_running_loop().call_soon(self._count)

    async def send(self, name: str, size: int) -> None:
        try:
            await self._turns.turn(size)
        except (Overloaded, StateUnavailable):
            self.refused.append(name)
        else:
            self.decoded.append((name, self._turn))


def never() -> None:
    """The node takes writes."""


def always() -> StateUnavailable:
    return StateUnavailable("this node is still applying 7 records that were committed before it led")


async def test_each_large_body_is_decoded_in_a_turn_of_its_own_in_the_order_of_arrival() -> None:
    callers = Caller(DecodingTurns(never))

    await asyncio.gather(*(callers.send(name, LARGE) for name in "abcd"))

    assert [name for name, _ in callers.decoded] == ["a", "b", "c", "d"]
    assert len({turn for _, turn in callers.decoded}) == 4, callers.decoded


async def test_a_body_of_the_limit_is_decoded_at_once_and_one_past_it_waits() -> None:
    callers = Caller(DecodingTurns(never))

    await asyncio.gather(callers.send("first", LARGE), callers.send("large", LARGE), callers.send("at", LARGE_BYTES))

    assert [name for name, _ in callers.decoded] == ["first", "at", "large"]


async def test_a_caller_that_has_given_up_takes_nobody_s_turn() -> None:
    callers = Caller(DecodingTurns(never))
    tasks = [asyncio.create_task(callers.send(name, LARGE)) for name in "abc"]
    await asyncio.sleep(0)
    tasks[1].cancel()

    await asyncio.gather(*tasks, return_exceptions=True)

    assert [name for name, _ in callers.decoded] == ["a", "c"]


async def test_a_write_is_refused_undecoded_once_another_has_waited_for_the_limit() -> None:
    now = 0.0
    turns = DecodingTurns(never, clock=lambda: now)
    with pytest.raises(StopIteration):
        turns.turn(LARGE).send(None)  # It has the present turn of the loop, which does not end here.
    waiting = turns.turn(LARGE)
    waiting.send(None)

    now = WAIT_S
    at_the_limit = turns.turn(LARGE)
    at_the_limit.send(None)
    now = WAIT_S + 0.001
    with pytest.raises(Overloaded, match=r"^a write waits for at most 1 s to be decoded;"):
        turns.turn(LARGE).send(None)

    with pytest.raises(StopIteration):
        turns.turn(LARGE_BYTES).send(None)
    waiting.close()
    at_the_limit.close()


async def test_a_body_that_waited_for_longer_than_the_limit_is_not_decoded_and_the_next_one_is() -> None:
    now = 0.0
    callers = Caller(DecodingTurns(never, clock=lambda: now))
    tasks = [asyncio.create_task(callers.send(name, LARGE)) for name in "ab"]
    await asyncio.sleep(0)

    now = WAIT_S + 0.001
    await asyncio.gather(*tasks)
    await callers.send("c", LARGE)

    assert callers.refused == ["b"]
    assert [name for name, _ in callers.decoded] == ["a", "c"]


async def test_nothing_is_decoded_while_the_machine_is_behind() -> None:
    callers = Caller(DecodingTurns(always))

    await asyncio.gather(callers.send("small", 1), callers.send("large", LARGE))

    assert sorted(callers.refused) == ["large", "small"]


async def test_a_body_that_waited_is_not_decoded_if_the_machine_is_behind_by_then() -> None:
    behind = False
    callers = Caller(DecodingTurns(lambda: always() if behind else None))
    tasks = [asyncio.create_task(callers.send(name, LARGE)) for name in "ab"]
    await asyncio.sleep(0)

    behind = True
    await asyncio.gather(*tasks)

    assert callers.refused == ["b"]


async def test_a_stream_s_message_waits_and_is_not_refused() -> None:
    now = 0.0
    turns = DecodingTurns(always, clock=lambda: now)
    first = asyncio.create_task(turns.turn_of_stream())
    second = asyncio.create_task(turns.turn_of_stream())
    await asyncio.sleep(0)
    assert first.done()
    assert not second.done()

    now = 2 * WAIT_S
    await turns.turn_of_stream()

    await second


@pytest.mark.parametrize("size", [1, LARGE_BYTES])
async def test_a_small_body_never_waits(size: int) -> None:
    turns = DecodingTurns(never)
    for _ in range(100):
        turning = turns.turn(size)
        with pytest.raises(StopIteration):
            turning.send(None)
