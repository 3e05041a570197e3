"""Consumers against pages that a test has written: what is committed for them, and what they raise."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

import pytest

from quire.cluster.client.errors import NotFound, RecordsLost, Unavailable
from quire.cluster.client.records.consumer import IDLE_RECORDS, Batch, batches
from quire.cluster.client.records.cursors import CursorLag, CursorRow, Cursors, Start
from quire.cluster.client.records.pages import Page, Record, RecordPages, RecordsExpired
from quire.log import Value


class Position(Cursors):
    """One cursor, which begins at index 1."""

    def __init__(self) -> None:
        self.index = 1
        self.token = b""

    async def take(
        self, name: str, shard: tuple[int, int] | None, start: Start, token: bytes, hold_bytes: int | None
    ) -> tuple[int, str | None]:
        self.token = token
        return self.index, None

    async def commit(self, name: str, index: int, token: bytes) -> None:
        self.index = index

    async def get(self, name: str) -> CursorRow:
        return CursorRow(
            name=name,
            index=self.index,
            next_index=self.index,
            hold_bytes=0,
            owner=None,
            taken=True,
            token=self.token.hex(),
            lag=CursorLag(records=1, seconds=0.0),
            lost=9,
        )


class Written(RecordPages):
    """These pages, by the index that is asked for; an error is raised instead."""

    def __init__(self, pages: Mapping[int, Page | NotFound]) -> None:
        self._pages = pages

    async def follow(
        self, index: int, to_index: int | None, parameters: Mapping[str, int | str]
    ) -> AsyncGenerator[Page, None]:
        while (page := self._pages.get(index)) is not None:
            if isinstance(page, NotFound):
                raise page
            yield page
            index = page.next_index


def page(*indices: int, to: int, lowest: int = 0) -> Page:
    """Records at these indices, and nothing else for the consumer below `to`."""
    return Page([Record(index, 1, 1, "records", 0, 0, True, {}, index) for index in indices], to, lowest)


def problem(kind: str) -> Mapping[str, Value]:
    return {"status": 404, "type": f"urn:quire:problem:{kind}", "title": kind, "detail": kind}


def consumed(
    position: Position, pages: Mapping[int, Page | NotFound], until: int, *, skip_lost: bool = False
) -> AsyncGenerator[Batch, None]:
    written = Written(pages)
    return batches(
        lambda _: written,
        position,
        "mail",
        shard=None,
        start=1,
        until=until,
        hold_bytes=None,
        skip_lost=skip_lost,
    )


@pytest.mark.asyncio
async def test_a_program_that_commits_its_last_record_has_committed_the_whole_page() -> None:
    position, far = Position(), IDLE_RECORDS + 20
    async with aclosing(consumed(position, {1: page(3, 5, to=20), 20: page(to=far)}, far)) as found:
        async for batch in found:
            await batch.commit(before=batch.records[-1].index + 1)
            assert position.index == 6
    assert position.index == far, "nothing was left to commit, and the log went on without records for it"


@pytest.mark.asyncio
async def test_what_was_not_committed_is_not_committed_by_itself() -> None:
    position, far = Position(), IDLE_RECORDS + 20
    async with aclosing(consumed(position, {1: page(3, 5, to=20), 20: page(to=far)}, far)) as found:
        async for batch in found:
            await batch.commit(before=batch.records[-1].index)
    assert position.index == 5


@pytest.mark.asyncio
async def test_a_loss_is_told_before_the_cursor_moves_beyond_it() -> None:
    position, far = Position(), IDLE_RECORDS + 20
    pages: dict[int, Page | NotFound] = {
        1: RecordsExpired(problem("expired"), 10),
        10: page(to=far, lowest=10),
        far: page(far + 1, to=far + 2, lowest=10),
    }
    async with aclosing(consumed(position, pages, far + 2, skip_lost=True)) as found:
        async for batch in found:
            assert (batch.lost, position.index) == (9, 1)
            await batch.commit()
    assert position.index == far + 2


@pytest.mark.asyncio
@pytest.mark.parametrize("until", [9, 10, 20])
async def test_a_loss_before_no_further_record_is_told_at_the_end(until: int) -> None:
    position = Position()
    pages: dict[int, Page | NotFound] = {1: RecordsExpired(problem("expired"), 10), 10: page(to=20, lowest=10)}
    with pytest.raises(RecordsLost, match=f"no record is left for it below {until}") as lost:
        async for _ in consumed(position, pages, until, skip_lost=True):
            pass
    assert (lost.value.lost, lost.value.index, lost.value.lowest_index) == (9, 1, 10)
    assert position.index == 1
    async for batch in consumed(position, {**pages, 20: page(20, to=21)}, 21, skip_lost=True):
        assert batch.lost == 9, "and a record that follows tells it"


@pytest.mark.asyncio
@pytest.mark.parametrize(("kind", "raises"), [("out-of-bounds", Unavailable), ("not-found", NotFound)])
async def test_servers_that_do_not_catch_up_are_unavailable(kind: str, raises: type[Exception]) -> None:
    with pytest.raises(raises):
        await anext(consumed(Position(), {1: NotFound(problem(kind))}, 10))
