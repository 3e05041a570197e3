"""An asyncio event loop whose time jumps: when nothing is ready, the next timer's moment comes at once.

Callbacks, tasks and threads belong to the process that made them (`Owner`), so that a test can kill one of several
processes that share this loop. Threads of the code below run here one at a time and only when the loop lets them: same
seed, same order.
"""

import asyncio
import heapq
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from random import Random
from typing import Any

TURN_S = 2e-6  # What one turn of the loop takes.
START_CLOCK = 1_700_000_000_000_000
"""What the wall clocks show at the start, in microseconds."""
MAX_TURNS = 2_000_000
HAND_OVER_US = 100  # A thread wakes within this.


class EndlessHistory(Exception):
    """A history took more than `MAX_TURNS` turns of the loop, or waits for something that nothing brings."""


class Killed(BaseException):
    """Ends a thread of a process that was killed."""


class Owner:
    """A process: what it runs ends with it."""

    def __init__(self, name: str, host: int = 0) -> None:
        self.name, self.host = name, host
        self.is_dead = False
        self.frozen: list[asyncio.Handle] | None = None
        """What it will do when it continues; None while it runs."""
        self.tasks: dict[OwnedTask, None] = {}
        self.threads: dict[LoopThread, None] = {}


class OwnedTask(asyncio.Task[Any]):
    """A task of a process."""

    def __init__(self, coroutine: Any, loop: "VirtualLoop", name: str | None, context: Context | None) -> None:
        self.owner = loop.owner
        self.owner.tasks[self] = None
        super().__init__(coroutine, loop=loop, name=name, context=context)
        self.add_done_callback(_forget)


def _forget(task: asyncio.Task[Any]) -> None:
    if isinstance(task, OwnedTask):
        task.owner.tasks.pop(task, None)


class _Handle(asyncio.Handle):
    __slots__ = ("owner",)
    _loop: Any
    owner: Owner

    def _run(self) -> None:
        _run_of(self, self._loop, super()._run)


class _Timer(asyncio.TimerHandle):
    __slots__ = ("owner",)
    _loop: Any
    owner: Owner

    def _run(self) -> None:
        if not self.owner.is_dead:
            _run_of(self, self._loop, super()._run)


def _run_of(handle: "_Handle | _Timer", loop: Any, run: Callable[[], None]) -> None:
    """Run a callback as its owner's, or keep it for when that is frozen no more."""
    owner = handle.owner
    if owner.frozen is not None:
        owner.frozen.append(handle)
        return
    before, loop.owner = loop.owner, owner
    run()
    loop.owner = before


class _NoSockets:
    """The selector of a loop without sockets: to wait is to let the time pass."""

    def __init__(self, loop: "VirtualLoop") -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        """Wait so long, in virtual time."""
        loop = self._loop
        loop.turns += 1
        if timeout is None:
            raise EndlessHistory("nothing is ready, and no timer runs")
        if loop.turns > MAX_TURNS:
            raise EndlessHistory(f"after {MAX_TURNS} turns it is {loop.time():.3f} s")
        loop.block(max(timeout, 0.0) + TURN_S)
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """Its time begins at 0. `random` decides everything that chance decides."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.random = random
        self.turns = 0
        self.faults: list[str] = []
        """What no code caught, in processes that were not killed."""
        self.outside = Owner("outside")
        self.owner = self.outside
        self.thread: LoopThread | None = None
        """The thread that runs now, if it is not the loop's own."""
        self._now = 0.0
        self._selector = _NoSockets(self)
        self._clock_resolution = 1e-9
        self.set_task_factory(_make_task)
        self.set_exception_handler(_note_fault)

    # Time

    def time(self) -> float:
        """Seconds since the start."""
        return self._now

    def microseconds(self) -> int:
        """Microseconds since the start."""
        return round(self._now * 1e6)

    def block(self, seconds: float) -> None:
        """Let the time pass for everybody: the loop is blocked."""
        self._now += seconds

    async def after(self, seconds: float) -> None:
        """Return after so much virtual time."""
        passed = self.create_future()
        timer = self.call_later(seconds, _settle, passed, None, None)
        try:
            await passed
        finally:
            timer.cancel()

    def pass_time(self, delay_us: int) -> None:
        """Block the caller, the loop or one of its threads, for this long."""
        if self.thread is None:
            self.block(delay_us / 1e6)
        else:
            self.thread.sleep(delay_us)

    # What asyncio asks of a loop

    def _process_events(self, events: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def _owner_of(self, callback: Any) -> Owner:
        task = getattr(callback, "__self__", None)
        return task.owner if isinstance(task, OwnedTask) else self.owner

    def _call_soon(self, callback: Any, args: Any, context: Context | None) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        handle.owner = self._owner_of(callback)
        ready: deque[asyncio.Handle] = self._ready  # type: ignore[attr-defined]
        ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As asyncio's; the timer ends with its process."""
        timer = _Timer(when, callback, args, self, context)
        timer.owner = self._owner_of(callback)
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        timer._scheduled = True  # type: ignore[attr-defined]  # as asyncio's own
        return timer

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Run it in a thread of this loop."""
        future = self.create_future()

        def run() -> None:
            try:
                result = func(*args)
            except Killed:
                raise
            except BaseException as error:  # noqa: BLE001  # The future gets it, whatever it is.
                self.call_soon_threadsafe(_settle, future, None, error)
            else:
                self.call_soon_threadsafe(_settle, future, result, None)

        LoopThread(self, run).start()
        return future

    # Processes

    def as_owner(self, owner: Owner, call: Callable[..., Any], *args: Any) -> Any:
        """Call something on behalf of a process."""
        before, self.owner = self.owner, owner
        try:
            return call(*args)
        finally:
            self.owner = before

    def freeze(self, owner: Owner) -> None:
        """Let a process do nothing; what it has to do waits."""
        owner.frozen = []

    def resume(self, owner: Owner) -> None:
        """Let a frozen process continue."""
        waiting, owner.frozen = owner.frozen or [], None
        ready: deque[asyncio.Handle] = self._ready  # type: ignore[attr-defined]
        ready.extend(handle for handle in waiting if not handle.cancelled())

    def kill(self, owner: Owner) -> None:
        """End a process: its threads and timers run no more; its tasks are cancelled, to end without a word."""
        self.resume(owner)
        owner.is_dead = True
        for thread in list(owner.threads):
            thread.kill()
        self._reap(owner, 100)

    def _reap(self, owner: Owner, turns: int) -> None:
        for task in list(owner.tasks):
            task.cancel()
        if owner.tasks and turns:
            self.as_owner(self.outside, self.call_soon, self._reap, owner, turns - 1)
        elif owner.tasks:
            self.faults.append(f"{owner.name} was killed, and still runs {sorted(map(str, owner.tasks))}")


def _make_task(loop: Any, coroutine: Any, *, name: str | None = None, context: Context | None = None) -> OwnedTask:
    return OwnedTask(coroutine, loop, name, context)


def _note_fault(loop: Any, context: dict[str, Any]) -> None:
    task = context.get("task") or context.get("future")
    owner = task.owner if isinstance(task, OwnedTask) else loop.owner
    if not owner.is_dead:
        loop.faults.append(f"{owner.name}: {context['message']}: {context.get('exception')!r} {task or ''}")


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


class LoopThread:
    """A thread that runs only while the loop waits for it; for the code in it, it is a `threading.Thread`."""

    def __init__(self, loop: VirtualLoop, target: Callable[[], None]) -> None:
        self._loop = loop
        self._target = target
        self._owner = loop.owner
        self._turn, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._ended, self._killed = False, False
        self._joining: list[LoopThread] = []
        self._wakes = 0
        self._wakes_at = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """As `Thread.start`."""
        self._owner.threads[self] = None
        self._thread.start()
        self.wake()

    def join(self) -> None:
        """As `Thread.join`, from another of these threads."""
        caller = self._loop.thread
        if caller is None:
            raise RuntimeError("the loop would wait for a thread that waits for the loop")
        while not self._ended:
            self._joining.append(caller)
            caller.wait()

    def wake(self, delay_us: int = 0) -> None:
        """Let it run on after the delay, and what a thread takes to wake up."""
        delay_us += self._loop.random.randint(0, HAND_OVER_US)
        self._wakes += 1
        self._wakes_at = self._loop.time() + delay_us / 1e6
        self._loop.as_owner(self._owner, self._loop.call_at, self._wakes_at, self._awake, self._wakes)

    def _awake(self, number: int) -> None:
        if number == self._wakes:
            self._step()

    def wait_for(self) -> None:
        """On the loop: block until this sleeping thread has done its next step."""
        self._loop.block(max(0.0, self._wakes_at - self._loop.time()))
        self._wakes += 1
        self._step()

    def sleep(self, delay_us: int) -> None:
        """In this thread: wait so long."""
        self.wake(delay_us)
        self.wait()

    def wait(self) -> None:
        """In this thread: wait until it is woken."""
        if self._killed:
            raise Killed
        self._back.release()
        self._turn.acquire()
        if self._killed:
            raise Killed

    def kill(self) -> None:
        """End it where it waits."""
        self._killed = True
        while not self._ended:
            self._step()

    def _step(self) -> None:
        if self._ended:
            return
        loop = self._loop
        before, loop.thread = loop.thread, self
        self._turn.release()
        self._back.acquire()
        loop.thread = before

    def _run(self) -> None:
        self._turn.acquire()
        try:
            if not self._killed:
                self._target()
        except Killed:
            pass
        finally:
            self._ended = True
            self._owner.threads.pop(self, None)
            for caller in self._joining:
                if not self._killed:
                    caller.wake()
            self._back.release()


class LoopQueue:
    """A `SimpleQueue` between the loop and one of its threads."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._items: deque[Any] = deque()
        self._waiting: LoopThread | None = None

    def put(self, item: Any) -> None:
        """As `SimpleQueue.put`."""
        self._items.append(item)
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.wake()

    def get(self) -> Any:
        """As `SimpleQueue.get`, in one of the loop's threads."""
        while not self._items:
            self._waiting = self._loop.thread
            if self._waiting is None:
                raise RuntimeError("the loop would wait for itself")
            self._waiting.wait()
        return self._items.popleft()


class LoopLock:
    """A `Lock` that the loop and its threads take."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._holder: LoopThread | None = None
        self._is_held = False
        self._waiting: deque[LoopThread] = deque()

    def __enter__(self) -> None:
        while self._is_held:
            if self._loop.thread is not None:
                self._waiting.append(self._loop.thread)
                self._loop.thread.wait()
            elif self._holder is not None:
                self._holder.wait_for()
            else:
                raise RuntimeError("the loop would wait for itself")
        self._is_held, self._holder = True, self._loop.thread

    def __exit__(self, *_: object) -> None:
        self._is_held, self._holder = False, None
        if self._waiting:
            self._waiting.popleft().wake()


def run_until_end(loop: VirtualLoop, work: Coroutine[Any, Any, None]) -> None:
    """Run this on the loop, end what is left, and close the loop."""
    try:
        loop.run_until_complete(work)
    finally:
        loop.run_until_complete(_end_all(loop))
        loop.close()


async def _end_all(loop: VirtualLoop) -> None:
    this = asyncio.current_task(loop)
    for owner in {task.owner: None for task in asyncio.all_tasks(loop) if isinstance(task, OwnedTask)}:
        if isinstance(this, OwnedTask):
            owner.tasks.pop(this, None)
        loop.kill(owner)
    loop.owner = Owner("end")
    await loop.after(1.0)
