"""Measures how long the turns of the event loop take, and notes which functions ran in a long one.

A blocked loop answers neither callers nor peers, who then elect another leader. After each PERIOD_S of CPU time of the
process, SIGPROF has the loop read the CPU time of its thread, once the present turn is over. Time beyond one period
between two readings was used in a single turn, because after a short one the loop would have read it earlier. So a turn
is measured as up to one period shorter than it was. Time during which the process was paused or waited for a CPU does
not count.

The kernel counts by its ticks: of a process that sleeps most of the time it may notice little. So that many short turns
are not taken for one, the loop reads the time every READ_S, too, when other timers wake it anyway.

Once a turn has taken LONG_S, the handler of the signal notes the running functions.

A turn that waits, for a file, a socket or a lock, uses no CPU time. SIGALRM comes BLOCKED_S after a reading: if
functions run then, and neither SIGCONT nor a lack of CPUs explains it, they block the loop.
"""

import asyncio
import gc
import os
import selectors
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import structlog

import quire
from quire.replication import Durations, next_tick

PERIOD_S = 0.01
"""CPU time of the process between two signals."""
READ_S = 0.05
"""A multiple of it is when a node's other timers go off."""
LONG_S = 0.05
BLOCKED_S = 0.15
"""The duration from which on a turn that waits is long: longer than an idle loop is between two readings."""
LOG_INTERVAL_S = 1.0
READY_INTERVAL_S = 0.25
NAMED = 2
"""How many functions are named at each end of the stack."""

ROOT = str(Path(quire.__file__).parent)

journal = structlog.get_logger(__name__)


class Turn(NamedTuple):
    """A turn of the loop: its CPU time and its duration in seconds, and the functions that ran in it, if known.

    `held_s` is for how long it held the loop: its CPU time, or its duration if it waited.
    """

    cpu_s: float
    wall_s: float
    what: str
    held_s: float


class TurnTimes:
    """The turns of the running loop, from `start` to `stop`."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.thread_time,
        starved: Callable[[], float] | None = None,
    ) -> None:
        """`clock` gives seconds, `cpu` and `starved` the loop's thread's: used CPU time, and waited for a CPU."""
        self.durations = Durations()
        """The CPU time of the turn found by each reading, 0 if no turn was longer than a period."""
        self.blocked = Durations()
        """The duration of each turn that waited for BLOCKED_S or longer."""
        self.longest = Turn(0.0, 0.0, "", 0.0)
        """The longest turn since the process became ready."""
        self._clock, self._cpu, self._starved = clock, cpu, starved or self._read_starved
        self._at = self._used = self._starved_s = 0.0
        self._is_blocked = self._was_stopped = False
        self._is_ready: Callable[[], bool] | None = None
        self._next_ready_look = 0.0
        self._unlogged: Turn | None = None
        self._logged_at = float("-inf")
        self._sample = ""
        self._collecting_since = self._collected_s = 0.0
        self._loop: asyncio.AbstractEventLoop
        self._after: Callable[[], None]
        self._reading: asyncio.Task[None]
        self._is_due = self._is_stopped = False
        self._schedstat = -1

    def start(self, is_ready: Callable[[], bool], after: Callable[[], None] = lambda: None) -> None:
        """Begin to measure, on the main thread. Turns before `is_ready` first returned true are counted separately.

        `after` is called with each reading: for work that is due by the CPU time that was used.
        """
        self._is_ready, self._after = is_ready, after
        self._loop = asyncio.get_running_loop()
        with suppress(OSError):  # Of this thread, whoever reads it.
            self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        gc.callbacks.append(self._collecting)
        self._at, self._used, self._starved_s = self._clock(), self._cpu(), self._starved()
        for number in (signal.SIGPROF, signal.SIGALRM, signal.SIGCONT):
            signal.signal(number, self.interrupted)
            signal.siginterrupt(number, False)
        signal.setitimer(signal.ITIMER_PROF, PERIOD_S, PERIOD_S)
        self._reading = asyncio.create_task(self._read(), name="turns")

    def stop(self) -> None:
        """Stop measuring: the node is shutting down. A look that is still due sets no timer again.

        Python ends with the signals' default handlers, and a timer that runs out then would kill the process.
        """
        self._is_stopped = True
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        self._reading.cancel()
        gc.callbacks.remove(self._collecting)
        if self._schedstat >= 0:
            os.close(self._schedstat)
            self._schedstat = -1

    def interrupted(self, number: int, frame: FrameType | None) -> None:
        """The handler of the signals: have the loop look after the present turn, and note what runs in a long one."""
        if number == signal.SIGCONT:
            self._was_stopped = True
            return
        if number == signal.SIGALRM:
            self._sample = self._sample or what_runs(frame)
            self._is_blocked = bool(self._sample)
            return
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon_threadsafe(self._turned)
        if not self._sample and self._cpu() - self._used >= LONG_S:
            self._sample = what_runs(frame)

    async def _read(self) -> None:
        while True:
            await next_tick(READ_S)
            self.look()
            self._newly_starved()  # Not with each reading: it lets go of the GIL, which another thread may then hold.

    def _turned(self) -> None:
        if self._is_stopped:
            return
        self._is_due = False
        self.look()
        self._after()

    def look(self) -> None:
        """Note the CPU time that the loop's thread used since the last reading."""
        now, used = self._clock(), self._cpu()
        cpu_s, wall_s = max(0.0, used - self._used - PERIOD_S), now - self._at
        waited_s = wall_s - cpu_s - self._newly_starved() if self._is_blocked else 0.0
        self._at, self._used = now, used
        signal.setitimer(signal.ITIMER_REAL, BLOCKED_S)
        self.durations.observe(cpu_s)
        if self._is_blocked and not self._was_stopped and waited_s >= BLOCKED_S:
            self.blocked.observe(wall_s)
            self._long(Turn(cpu_s, wall_s, self._sample, wall_s), now)
        elif cpu_s >= LONG_S:
            what = "the garbage collector" if self._collected_s > cpu_s / 2 else self._sample
            self._long(Turn(cpu_s, wall_s, what, cpu_s), now)
        elif self._is_ready is None and cpu_s > self.longest.held_s:
            self.longest = Turn(cpu_s, wall_s, "", cpu_s)
        self._sample, self._collected_s, self._is_blocked, self._was_stopped = "", 0.0, False, False
        if self._is_ready is not None and now >= self._next_ready_look:
            self._next_ready_look = now + READY_INTERVAL_S
            if self._is_ready():
                self._is_ready = None
        if self._unlogged is not None and now - self._logged_at >= LOG_INTERVAL_S:
            self._log(self._unlogged, now)

    def _newly_starved(self) -> float:
        before, self._starved_s = self._starved_s, self._starved()
        return self._starved_s - before

    def _read_starved(self) -> float:
        """For how long the loop's thread was ready and got no CPU, in seconds; 0 if the kernel does not tell."""
        try:
            return int(os.pread(self._schedstat, 64, 0).split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return 0.0

    def _long(self, turn: Turn, now: float) -> None:
        if self._is_ready is not None:
            journal.info("long turn at the start", **_shown(turn))
            return
        if turn.held_s > self.longest.held_s:
            self.longest = turn
        if now - self._logged_at >= LOG_INTERVAL_S:
            self._log(turn, now)
        elif self._unlogged is None or turn.held_s > self._unlogged.held_s:
            self._unlogged = turn

    def _log(self, turn: Turn, now: float) -> None:
        self._unlogged, self._logged_at = None, now
        journal.warning("long turn", **_shown(turn))

    def _collecting(self, phase: str, _info: dict[str, Any]) -> None:
        if phase == "start":
            self._collecting_since = self._cpu()
        else:
            self._collected_s += self._cpu() - self._collecting_since


def what_runs(frame: FrameType | None) -> str:
    """The innermost function and quire's functions that led to it, outermost first; at most NAMED from each end.

    Empty if the loop waits for what comes next.
    """
    found: list[str] = []
    if frame is not None and frame.f_code.co_filename == selectors.__file__:
        return ""
    while frame is not None and frame.f_code.co_filename != asyncio.runners.__file__:
        code = frame.f_code
        if not found or code.co_filename.startswith(ROOT):
            line = "" if found else f":{frame.f_lineno}"
            found.append(f"{Path(code.co_filename).stem}.{code.co_qualname}{line}")
        frame = frame.f_back
    found.reverse()
    if len(found) > 2 * NAMED:
        found[NAMED:-NAMED] = ["..."]
    return " > ".join(found)


def _shown(turn: Turn) -> dict[str, Any]:
    return {"cpu_ms": round(turn.cpu_s * 1000), "wall_ms": round(turn.wall_s * 1000), "what": turn.what or "unknown"}
