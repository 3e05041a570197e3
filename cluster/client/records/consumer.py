"""Consumers: they read the log batch by batch, and commit where they are.

A record is delivered at least once: again, if its consumer ended, or lost its cursor, before the commit. Records come
in the order of the log; of a share, in the order of that share alone.

A consumer takes its cursor by a new token when it begins, and then is the only one that can move it. Nothing is
committed that was not asked for, with one exception. A consumer may get no record for a long time while the log grows
and expires; once it has passed IDLE_RECORDS indices without one, or its cursor is below the beginning of the log, it
commits where it is. That is so rare that consumers do not chase each other's commits, which are in the log, too.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from ..connection import Run
from ..errors import NotFound, RecordsLost, Unavailable
from .cursors import Cursors, Start, share_name
from .pages import AHEAD, Page, Record, RecordPages, RecordsExpired

IDLE_RECORDS = 100_000


@dataclass(slots=True)
class _Progress:
    """How far a consumer is: all below `committed` is committed, and all below `delivered` was given to the program."""

    name: str
    token: bytes
    committed: int
    delivered: int

    def is_left_behind(self, page: Page) -> bool:
        """Whether nothing is left to commit, and the cursor is far below the page, or below the log's beginning."""
        far = page.next_index - self.committed >= IDLE_RECORDS or self.committed < page.lowest_index
        return far and self.committed >= self.delivered


@dataclass(frozen=True, slots=True)
class Batch:
    """Records for a consumer, at least one, in the order of the log.

    Up to `lost` records before them had expired; it is 0 unless the consumer skips these.
    """

    records: Sequence[Record]
    next_index: int
    """Where the consumer continues: all its records below are in this batch or in an earlier one."""
    lost: int
    _cursors: Cursors = field(repr=False)
    _progress: _Progress = field(repr=False)

    async def commit(self, before: int | None = None) -> None:
        """Commit that all records below `before` are done with: those of this batch and of all earlier ones.

        Without `before`, all of this batch. It is on a majority's disks on return. A commit below an earlier one does
        nothing.

        Raises:
            CursorTaken: another consumer took the cursor, or an operator moved it; nothing was committed.
            ValueError: `before` is beyond this batch.
            Unavailable: nothing was committed within the client's `timeout_s`.
            OutcomeUnknown: it may have been committed; call this again.
        """
        index = self.next_index if before is None else before
        if index > self.next_index:
            raise ValueError(f"index {index} is beyond the batch, which ends at {self.next_index}")
        await _commit(self._cursors, self._progress, index)


async def _commit(cursors: Cursors, progress: _Progress, index: int) -> None:
    if index > progress.committed:
        await cursors.commit(progress.name, index, progress.token)
        progress.committed = max(progress.committed, index)


async def batches(
    pages_of: Callable[[str | None], RecordPages],
    cursors: Cursors,
    name: str,
    *,
    shard: tuple[int, int] | None,
    start: Start,
    until: int | None,
    hold_bytes: int | None,
    skip_lost: bool,
) -> AsyncGenerator[Batch, None]:
    """As `Client.consume`; `pages_of` gives this consumer the records of a history of the cluster."""
    cursor, token = share_name(name, shard), os.urandom(16)
    index, history = await cursors.take(name, shard, start, token, hold_bytes)
    pages, progress = pages_of(history), _Progress(cursor, token, index, index)
    loss: RecordsLost | None = None  # It was not told yet.
    parameters = {} if shard is None else {"shard": f"{shard[0]}/{shard[1]}"}
    while until is None or index < until:
        try:
            async with aclosing(_ahead(pages.follow(index, until, parameters))) as followed:
                async for page in followed:
                    index = page.next_index
                    if page.records:
                        progress.delivered = page.records[-1].index + 1  # The rest of the page is not for it.
                        yield Batch(page.records, index, loss.lost if loss else 0, cursors, progress)
                        loss = None
                    elif loss is None and progress.is_left_behind(page):  # A loss is told first.
                        await _commit(cursors, progress, index)
        except RecordsExpired as expired:
            if (further := await _without_records(cursors, progress, index)) > index:
                index = further
                continue
            if not skip_lost:
                raise RecordsLost(cursor, index, expired.lowest_index) from None
            loss = RecordsLost(cursor, index - (loss.lost if loss else 0), expired.lowest_index, until)
            index = expired.lowest_index
        except NotFound as error:
            if error.type not in AHEAD:
                raise
            raise Unavailable(f"no server has the log up to index {index} yet: {error}") from error
    if loss is not None:
        raise loss


async def _without_records(cursors: Cursors, progress: _Progress, index: int) -> int:
    """From `index`, where the consumer's next record is, if the leader knows that what expired was not for it."""
    row = await cursors.get(progress.name)
    return row["next_index"] if row["token"] == progress.token.hex() and not row["lost"] else index


async def _ahead(pages: AsyncGenerator[Page, None]) -> AsyncGenerator[Page, None]:
    """The same pages. While the caller works with one, the next one is fetched."""
    following = asyncio.ensure_future(anext(pages, None))
    try:
        while (page := await following) is not None:
            following = asyncio.ensure_future(anext(pages, None))
            yield page
    finally:
        following.cancel()
        await asyncio.wait([following])
        if not following.cancelled():
            following.exception()  # It was raised above, or nobody wants the page any more.
        await pages.aclose()


class BlockingBatch:
    """A `Batch` for programs without an event loop."""

    def __init__(self, batch: Batch, run: Run) -> None:
        self._batch = batch
        self._run = run
        self.records = batch.records
        self.next_index = batch.next_index
        self.lost = batch.lost

    def commit(self, before: int | None = None) -> None:
        """Commit that all records below `before` are done with; see `Batch.commit`."""
        self._run(self._batch.commit(before))
