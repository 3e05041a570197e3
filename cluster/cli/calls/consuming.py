"""How `quire consume` consumes: what it prints or hands to handlers, and what it commits.

Handlers work on several records at once, and end in any order. An index is committed once everything below it is
finished. At most one commit is in flight; when it is done, the next one is of the newest such index. When the command
ends, for whatever reason, what is finished is committed, unless the cursor is lost or the cluster does not answer.
"""

import asyncio
import os
import signal
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextlib import aclosing, contextmanager
from dataclasses import asdict, dataclass
from types import FrameType

from ...client import (
    Batch,
    Client,
    ClientError,
    CursorTaken,
    HistoryChanged,
    OutcomeUnknown,
    Record,
    RecordsLost,
    Unavailable,
)
from ...standard_streams import DRAIN_S, stdout_queue
from ..output import complain, say_all, to_json
from .handlers import Handlers

MAX_OUT_OF_ORDER = 10_000
"""Finished records above one that is not; then no handler begins until it is. So many may come again after a crash."""

Batches = AsyncGenerator[Batch, None]


@dataclass(frozen=True, slots=True)
class Consumption:
    """What to consume. The fields are as the arguments of `Client.consume`."""

    name: str
    share: tuple[int, int] | None
    start: int | str
    until: int | None
    hold_bytes: int | None
    skip_lost: bool

    async def run(self, unopened: Client, handlers: Handlers | None, max_in_flight: int) -> None:
        """Consume until it is cancelled, by SIGTERM too, or `until` is reached. Without handlers, print the records.

        Raises:
            ClientError: it cannot continue. What is finished was committed, if it could be.
            OutputLost: stdout takes no more. The batch that it did not take is not committed.
        """
        async with unopened as client:
            consumed = client.consume(
                self.name,
                shard=self.share,
                start=self.start,
                until=self.until,
                hold_bytes=self.hold_bytes,
                skip_lost=self.skip_lost,
            )
            with _ended_by_sigterm():
                try:
                    async with aclosing(consumed) as batches:
                        if handlers is None:
                            await print_records(batches)
                        else:
                            with handlers.children:
                                await _Handling(handlers, max_in_flight).run(batches)
                except RecordsLost as error:
                    raise ClientError(str(error) if self.skip_lost else f"{error} with --skip-lost") from None
                except HistoryChanged:
                    raise ClientError(
                        "the cluster was recovered: its log may have other records from some index on; run this again, "
                        "and the consumer continues where this log has its cursor"
                    ) from None


async def print_records(batches: Batches) -> None:
    """Print records, and commit each batch once stdout has it. Raises OutputLost."""
    async for batch in batches:
        _complain_of_lost(batch)
        saying = asyncio.ensure_future(say_all(to_json(asdict(record)) for record in batch.records))
        try:
            await asyncio.shield(saying)
            await batch.commit()
        except asyncio.CancelledError:
            try:
                await asyncio.wait_for(saying, DRAIN_S)
            except TimeoutError:  # Nobody reads: it comes again.
                stdout_queue().is_given_up = True
            else:
                await batch.commit()
            raise


def _complain_of_lost(batch: Batch) -> None:
    if batch.lost:
        complain(
            f"up to {batch.lost:,} records below index {batch.records[0].index} expired before they were read; "
            "they are skipped"
        )


@contextmanager
def _ended_by_sigterm() -> Generator[None]:
    """Have SIGTERM and SIGHUP cancel the current task, as asyncio has Ctrl-C; a second one ends the process.

    SIGHUP comes when the terminal closes. Handlers, which lead groups of their own, do not get it. `nohup` ignores it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    stop = _canceller()
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _canceller() -> Callable[[int, FrameType | None], None]:
    loop, task, count = asyncio.get_running_loop(), asyncio.current_task(), 0

    def stop(number: int, _frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        if count > 1 or task is None:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        loop.call_soon_threadsafe(task.cancel)

    return stop


class Unfinished:
    """Records that are delivered in order and finished in any, and so up to where a cursor may go."""

    def __init__(self) -> None:
        self._waiting: deque[int] = deque()
        """From the lowest unfinished one on, ascending; what is finished above it is in `_finished`."""
        self._finished: set[int] = set()
        self._next_index = 0

    def deliver(self, indices: Iterable[int], next_index: int) -> None:
        """Records at these indices, above all earlier ones; after them, delivery continues at `next_index`."""
        self._waiting.extend(indices)
        self._next_index = next_index

    def finish(self, index: int) -> None:
        """A record that was delivered is finished."""
        self._finished.add(index)
        while self._waiting and self._waiting[0] in self._finished:
            self._finished.remove(self._waiting.popleft())

    @property
    def committable(self) -> int:
        """The index below which everything that was delivered is finished."""
        return self._waiting[0] if self._waiting else self._next_index

    @property
    def out_of_order(self) -> int:
        """How many are finished above one that is not."""
        return len(self._finished)


class _Handling:
    """Hands records to handlers, several at once, and commits what is finished."""

    def __init__(self, handlers: Handlers, max_in_flight: int) -> None:
        self._handlers = handlers
        self._max_in_flight = max_in_flight
        self._slots = asyncio.Semaphore(max_in_flight)
        self._unfinished = Unfinished()
        self._newest: Batch | None = None
        self._progressed = asyncio.Event()
        self._in_order = asyncio.Event()
        self._committing = asyncio.Lock()

    async def run(self, batches: Batches) -> None:
        """Handle all records. Raises ClientError."""
        try:
            async with asyncio.TaskGroup() as group:
                committing = group.create_task(self._commit_forever())
                async for batch in batches:
                    await self._begin(batch, group)
                await self._finish_all()
                committing.cancel()
        except asyncio.CancelledError:
            await self._commit()
            raise
        except BaseExceptionGroup as errors:
            error = errors.exceptions[0]
            if not isinstance(error, CursorTaken | HistoryChanged | OutcomeUnknown | Unavailable):
                await self._commit_at_end()
            raise error from None

    async def _begin(self, batch: Batch, group: asyncio.TaskGroup) -> None:
        _complain_of_lost(batch)
        self._unfinished.deliver((record.index for record in batch.records), batch.next_index)
        self._newest = batch
        for record in batch.records:
            while self._unfinished.out_of_order >= MAX_OUT_OF_ORDER:
                self._in_order.clear()
                await self._in_order.wait()
            await self._slots.acquire()
            group.create_task(self._handle(record))

    async def _handle(self, record: Record) -> None:
        await self._handlers.handle(record.index, f"{to_json(asdict(record))}\n".encode())
        self._unfinished.finish(record.index)
        self._progressed.set()
        self._in_order.set()
        self._slots.release()  # Not if it failed: then nothing else begins.

    async def _finish_all(self) -> None:
        for _ in range(self._max_in_flight):
            await self._slots.acquire()
        await self._commit()

    async def _commit_forever(self) -> None:
        while True:
            await self._progressed.wait()
            self._progressed.clear()
            await self._commit()

    async def _commit(self) -> None:
        async with self._committing:
            if self._newest is not None:
                await self._newest.commit(self._unfinished.committable)

    async def _commit_at_end(self) -> None:
        try:
            await self._commit()
        except ClientError as error:
            complain(f"what was handled last is not committed, and will come again: {error}")
