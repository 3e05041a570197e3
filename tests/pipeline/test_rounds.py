"""`archive --every` through outages: it retries, says its lag, and ends only for what waiting does not solve."""

from __future__ import annotations

import errno
from collections.abc import Callable
from itertools import pairwise

import pytest

from quire.pipeline.archive.archive import ArchiveSummary
from quire.pipeline.archive.rounds import FIRST_RETRY_S, LONGEST_RETRY_S, Rounds
from quire.pipeline.errors import ArchiveGap, ClusterUnavailable, ForeignLog, RecordsLost
from quire.pipeline.pieces import Progress

EVERY_S = 600.0
OUTAGE = ClusterUnavailable("its bounds", 60, {"n1:1": "connection refused"})


class Stopped(Exception):
    """No more runs are scripted."""


class Script:
    """Runs that end as they are told to, and a clock that only pauses advance."""

    def __init__(self, *runs: Callable[[Progress], ArchiveSummary]) -> None:
        self.left = list(runs)
        self.now = 1000.0
        self.pauses: list[float] = []
        self.said: list[str] = []
        self.found: list[ArchiveSummary] = []

    def run(self, progress: Progress) -> ArchiveSummary:
        if not self.left:
            raise Stopped
        return self.left.pop(0)(progress)

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def play(self) -> Script:
        """Until no run is left, or one ends the rounds."""
        rounds = Rounds(self.run, EVERY_S, lambda _done, _all: None, self.said.append, self.pause, lambda: self.now)
        with pytest.raises(Stopped):
            self.found.extend(rounds.summaries())
        return self


def found(from_index: int, to_index: int) -> Callable[[Progress], ArchiveSummary]:
    """A run that archives these records."""

    def run(progress: Progress) -> ArchiveSummary:
        count = to_index - from_index
        progress(0, count)
        progress(count, count)
        return ArchiveSummary("archive", "cluster", from_index, to_index, int(count > 0), 1, 1, [], 1.0)

    return run


def failing(error: Exception, *, after: tuple[int, int] | None = None) -> Callable[[Progress], ArchiveSummary]:
    """A run that fails, if given after (done, total) records."""

    def run(progress: Progress) -> ArchiveSummary:
        if after is not None:
            progress(*after)
        raise error

    return run


def test_an_outage_is_waited_for_from_the_first_run_on_and_its_lag_is_said() -> None:
    script = Script(failing(OUTAGE), failing(OUTAGE), found(0, 5), found(5, 5), failing(OUTAGE), found(5, 9)).play()

    assert [(one.from_index, one.to_index) for one in script.found] == [(0, 5), (5, 9)]
    never, again, reached, later, back = script.said
    assert str(OUTAGE) in never
    assert "no run has succeeded since this command began 0 s ago; how many records it lacks is unknown" in never
    assert "trying again in " in never
    assert "no run has succeeded since" in again
    assert reached.startswith("the log is reachable again: 5 records were archived, after ")
    assert "the archive was complete 600 s ago" in later
    assert back.startswith("the log is reachable again: 4 records were archived, after 60")


def test_what_the_archive_is_known_to_lack_is_said_until_a_run_succeeds() -> None:
    script = Script(
        found(0, 5), failing(OUTAGE, after=(40, 100)), failing(OUTAGE), found(5, 105), failing(OUTAGE)
    ).play()

    broken_off, unreached, _, unknown = script.said
    assert "the archive was complete 600 s ago; it lacks 60 or more" in broken_off
    assert "it lacks 60 or more" in unreached
    assert "how many records it lacks is unknown" in unknown


def test_retries_are_ever_further_apart_up_to_a_limit_and_begin_anew_after_a_success() -> None:
    script = Script(*[failing(OUTAGE)] * 2000, found(0, 1), failing(OUTAGE), found(1, 2)).play()

    retries, after = script.pauses[:2000], script.pauses[2000:]
    assert all(0.5 * FIRST_RETRY_S <= pause <= FIRST_RETRY_S for pause in (retries[0], after[1]))
    assert all(later >= earlier for earlier, later in pairwise(retries[:6]))
    assert max(retries) <= LONGEST_RETRY_S
    assert min(retries[6:]) >= LONGEST_RETRY_S / 2
    assert len(set(retries[6:])) > 100  # Spread at random.
    assert after[0] == after[2] == EVERY_S


@pytest.mark.parametrize(
    "error",
    [ConnectionResetError(errno.ECONNRESET, "reset"), TimeoutError(), OSError(errno.ESTALE, "stale file handle")],
)
def test_a_network_that_fails_is_an_outage(error: OSError) -> None:
    assert len(Script(failing(error), found(0, 1)).play().found) == 1


def test_records_that_expire_during_a_run_are_for_the_next_one_to_name_or_to_accept() -> None:
    lost = RecordsLost("n1", 5, 9, "they have expired")
    script = Script(failing(lost), found(9, 12), failing(lost), failing(ArchiveGap("archive", 12, 20)))

    with pytest.raises(ArchiveGap):
        script.play()
    assert [one.to_index for one in script.found] == [12]
    assert "records [5, 9) of n1 are lost: they have expired; no run has succeeded" in script.said[0]


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "no space left on device"),
        PermissionError(errno.EACCES, "denied"),
        ForeignLog("n1", "a", "b"),
        ArchiveGap("archive", 1, 2),
    ],
)
def test_what_waiting_does_not_solve_ends_the_rounds(error: Exception) -> None:
    script = Script(found(0, 1), failing(error), found(1, 2))

    with pytest.raises(type(error)):
        script.play()
    assert (len(script.found), script.said) == (1, [])
