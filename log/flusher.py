"""Group flush for asyncio: one sync, outside the event loop, for every record that waits.

A standalone log uses it; a cluster's node flushes in `quire.replication.threads`.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from heapq import heapify, heappop, heappush

from .errors import LogReadOnly, NoRoom, RecordsTruncated
from .log import Log
from .options import FLUSH_ALWAYS

FULL_RETRY_S = 0.2
"""The wait before another attempt to write what an overwrite found no room for."""


class GroupFlusher:
    """Flushes a log as its policy requires, and whenever a caller waits. For a log used by one event loop only.

    Call `settled` or `appended` after each append, and `sync_mark` once a second.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._policy = log.flush_policy
        self._timer: asyncio.TimerHandle | None = None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="log-flush")
        self._executor.submit(int)  # Its thread starts now: later there may be none left for it.
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._arrivals = 0
        self._task: asyncio.Task[None] | None = None
        self._due = False
        self._closing = False
        log.segments.elsewhere = self._executor.submit
        log.on_truncated = self._truncated

    async def settled(self, index: int) -> None:
        """Wait until the records below `index` may be acknowledged: under FLUSH_ALWAYS, until they are durable.

        Raises:
            LogReadOnly, RecordsTruncated: as `flushed`.
        """
        if self._policy == FLUSH_ALWAYS:
            await self.flushed(index)
        else:
            self.appended()

    def appended(self) -> None:
        """Begin the flush that the policy requires, or set the timer for it."""
        policy, waiting = self._policy, self._log.bounds.highest_index - self._log.durable_index
        if not waiting or self._log.failure is not None:
            return
        if policy.records is not None and waiting >= policy.records:
            self._wake()
        elif policy.interval_ms is not None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(policy.interval_ms / 1000, self._interval_over)

    def _interval_over(self) -> None:
        self._timer = None
        self._wake()

    async def flushed(self, index: int) -> None:
        """Wait until every record below `index` is durable.

        Raises:
            LogReadOnly: a flush failed; only a restart tells whether these records survive.
            RecordsTruncated: they were truncated while this waited, and others may have their indices by now.
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
        self._wake()
        await future

    async def sync_mark(self) -> None:
        """Sync the mark if it has moved; check that the files are in place. Call it once a second.

        Raises:
            LogReadOnly: the device failed, or the files are not in place.
        """
        run = partial(asyncio.get_running_loop().run_in_executor, self._executor)
        sync = self._log.mark_sync.begin()
        if sync is not None:
            error: OSError | None = None
            try:
                await run(sync.run)
            except OSError as failed:
                error = failed
            self._log.mark_sync.end(sync, error)
            if self._log.failure is not None:
                raise LogReadOnly(self._log.failure)
        await run(self._log.watch.look)
        self._log.watch.judge()

    async def close(self) -> None:
        """Answer all waiters, and end the thread. The log stays open; its `close` flushes the rest."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._closing = True
            await self._task
        self._log.segments.elsewhere = None
        self._executor.shutdown()

    def _wake(self) -> None:
        self._due = True
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._flush_while_due())

    async def _flush_while_due(self) -> None:
        while self._due or self._waiting:
            self._due = False
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            try:
                await self._flush_once()
            except NoRoom as full:
                # What was appended waits in memory and may still be written: until then its outcome is unknown.
                if self._closing:
                    self._refuse_all(LogReadOnly(str(full)))
                    return
                await asyncio.sleep(FULL_RETRY_S)
                self._due = True
                continue
            except LogReadOnly as refusal:
                self._refuse_all(refusal)
            except Exception as error:  # After any error, no caller may wait forever.
                self._refuse_all(error)
                raise
            self._answer()
            # No flush can make removed records durable: their callers would wait forever.
            self._truncated(self._log.bounds.highest_index)
            if self._policy != FLUSH_ALWAYS:
                self.appended()

    async def _flush_once(self) -> None:
        flush = self._log.begin_flush()
        if flush is not None:
            error: OSError | None = None
            try:
                await asyncio.get_running_loop().run_in_executor(self._executor, flush.run)
            except OSError as failed:
                error = failed
            self._log.end_flush(flush, error)
        if self._log.failure is not None:
            raise LogReadOnly(self._log.failure)

    def _answer(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._log.durable_index:
            _, _, future = heappop(self._waiting)
            if not future.done():
                future.set_result(None)

    def _truncated(self, index: int) -> None:
        """Refuse waiters for removed records: the index that they have may soon be that of another record."""
        kept = [waiting for waiting in self._waiting if waiting[0] <= index]
        for until, _, future in self._waiting:
            if until > index and not future.done():
                future.set_exception(RecordsTruncated(index))
        self._waiting = kept
        heapify(self._waiting)

    def _refuse_all(self, error: Exception) -> None:
        for _, _, future in self._waiting:
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()
