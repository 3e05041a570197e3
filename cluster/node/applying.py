"""Applying what is committed: from the log to the machine, in slices that leave the loop to others."""

import asyncio
import heapq
import time
from collections.abc import Callable
from itertools import count

from quire.log import FrameHeader, Log, LogError, walk_frames
from quire.sm import Applied, Applier, ApplyFailed

APPLY_BYTES = 1 << 20
SLICE_S = 0.01


class Applying:
    """Runs an applier up to what it was told. One loop; `on_applied` is called after each frame."""

    def __init__(
        self,
        log: Log,
        applier: Applier,
        on_applied: Callable[[Applied], None],
        on_failed: Callable[[ApplyFailed], None],
        on_ended: Callable[[Exception], None],
        at_boundary: Callable[[FrameHeader], None],
    ) -> None:
        """`at_boundary` is called after a frame was applied and answered, with its header.

        `on_failed` is told when the machine can apply no more, `on_ended` what ends the node: an error of the log, or a
        fault of this program.
        """
        self.applier = applier
        self._at_boundary = at_boundary
        self._log = log
        self._on_applied = on_applied
        self._on_failed = on_failed
        self._on_ended = on_ended
        self._to_index = applier.applied_index
        self._scheduled = False
        self._stopped = False
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = count()

    def apply_to(self, index: int) -> None:
        """Apply all below `index`; at once, as far as a slice of time goes."""
        self._to_index = max(self._to_index, index)
        if not self._scheduled:
            self._apply_slice()

    def go_on_from(self, applier: Applier) -> None:
        """Another machine, behind a snapshot that was installed, takes the place of this one."""
        self.applier = applier
        self._to_index = max(self._to_index, applier.applied_index)
        self._wake()

    def stop(self) -> None:
        """Apply nothing more: the log is about to be closed."""
        self._stopped = True

    async def reached(self, index: int) -> None:
        """Return when all below `index` is applied.

        Raises:
            ApplyFailed: applying has stopped.
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
                    self._on_applied(applier.apply(frame))
                    self._at_boundary(frame.header)
        except ApplyFailed as failure:
            self._on_failed(failure)
        except LogError as failure:  # a committed frame that cannot be read here: this node cannot go on
            self._stopped = True
            self._on_ended(failure)
        except Exception as fault:  # in a slice of its own nobody else would hear of it
            self._stopped = True
            self._on_ended(fault)
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
