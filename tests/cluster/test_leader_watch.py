"""The watch of a client asks in vain more and more rarely, and outlives what it cannot read."""

import asyncio
from types import SimpleNamespace

import pytest

from quire.cluster.client.attempts import NothingWritten
from quire.cluster.client.leader import watch
from quire.cluster.client.leader.servers import Servers
from quire.cluster.client.transport import Reply
from quire.log import Value, pack

ASLEEP = 6
LEADER = "127.0.0.1:7001"


class Asked:
    """Servers that answer every call alike: with a document, or not at all."""

    def __init__(self, named: list[str], answer: Value) -> None:
        self.servers = Servers(named)
        self.servers.learn_leader(f"n1={LEADER}")
        self.answer = answer
        self.paths: list[str] = []

    async def ask(self, _server: str, path: str, _wait_s: float) -> Reply:
        self.paths.append(path)
        if self.answer is None:
            raise NothingWritten("too many wait")
        return Reply(pack(self.answer), "application/msgpack", {})


async def sleeps_of(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the watch sleeps between its rounds."""
    sleeps: list[float] = []
    enough = asyncio.Event()

    async def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        if len(sleeps) == ASLEEP or seconds > watch.POLL_S:
            enough.set()
            await asyncio.Future()

    monkeypatch.setattr(watch, "asyncio", SimpleNamespace(sleep=sleep, timeout=asyncio.timeout))
    told: list[int] = []
    running = asyncio.create_task(watch.LeaderWatch(asked, lambda: 3, told.append).run())  # type: ignore[arg-type]
    ended = asyncio.create_task(enough.wait())
    await asyncio.wait((running, ended), timeout=20, return_when=asyncio.FIRST_COMPLETED)
    assert ended.done()
    running.cancel()
    await asyncio.wait((running,))
    assert told == []
    return sleeps


async def test_a_watch_that_all_refuse_asks_half_as_often_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked([LEADER, "127.0.0.1:7002"], None)
    assert await sleeps_of(asked, monkeypatch) == [4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert set(asked.paths) == {"/leader?epoch=3&wait_ms=30000"}


async def test_a_watch_with_nobody_to_ask_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked([LEADER], None)
    (asleep,) = await sleeps_of(asked, monkeypatch)
    assert (asleep, asked.paths) == (watch.A_DAY_S, [])


@pytest.mark.parametrize("answer", [{}, {"node_id": "n2", "leader": "n1", "epoch": "three"}])
async def test_a_watch_goes_on_after_an_answer_that_tells_nothing(
    monkeypatch: pytest.MonkeyPatch, answer: Value
) -> None:
    assert len(await sleeps_of(Asked([LEADER, "127.0.0.1:7002"], answer), monkeypatch)) == ASLEEP
