"""The loop whose time jumps, its threads, its processes and its connections."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from tests.glue.loop import EndlessHistory, LoopLock, LoopQueue, LoopThread, Owner, run_until_end
from tests.glue.network import WIRE_BYTES, End, GlueLoop, Mood


def on_loop(work: Callable[[GlueLoop], Awaitable[None]]) -> None:
    loop = GlueLoop(Random(1))

    async def run() -> None:
        await work(loop)

    run_until_end(loop, run())
    assert not loop.faults


class Heard(asyncio.Protocol):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.transport: asyncio.BaseTransport
        self.data = b""
        self.events: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data

    def eof_received(self) -> None:
        self.events.append("end")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost" if exc is None else type(exc).__name__)

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    @property
    def end(self) -> End:
        assert isinstance(self.transport, End)
        return self.transport


async def pair(loop: GlueLoop) -> tuple[Heard, Heard]:
    """A connection from host 1 to host 2."""
    far, near = Heard(), Heard()
    loop.network.listen(2, lambda: far)
    with socket.socket() as unused:
        await loop.network.connect(unused, 1, 2)
        end = loop.network.connected.pop(id(unused))
    end.attach(near)
    await loop.after(0.01)
    return near, far


def test_time_jumps_to_the_next_timer() -> None:
    async def work(loop: GlueLoop) -> None:
        await loop.after(3_600)
        assert 3_600 <= loop.time() < 3_601

    on_loop(work)


def test_a_history_that_waits_for_nothing_ends() -> None:
    loop = GlueLoop(Random(1))

    async def wait() -> None:
        await loop.create_future()

    with pytest.raises(EndlessHistory):
        loop.run_until_complete(wait())
    run_until_end(loop, asyncio.sleep(0))


def test_the_loop_goes_on_while_a_thread_sleeps() -> None:
    async def work(loop: GlueLoop) -> None:
        heard: list[str] = []

        def target() -> None:
            heard.append("thread begins")
            loop.pass_time(1_000_000)
            heard.append("thread ends")

        running = asyncio.create_task(asyncio.to_thread(target))
        await loop.after(0.5)
        heard.append("loop")
        await running
        assert heard == ["thread begins", "loop", "thread ends"]

    on_loop(work)


def test_the_loop_waits_for_a_lock_that_a_sleeping_thread_holds() -> None:
    async def work(loop: GlueLoop) -> None:
        lock = LoopLock(loop)

        def target() -> None:
            with lock:
                loop.pass_time(1_000_000)

        running = asyncio.create_task(asyncio.to_thread(target))
        await loop.after(0.5)
        with lock:
            assert loop.time() >= 1.0
        await running

    on_loop(work)


def test_a_queue_hands_over_in_order() -> None:
    async def work(loop: GlueLoop) -> None:
        queue, got = LoopQueue(loop), list[int]()

        def target() -> None:
            while (item := queue.get()) is not None:
                got.append(item)

        LoopThread(loop, target).start()
        for item in (1, 2, 3, None):
            queue.put(item)
            await loop.after(0.001)
        await loop.after(0.01)
        assert got == [1, 2, 3]

    on_loop(work)


def test_nothing_of_a_killed_process_goes_on() -> None:
    async def work(loop: GlueLoop) -> None:
        ran: list[str] = []

        def sleep() -> None:
            loop.pass_time(1_000_000)
            ran.append("thread")

        async def task() -> None:
            asyncio.get_running_loop().call_later(1, ran.append, "timer")
            await asyncio.gather(asyncio.to_thread(sleep), loop.after(1))
            ran.append("task")

        owner = Owner("n1")
        loop.as_owner(owner, asyncio.create_task, task())
        await loop.after(0.5)
        loop.kill(owner)
        await loop.after(5)
        assert (ran, owner.tasks, owner.threads) == ([], {}, {})

    on_loop(work)


def test_bytes_arrive_in_order_and_an_end_after_them() -> None:
    async def work(loop: GlueLoop) -> None:
        near, far = await pair(loop)
        for number in range(100):
            near.end.write(b"%d," % number)
        near.end.close()
        await loop.after(1)
        assert far.data == b"".join(b"%d," % number for number in range(100))
        assert (near.events, far.events) == (["lost"], ["end", "lost"])

    on_loop(work)


def test_a_reader_that_pauses_stops_the_writer() -> None:
    async def work(loop: GlueLoop) -> None:
        near, far = await pair(loop)
        far.end.pause_reading()
        near.end.write(bytes(4 * WIRE_BYTES))
        await loop.after(1)
        assert (near.events, far.data) == (["pause"], b"")
        far.end.resume_reading()
        await loop.after(1)
        assert (near.events, len(far.data)) == (["pause", "resume"], 4 * WIRE_BYTES)

    on_loop(work)


def test_what_is_sent_into_silence_arrives_after_it() -> None:
    async def work(loop: GlueLoop) -> None:
        near, far = await pair(loop)
        loop.network.set_mood(1, 2, Mood.SILENT)
        near.end.write(b"late")
        far.end.write(b"other way")
        await loop.after(10)
        assert (near.data, far.data) == (b"other way", b"")
        loop.network.set_mood(1, 2, Mood.UP)
        await loop.after(1)
        assert far.data == b"late"

    on_loop(work)


def test_a_lost_flow_never_carries_anything_again() -> None:
    async def work(loop: GlueLoop) -> None:
        near, far = await pair(loop)
        loop.network.forget(1, 2)
        near.end.write(b"nothing")
        near.end.close()
        await loop.after(10)
        assert (far.data, far.events) == (b"", [])

    on_loop(work)


def test_a_killed_process_resets_its_connections_and_a_host_without_power_does_not() -> None:
    async def work(loop: GlueLoop) -> None:
        near, _ = await pair(loop)
        loop.network.process_died(2, with_its_host=False)
        await loop.after(1)
        assert near.events == ["ConnectionResetError"]
        near, _ = await pair(loop)
        loop.network.process_died(2, with_its_host=True)
        await loop.after(1)
        assert near.events == []
        loop.network.host_is_back(2)
        near.end.write(b"who are you?")
        await loop.after(1)
        assert near.events == ["ConnectionResetError"]

    on_loop(work)
