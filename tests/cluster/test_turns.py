"""Work of many callers: so much of it in a turn of the loop, the shares one after the other, and so many may wait."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Self

import pytest

from quire.cluster.errors import Overloaded
from quire.cluster.http.admission.addresses import share_of
from quire.cluster.http.admission.turns import (
    BYTES_IN_TURN,
    LONG_TURN_MS,
    ROW_BYTES,
    ROWS_IN_TURN,
    WAIT_S,
    WAITING_LIMIT,
    Turns,
    Work,
)
from tests.cluster.test_reading_turns import CountedTurns
from tests.replication.loopback import until

ROUTE = "GET /cursors"
PIECES = 8
LONG_S = 2 * LONG_TURN_MS / 1000


class Clock:
    """A clock that a test turns on."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Callers:
    """Callers of one route, and what was done for whom in which turn of the loop."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.cpu = Clock()
        self.turns = Turns(self.clock, self.cpu)
        self.counted = CountedTurns()
        self.done: list[tuple[int, str, int]] = []
        self.refused: list[str] = []
        self.why: list[str] = []
        self.gone: set[str] = set()

    async def __aenter__(self) -> Self:
        await self.counted.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.counted.__aexit__()

    def work(self, name: str, share: str = "token a", route: str = ROUTE, *, begun: bool = False) -> Work:
        work = self.turns.work(route, share, lambda: name in self.gone)
        work.has_begun = begun
        return work

    async def ask(self, name: str, rows: int, share: str = "token a", pieces: int = 1) -> None:
        work = self.work(name, share)
        try:
            for _ in range(pieces):
                await work.turn(rows)
                self.done.append((self.counted.number, name, rows))
        except (Overloaded, ConnectionResetError) as error:
            self.refused.append(name)
            self.why.append(str(error))

    def rows_of_turns(self) -> list[int]:
        rows: Counter[int] = Counter()
        for turn, _, count in self.done:
            rows[turn] += count
        return list(rows.values())

    @property
    def names(self) -> list[str]:
        return [name for _, name, _ in self.done]


async def test_a_turn_serves_the_rows_that_fit_into_it_and_leaves_the_others_to_later_ones() -> None:
    async with Callers() as callers:
        await asyncio.gather(*(callers.ask(f"{number}", 128) for number in range(50)))

        assert callers.names == [str(number) for number in range(50)]
        assert max(callers.rows_of_turns()) <= ROWS_IN_TURN
        assert len(callers.rows_of_turns()) >= 50 * 128 // ROWS_IN_TURN


async def test_a_piece_that_is_larger_than_a_turn_goes_alone() -> None:
    async with Callers() as callers:
        sizes = [1, 3 * ROWS_IN_TURN, 1, 3 * ROWS_IN_TURN, 1]
        await asyncio.gather(*(callers.ask(f"{number}", rows) for number, rows in enumerate(sizes)))

        assert callers.names == ["0", "1", "2", "3", "4"]
        assert sorted(callers.rows_of_turns()) == [1, 1, 1, 3 * ROWS_IN_TURN, 3 * ROWS_IN_TURN]


async def test_what_turned_out_larger_than_was_asked_for_leaves_the_others_to_later_turns() -> None:
    async with Callers() as callers:

        async def ask() -> None:
            work = callers.work("one")
            await work.turn(alone=True)
            callers.done.append((callers.counted.number, "one", ROWS_IN_TURN))
            work.charge(size=BYTES_IN_TURN)

        await asyncio.gather(*(ask() for _ in range(20)))

        assert callers.rows_of_turns() == [ROWS_IN_TURN] * 20


async def test_small_work_never_waits_while_nobody_does_and_the_turn_has_room() -> None:
    async with Callers() as callers:
        for _ in range(ROWS_IN_TURN):
            turning = callers.work("one").turn()
            with pytest.raises(StopIteration):
                turning.send(None)

        waiting = callers.work("one").turn()
        assert waiting.send(None) is not None, "the turn is full"
        waiting.close()
        assert len(callers.turns) == 0


async def test_many_requests_of_one_token_delay_another_s_by_a_turn() -> None:
    async with Callers() as callers:
        many = [asyncio.create_task(callers.ask("many", ROWS_IN_TURN, pieces=PIECES)) for _ in range(200)]
        await until(lambda: len(callers.turns) > 0)
        one = asyncio.create_task(callers.ask("one", ROWS_IN_TURN, "token b", pieces=PIECES))
        await one

        before = callers.names[: callers.names.index("one")]
        served = callers.names[callers.names.index("one") : len(callers.names) - callers.names[::-1].index("one")]
        for task in many:
            task.cancel()
        await asyncio.gather(*many, return_exceptions=True)
    assert len(before) <= 3
    assert Counter(served)["many"] <= PIECES, "they take turns"


async def test_a_request_that_has_begun_is_ended_before_the_next_one_of_its_share_begins() -> None:
    async with Callers() as callers:
        await asyncio.gather(*(callers.ask(name, ROWS_IN_TURN, pieces=3) for name in "abc"))

        assert callers.names == [*"aaa", *"bbb", *"ccc"]


async def test_a_request_waits_behind_older_ones_of_its_share_and_not_behind_newer_ones_that_have_begun() -> None:
    async with Callers() as callers:

        async def write() -> None:
            while True:  # A write has been executed, so it is not refused: it has begun.
                await callers.work("write", begun=True).turn(ROWS_IN_TURN)
                callers.done.append((callers.counted.number, "write", ROWS_IN_TURN))

        writers = [asyncio.create_task(write()) for _ in range(3)]
        await until(lambda: len(callers.turns) == len(writers))
        one = asyncio.create_task(callers.ask("one", ROWS_IN_TURN))
        await until(lambda: len(callers.done) > 10 or one.done())
        for task in (*writers, one):
            task.cancel()
        await asyncio.gather(*writers, one, return_exceptions=True)

        assert "one" in callers.names[:5]


async def test_pieces_of_one_request_may_wait_at_the_same_time_and_go_one_after_the_other() -> None:
    async with Callers() as callers:
        work = callers.work("one")

        async def piece(name: str) -> None:
            await work.turn(ROWS_IN_TURN)
            callers.done.append((callers.counted.number, name, ROWS_IN_TURN))

        await asyncio.gather(*map(piece, "abcd"))

        assert callers.names == [*"abcd"]
        assert callers.rows_of_turns() == [ROWS_IN_TURN] * 4


async def test_so_many_requests_of_a_route_wait_and_of_one_share_half_of_them() -> None:
    async with Callers() as callers:
        first = asyncio.create_task(callers.ask("first", ROWS_IN_TURN))
        asked = [
            asyncio.create_task(callers.ask(f"{share} {number}", ROWS_IN_TURN, share))
            for share, count in (("a", share_of(WAITING_LIMIT) + 1), ("b", share_of(WAITING_LIMIT)), ("c", 1))
            for number in range(count)
        ]
        await asyncio.sleep(0)

        assert first.done()
        assert len(callers.turns) == WAITING_LIMIT
        assert callers.refused == [f"a {share_of(WAITING_LIMIT)}", "c 0"]
        assert callers.why == [
            "at most 256 requests of GET /cursors wait for one caller; try again in 1 s",
            "at most 512 requests of GET /cursors wait; try again in 1 s",
        ]
        other, written = callers.work("other", "c", "GET /state").turn(), callers.work("w", "c", begun=True).turn()
        assert other.send(None) is not None, "another route has its own number"
        assert written.send(None) is not None, "what has begun is never refused"
        other.close()
        written.close()
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        assert len(callers.turns) == 0


async def test_a_request_that_waited_for_the_limit_is_refused_and_costs_no_turn() -> None:
    async with Callers() as callers:
        names = ("first", "older", "old")
        old = [asyncio.create_task(callers.ask(name, ROWS_IN_TURN)) for name in names]
        written = asyncio.create_task(callers.work("written", begun=True).turn(ROWS_IN_TURN))
        await asyncio.sleep(0)
        callers.clock.now += WAIT_S + 0.001
        new = asyncio.create_task(callers.ask("new", ROWS_IN_TURN))
        await asyncio.gather(*old, new, written)

        assert callers.refused == ["older", "old"]
        assert set(callers.why) == {"the request waited for more than 5 s for its turn; try again in 1 s"}
        assert callers.names == ["first", "new"]


async def test_a_caller_that_has_gone_or_gave_up_costs_no_turn() -> None:
    async with Callers() as callers:
        names = ("first", "a", "gone", "gave up", "b")
        tasks = {name: asyncio.create_task(callers.ask(name, ROWS_IN_TURN)) for name in names}
        await asyncio.sleep(0)
        callers.gone.add("gone")
        tasks["gave up"].cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)

        assert callers.names == ["first", "a", "b"]
        assert callers.refused == ["gone"]
        (_, a, b) = [turn for turn, _, _ in callers.done]
        assert b - a == 1


async def test_after_a_long_turn_the_next_is_as_much_later(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, paused = asyncio.get_running_loop(), list[float]()

    def later(delay_s: float, serve: Callable[[], None]) -> None:
        paused.append(delay_s)
        loop.call_soon(serve)

    async with Callers() as callers:
        monkeypatch.setattr(loop, "call_later", later)
        await callers.work("long").turn(ROWS_IN_TURN)
        callers.cpu.now += LONG_S
        await callers.work("next").turn(ROWS_IN_TURN)
        callers.cpu.now += LONG_S / 4
        await callers.work("last").turn(ROWS_IN_TURN)

    assert paused == [pytest.approx(LONG_S)]


def test_a_row_costs_its_part_of_a_turn() -> None:
    assert ROWS_IN_TURN * ROW_BYTES == BYTES_IN_TURN
