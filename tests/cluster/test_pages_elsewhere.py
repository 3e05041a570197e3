"""Records that expired on the first server that answers are read from another one, and only while that one serves."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from quire.cluster.client.errors import HistoryChanged, NotFound, Unavailable
from quire.cluster.client.records.pages import RecordPages, RecordsExpired
from quire.cluster.client.transport import Reply
from quire.log import pack

DEADLINE_S = 60.0


@dataclass
class Server:
    """A server that has the records [lowest, highest) of a history."""

    lowest: int
    highest: int
    history: str = "new"
    is_down: bool = False


@dataclass
class Servers:
    """What the pages are read from. The first one answers a request that names none."""

    all: dict[str, Server]
    timeout_s: float = 1.0
    asked: list[str] = field(default_factory=list)

    @property
    def servers(self) -> Sequence[str]:
        return tuple(self.all)

    async def get(self, path: str, *, server: str | None = None, awaits_record: bool = False) -> Reply:
        await asyncio.sleep(0)
        name = server or next(iter(self.all))
        one = self.all[name]
        if one.is_down:
            raise Unavailable(f"{name} refuses connections")
        url = urlsplit(path)
        if url.path == "/index_bounds":
            return _reply({"lowest_index": one.lowest, "highest_index": one.highest})
        asked = {field: values[0] for field, values in parse_qs(url.query).items()}
        self.asked.append(name)
        if asked.get("history", one.history) != one.history:
            raise HistoryChanged("HISTORY_CHANGED", "the cluster was recovered")
        index = int(asked["from"])
        if index < one.lowest:
            kind = "urn:quire:problem:expired"
            raise NotFound({"status": 410, "type": kind, "detail": "expired", "lowest_index": one.lowest})
        if index > one.highest:
            raise NotFound({"status": 404, "type": "urn:quire:problem:out-of-bounds", "detail": "not yet"})
        end = min(index + 10, one.highest)
        headers = {"Quire-Next-Index": str(end), "Quire-History": one.history, "Quire-Lowest-Index": str(one.lowest)}
        return _reply([_line(at, one.history) for at in range(index, end)], headers)


def _line(index: int, value: str) -> dict[str, Any]:
    numbers = {"index": index, "epoch": 1, "timestamp": 1, "session": 0, "sequence": 0}
    return {**numbers, "kind": "records", "executed": True, "headers": {}, "value": value}


def _reply(document: object, headers: dict[str, str] | None = None) -> Reply:
    return Reply(pack(document), "application/msgpack", headers or {})


async def read(servers: Servers, index: int, to_index: int, history: str | None = None) -> list[tuple[int, object]]:
    """What is read of [index, to_index)."""
    found: list[tuple[int, object]] = []
    pages = RecordPages(servers, history)
    async with asyncio.timeout(DEADLINE_S), aclosing(pages.follow(index, to_index, {})) as followed:
        async for page in followed:
            found += [(record.index, record.value) for record in page.records]
    return found


@pytest.mark.asyncio
async def test_another_server_is_asked_only_for_what_the_first_one_lacks() -> None:
    servers = Servers({"n1": Server(50, 100), "n2": Server(0, 100)})
    assert [index for index, _ in await read(servers, 20, 100)] == list(range(20, 100))
    assert servers.asked == ["n1", *["n2"] * 3, *["n1"] * 5]


@pytest.mark.asyncio
async def test_a_server_that_was_left_behind_by_a_recovery_gives_nothing() -> None:
    servers = Servers({"n1": Server(50, 100), "n3": Server(0, 100, "old"), "n2": Server(20, 100)})
    assert await read(servers, 20, 100, "new") == [(index, "new") for index in range(20, 100)]
    servers.all["n2"].lowest = 30
    with pytest.raises(RecordsExpired) as expired:
        await read(servers, 20, 100, "new")
    assert expired.value.lowest_index == 30


@pytest.mark.asyncio
async def test_a_server_that_goes_away_or_has_no_more_is_given_up_for_another_one() -> None:
    servers = Servers({"n1": Server(50, 100), "n2": Server(0, 100), "n3": Server(10, 40), "n4": Server(15, 100)})
    servers.all["n2"].is_down = True
    assert [index for index, _ in await read(servers, 20, 100)] == list(range(20, 100))
    assert servers.asked[:4] == ["n1", "n3", "n3", "n3"]


@pytest.mark.asyncio
async def test_a_server_that_failed_once_is_asked_again_later() -> None:
    servers = Servers({"n1": Server(50, 100), "n2": Server(0, 300), "n3": Server(10, 100)})
    servers.all["n2"].is_down = True
    pages = RecordPages(servers)
    found: list[int] = []
    async with asyncio.timeout(DEADLINE_S), aclosing(pages.follow(20, 200, {})) as followed:
        async for page in followed:
            found += [record.index for record in page.records]
            if page.next_index == 90:
                servers.all["n1"].lowest, servers.all["n1"].highest = 150, 300
                servers.all["n2"].is_down = False
    assert found == list(range(20, 200))


@pytest.mark.asyncio
async def test_a_server_that_lags_is_not_taken_for_one_that_has_the_record() -> None:
    servers = Servers({"n1": Server(150, 200), "n2": Server(0, 80), "n3": Server(90, 200)})
    assert [index for index, _ in await read(servers, 100, 200)] == list(range(100, 200))
    assert "n2" not in servers.asked


@pytest.mark.asyncio
async def test_the_lowest_index_of_all_that_answer_is_told_if_none_has_the_record() -> None:
    servers = Servers({"n1": Server(50, 100), "n2": Server(30, 100), "n3": Server(0, 0)})
    with pytest.raises(RecordsExpired) as expired:
        await read(servers, 20, 100)
    assert expired.value.lowest_index == 30


@pytest.mark.asyncio
async def test_the_time_that_a_caller_takes_for_a_page_is_no_time_without_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 0.0
    monkeypatch.setattr("quire.cluster.client.records.pages.time", SimpleNamespace(monotonic=lambda: now_s))
    servers, found = Servers({"n1": Server(0, 30)}), list[int]()
    async with asyncio.timeout(DEADLINE_S), aclosing(RecordPages(servers).follow(0, 50, {})) as followed:
        async for page in followed:
            found += [record.index for record in page.records]
            now_s += 10 * servers.timeout_s
            # Then it begins anew without its newest records, and has them again after one more question.
            servers.all["n1"].highest = 10 if page.records and page.next_index == 20 else 50
    assert found == list(range(50))
