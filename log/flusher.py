"""Group flush for asyncio: one sync for all that waited, off the event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from heapq import heappop, heappush

from .errors import LogReadOnly
from .log import Log


class GroupFlusher:
    """Flushes a log whenever somebody waits. For logs that one event loop owns alone; it also syncs the mark."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="log-flush")
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._arrivals = 0
        self._task: asyncio.Task[None] | None = None

    async def flushed(self, index: int) -> None:
        """Return when every record below `index` is durable.

        Raises:
            LogReadOnly: a flush failed; whether these records survive is known after a restart.
        """
        if self._log.durable_index >= index:
            return
        if self._log.failure is not None:
            raise LogReadOnly(self._log.failure)
        if index > self._log.bounds.highest_index:
            raise ValueError(f"index {index} was never appended")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._arrivals += 1
        heappush(self._waiting, (index, self._arrivals, future))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._flush_while_waited_for())
        await future

    async def sync_mark(self) -> None:
        """Sync the mark if it moved; to be called once a second."""
        sync = self._log.begin_mark_sync()
        if sync is None:
            return
        error: OSError | None = None
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, sync.run)
        except OSError as failed:
            error = failed
        self._log.end_mark_sync(sync, error)

    async def close(self) -> None:
        """Wait until nobody waits any more, and end the thread. The log stays open."""
        if self._task is not None:
            await self._task
        self._executor.shutdown()

    async def _flush_while_waited_for(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            try:
                flush = self._log.begin_flush()
                if flush is not None:
                    error: OSError | None = None
                    try:
                        await loop.run_in_executor(self._executor, flush.run)
                    except OSError as failed:
                        error = failed
                    self._log.end_flush(flush, error)
                if self._log.failure is not None:
                    raise LogReadOnly(self._log.failure)
            except LogReadOnly as refusal:
                self._refuse_all(refusal)
            self._answer()

    def _answer(self) -> None:
        highest = self._log.bounds.highest_index
        while self._waiting and (self._waiting[0][0] <= self._log.durable_index or self._waiting[0][0] > highest):
            index, _, future = heappop(self._waiting)
            if future.done():
                continue
            if index <= self._log.durable_index:
                future.set_result(None)
            else:
                future.set_exception(LogReadOnly(f"the records below {index} were truncated"))

    def _refuse_all(self, error: LogReadOnly) -> None:
        for _, _, future in self._waiting:
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()
