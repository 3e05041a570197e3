"""Who waits at the end of the log: a bounded number of long polls."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from aiohttp import web

from ...errors import Overloaded

WAITING_LIMIT = 1024


class Waiting:
    """The requests that wait on this node. One event loop."""

    def __init__(self, limit: int = WAITING_LIMIT) -> None:
        self._limit = limit
        self._tasks: dict[asyncio.Task[object], web.Request] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    @contextmanager
    def place_for(self, request: web.Request) -> Generator[None, None, None]:
        """A place for the request whose task runs the block, as long as that runs.

        Raises:
            Overloaded: all places are taken by requests whose callers are still there.
        """
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a request is handled in a task")
        if len(self._tasks) >= self._limit:
            self._end_those_without_a_caller()
        if len(self._tasks) >= self._limit:
            raise Overloaded()
        self._tasks[task] = request
        try:
            yield
        finally:
            self._tasks.pop(task, None)

    def _end_those_without_a_caller(self) -> None:
        # aiohttp lets a handler run on when its caller hangs up; nothing else tells a waiting one about it.
        for task, request in list(self._tasks.items()):
            if request.transport is None or request.transport.is_closing():
                del self._tasks[task]
                task.cancel()
