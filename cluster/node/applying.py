"""Applies committed frames, from the log to the machine, in time slices that keep the loop free."""

import asyncio
import heapq
import time
from itertools import count
from typing import Protocol

from quire.log import FrameHeader, Log, LogError, ResourcesExhausted, walk_frames
from quire.sm import Applied, Applier, ApplyFailed

APPLY_BYTES = 1 << 20
SLICE_S = 0.01
RETRY_S = 0.05  # Before another attempt, if there is no descriptor or memory to read the log with.


class ApplyEvents(Protocol):
    """What applying reports to its node. Called on the loop; none may block."""

    def applied(self, applied: Applied) -> None:
        """A frame was applied."""
        ...

    def at_boundary(self, header: FrameHeader) -> None:
        """The frame with this header was applied, and its writes were answered."""
        ...

    def apply_failed(self, failure: ApplyFailed) -> None:
        """The machine can apply no more; the log continues."""
        ...

    def failed(self, error: Exception) -> None:
        """The node must stop: the log failed, or this program has a bug."""
        ...


class Applying:
    """Applies committed frames up to the index that it was given. One event loop."""

    def __init__(self, log: Log, applier: Applier, node: ApplyEvents) -> None:
        self.applier = applier
        self._log = log
        self._node = node
        self._to_index = applier.applied_index
        self._scheduled = False
        self._stopped = False
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = count()

    def apply_to(self, index: int) -> None:
        """Apply every record below `index`: at once, as far as one time slice reaches."""
        self._to_index = max(self._to_index, index)
        if not self._scheduled:
            self._apply_slice()

    def continue_from(self, applier: Applier) -> None:
        """Replace the machine by the one of an installed snapshot."""
        self.applier = applier
        self._to_index = max(self._to_index, applier.applied_index)
        self._wake()

    def stop(self) -> None:
        """Stop applying: the log is about to be closed."""
        self._stopped = True

    async def reached(self, index: int) -> None:
        """Return when every record below `index` is applied.

        Raises:
            ApplyFailed: the machine can apply no more.
        """
        if self.applier.failure is not None:
            raise self.applier.failure
        if self.applier.applied_index < index:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (index, next(self._order), waiting))
            await waiting

    def _apply_slice(self) -> None:
        self._scheduled = False
        if self._stopped:
            return
        applier, until = self.applier, time.monotonic() + SLICE_S
        try:
            while applier.failure is None and applier.applied_index < self._to_index:
                if time.monotonic() > until:
                    self._scheduled = True
                    asyncio.get_running_loop().call_soon(self._apply_slice)
                    break
                raw, _ = self._log.read_frames(applier.applied_index, APPLY_BYTES, to_index=self._to_index)
                for frame in walk_frames(raw):
                    self._node.applied(applier.apply(frame))
                    self._node.at_boundary(frame.header)
        except ApplyFailed as failure:
            self._node.apply_failed(failure)
        except ResourcesExhausted:  # It shows as apply lag until a read succeeds.
            self._scheduled = True
            asyncio.get_running_loop().call_later(RETRY_S, self._apply_slice)
        except LogError as failure:  # A committed frame cannot be read here: this node cannot continue.
            self._stopped = True
            self._node.failed(failure)
        except Exception as fault:  # A later slice runs as a callback of the loop: nobody else would notice.
            self._stopped = True
            self._node.failed(fault)
            self._wake()
            raise
        self._wake()

    def _wake(self) -> None:
        failure = self.applier.failure
        while self._waiting and (failure or self._waiting[0][0] <= self.applier.applied_index):
            waiting = heapq.heappop(self._waiting)[2]
            if not waiting.done():
                if failure is None:
                    waiting.set_result(None)
                else:
                    waiting.set_exception(failure)
