"""The open streams of commands: how many there may be, and when an idle one ends.

A client reopens its stream for its next message, so ending an idle one costs it nothing. A stream is ended after
`STREAM_IDLE_S` without a message. When all slots, or the slots of one origin (`addresses.py`), are taken, the stream
among these that was idle for longest makes room for a new one. A stream with an unanswered message is not idle.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager

from .addresses import full, share_of

STREAMS_LIMIT = 1024  # Of /commands/stream on one node, carried ones included: each may hold a window of memory.
STREAM_IDLE_S = 300.0
YIELDS_AFTER_S = 1.0  # A stream that was idle for less does not make room: its client may be about to send.

Clock = Callable[[], float]


class OpenStream:
    """One stream's slot: when a message last passed, how many are unanswered, and the event that ends it."""

    __slots__ = ("_clock", "_in_flight", "_moved_at", "ended", "is_allowed", "origin")

    def __init__(self, clock: Clock, origin: str = "", is_allowed: Callable[[], bool] = lambda: True) -> None:
        self._clock = clock
        self.origin = origin
        self.is_allowed = is_allowed
        """Whether its client might still open it."""
        self._in_flight = 0
        self._moved_at = clock()
        self.ended = asyncio.Event()

    def sent(self) -> None:
        """The client sent a message."""
        self._in_flight += 1
        self._moved_at = self._clock()

    def answered(self) -> None:
        """A message was answered, or never will be."""
        self._in_flight -= 1
        self._moved_at = self._clock()

    @property
    def idle_s(self) -> float:
        """How long nothing has passed; 0 while a message is unanswered."""
        return 0.0 if self._in_flight > 0 else self._clock() - self._moved_at


class StreamLimit:
    """At most `limit` open streams. One event loop."""

    def __init__(self, limit: int = STREAMS_LIMIT, clock: Clock = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._streams: set[OpenStream] = set()
        self.idle_s = STREAM_IDLE_S
        self.yields_after_s = YIELDS_AFTER_S

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[OpenStream]:
        return iter(self._streams)

    def is_over(self, stream: OpenStream) -> bool:
        """Whether the stream has been idle for long enough to be ended."""
        return stream.idle_s >= self.idle_s

    @contextmanager
    def slot(self, origin: str, is_allowed: Callable[[], bool] = lambda: True) -> Generator[OpenStream, None, None]:
        """A slot while the block runs, or until `ended` is set: for another stream, or if it is allowed no more.

        Raises:
            Overloaded: all slots, or the origin's share of them, are taken, and no stream of those is idle.
        """
        own = [stream for stream in self._streams if stream.origin == origin]
        if len(own) >= share_of(self._limit) and not self._end_the_idlest(own):
            raise full(self._limit, "streams are open", is_whole=False)
        if len(self._streams) >= self._limit and not self._end_the_idlest(self._streams):
            raise full(self._limit, "streams are open", is_whole=True)
        stream = OpenStream(self._clock, origin, is_allowed)
        self._streams.add(stream)
        try:
            yield stream
        finally:
            self._streams.discard(stream)

    def _end_the_idlest(self, streams: Collection[OpenStream]) -> bool:
        idlest = max(streams, key=lambda stream: stream.idle_s, default=None)
        if idlest is None or idlest.idle_s < self.yields_after_s:
            return False
        self._streams.remove(idlest)  # Its connection may take a while to close.
        idlest.ended.set()
        return True
