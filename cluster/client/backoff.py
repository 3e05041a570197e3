"""The waits between the attempts of a call. Each failed attempt is logged at level DEBUG by the logger `quire.client`.

The waits double from BACKOFF_FIRST_S to BACKOFF_LONGEST_S, unless a server asks for a certain wait.
"""

import asyncio
import logging
import random
import time

from .errors import ClientError

BACKOFF_FIRST_S = 0.02  # And as much again at random.
BACKOFF_LONGEST_S = 1.0
MOST_DOUBLINGS = 16
RETRY_SPREAD = 0.5  # Of the time that a server asks for, added at random.

log = logging.getLogger("quire.client")
log.addHandler(logging.NullHandler())  # Nothing appears until the program configures logging.


class AttemptFailed(ClientError):
    """An attempt failed, and a later one may succeed. `retry_after_s` is what the server asked for, if it did."""

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class Backoff:
    """Waits between the attempts of one call or stream, `what` in the log."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._failures = 0

    async def wait(self, failure: AttemptFailed, deadline: float | None = None) -> None:
        """Log a failed attempt, and return when it is time for the next, or at the deadline (`time.monotonic()`)."""
        wait_s = self.next_s(failure.retry_after_s)
        if deadline is not None:
            wait_s = max(0.0, min(wait_s, deadline - time.monotonic()))
        log.debug("%s: attempt %d failed: %.300s; waiting %.3f s", self._what, self._failures, failure, wait_s)
        await asyncio.sleep(wait_s)

    def next_s(self, retry_after_s: float | None) -> float:
        """How long to wait after another failure. `retry_after_s` is what the server asked for, if it did.

        That time is extended at random by up to half: a server gives the same time to all clients that it refuses at
        once, and without this they would all return at once.
        """
        self._failures += 1
        if retry_after_s:
            return retry_after_s * random.uniform(1, 1 + RETRY_SPREAD)
        doubled = BACKOFF_FIRST_S * 2.0 ** min(self._failures - 1, MOST_DOUBLINGS)
        return min(BACKOFF_LONGEST_S, doubled + random.uniform(0, BACKOFF_FIRST_S))
