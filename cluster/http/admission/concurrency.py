"""Concurrency limits: for long polls, a session's records in flight, and the requests of a standalone log."""

import asyncio
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

from aiohttp import web

from ...errors import Overloaded
from .addresses import full, share_of

LONG_POLLS_LIMIT = 1024


class ConcurrencyLimit:
    """At most `limit` of one thing at a time. One event loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @contextmanager
    def slot(self) -> Generator[None, None, None]:
        """A slot for as long as the block runs.

        Raises:
            Overloaded: all slots are taken.
        """
        if self._count >= self._limit:
            raise full(self._limit, "such requests are under way", is_whole=True)
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1


class LongPollLimit:
    """At most `limit` requests wait for one thing, as at the end of the log. One event loop."""

    def __init__(self, what: str = "GET /records wait for a record", limit: int = LONG_POLLS_LIMIT) -> None:
        """`what` names the requests, and what they wait for."""
        self._what = what
        self._limit = limit
        self._tasks: dict[asyncio.Task[object], tuple[web.Request, str]] = {}
        self._of_origin: Counter[str] = Counter()
        self._has_looked = False  # In the present turn of the loop.

    def __len__(self) -> int:
        return len(self._tasks)

    @contextmanager
    def slot(self, request: web.Request, origin: str) -> Generator[None, None, None]:
        """A slot for the current task's request while the block runs.

        Raises:
            Overloaded: all slots, or the origin's share, are taken by requests whose callers are still connected.
        """
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a request is handled in a task")
        if self._is_full(origin):
            self._cancel_abandoned()
        if self._is_full(origin):
            is_whole = len(self._tasks) >= self._limit
            raise full(self._limit, f"requests of {self._what}", is_whole=is_whole)
        self._tasks[task] = request, origin
        self._of_origin[origin] += 1
        try:
            yield
        finally:
            self._forget(task)

    def _is_full(self, origin: str) -> bool:
        return len(self._tasks) >= self._limit or self._of_origin[origin] >= share_of(self._limit)

    def _forget(self, task: asyncio.Task[object]) -> None:
        if task in self._tasks:
            _, origin = self._tasks.pop(task)
            self._of_origin[origin] -= 1
            if not self._of_origin[origin]:
                del self._of_origin[origin]

    def _cancel_abandoned(self) -> None:
        # aiohttp does not cancel a handler whose caller disconnects, so a waiting one would not notice.
        if self._has_looked:
            return  # Nobody disconnects within one turn of the loop, and many requests may come in one.
        self._has_looked = True
        asyncio.get_running_loop().call_soon(self._look_again)
        for task, (request, _) in list(self._tasks.items()):
            if request.transport is None or request.transport.is_closing():
                self._forget(task)
                task.cancel()

    def _look_again(self) -> None:
        self._has_looked = False


class SessionLimit:
    """Limits each session's records in flight by POST on this leader; streams have their own window. One event loop."""

    def __init__(self) -> None:
        self._in_flight: Counter[int] = Counter()

    @contextmanager
    def slots(self, session: int, count: int, window: int) -> Generator[None, None, None]:
        """Slots for `count` records of the session, for as long as the block runs.

        Raises:
            Overloaded: more than `window` would be in flight. The session could no longer answer a retry of the oldest.
        """
        if self._in_flight[session] + count > window:
            raise Overloaded(f"at most {window:,} commands of a session are under way")
        self._in_flight[session] += count
        try:
            yield
        finally:
            self._in_flight[session] -= count
            if not self._in_flight[session]:
                del self._in_flight[session]
