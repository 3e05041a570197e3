"""`archive --every`: one run after another. During an outage it reports its lag, waits, and retries.

In an outage, no node of the cluster answers, or the network fails under a mounted folder. Errors that waiting cannot
fix end the rounds as they end a single run: damage, a foreign log, a gap that is not accepted, a full disk.
"""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ..errors import ClusterUnavailable, RecordsLost
from ..pieces import Progress

if TYPE_CHECKING:
    from .archive import ArchiveSummary

FIRST_RETRY_S = 1.0
LONGEST_RETRY_S = 60.0
"""Each retry waits twice as long as the previous one, up to this, minus up to half of it at random, so that the
archives of one cluster do not all retry at the same moment."""

_NETWORK = frozenset(
    (
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENOTCONN,
        errno.ESTALE,  # An NFS server that restarted.
    )
)


class Rounds:
    """Runs, `every_s` seconds apart, without end. One thread."""

    def __init__(
        self,
        run: Callable[[Progress], ArchiveSummary],
        every_s: float,
        progress: Progress,
        complain: Callable[[str], None],
        pause: Callable[[float], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`complain` gets a sentence for each outage, and one for its end."""
        self._run = run
        self._every_s = every_s
        self._progress = progress
        self._complain = complain
        self._pause = pause
        self._clock = clock
        self._complete_at: float | None = None  # When the archive last had everything that was committed.
        self._began_at = clock()
        self._lacking: int | None = None  # Records that the archive is known to lack; None: not known.

    def summaries(self) -> Iterator[ArchiveSummary]:
        """The summary of the first successful run, and of each later one that found new records.

        Raises:
            As `archive`, except for the errors of an outage.
        """
        failures, is_first = 0, True
        while True:
            try:
                summary = self._run(self._follow)
            except (ClusterUnavailable, RecordsLost, OSError) as error:
                if not is_outage(error):
                    raise
                wait_s = min(LONGEST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(failures, 10)) * random.uniform(0.5, 1)
                failures += 1
                reason = error.loss if isinstance(error, RecordsLost) else error
                self._complain(f"{reason}; {self._lag()}; trying again in {wait_s:.1f} s, until Ctrl-C")
                self._pause(wait_s)
                continue
            if failures:
                lasted_s = self._clock() - (self._began_at if self._complete_at is None else self._complete_at)
                caught_up = f"{summary.records:,} records were archived, after {lasted_s:.0f} s without success"
                self._complain(f"the log is reachable again: {caught_up}")
            self._complete_at, self._lacking, failures = self._clock(), None, 0
            if is_first or summary.files or summary.snapshots:
                yield summary
            is_first = False
            self._pause(self._every_s)

    def _follow(self, done: int, total: int) -> None:
        self._lacking = total - done
        self._progress(done, total)

    def _lag(self) -> str:
        """How far the archive is behind, if known during an outage."""
        if self._complete_at is None:
            since = f"no run has succeeded since this command began {self._clock() - self._began_at:.0f} s ago"
        else:
            since = f"the archive was complete {self._clock() - self._complete_at:.0f} s ago"
        lag = "how many records it lacks is unknown" if self._lacking is None else f"it lacks {self._lacking:,} or more"
        return f"{since}; {lag}"


def is_outage(error: ClusterUnavailable | RecordsLost | OSError) -> bool:
    """Whether the error may pass by waiting."""
    if isinstance(error, OSError) and not isinstance(error, ConnectionError | TimeoutError):
        return error.errno in _NETWORK
    return True  # Records that expired during a run are a gap for the next one, which says so or accepts it.
