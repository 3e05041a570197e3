"""Each bound can be broken, and is at its value."""

from collections.abc import Callable
from functools import partial

import pytest

from tests.verdict.bounds import (
    COMMITS_WITHIN_TIMEOUTS,
    HEALED_WITHIN_S,
    check_commits,
    check_goodput,
    check_leaders,
    check_level_memory,
    check_memory,
    check_recovery,
    check_served,
    check_waits,
    failures,
    longest_without,
)

LED = {"n1": [{"epoch": 1, "leader": "n1"}], "n2": [{"epoch": 1, "leader": "n1"}]}
ELECTED_AGAIN = {**LED, "n2": [*LED["n2"], {"epoch": 2, "leader": "n1"}]}


@pytest.mark.parametrize(
    ("good", "bad", "words"),
    [
        (
            partial(check_recovery, HEALED_WITHIN_S),
            partial(check_recovery, HEALED_WITHIN_S + 0.01),
            "after healing",
        ),
        (
            partial(check_commits, COMMITS_WITHIN_TIMEOUTS),
            partial(check_commits, COMMITS_WITHIN_TIMEOUTS + 0.1),
            "nothing was committed for 10.1 election timeouts",
        ),
        (
            partial(check_memory, {"n1": 100, "n2": 7}, 100),
            partial(check_memory, {"n1": 7, "n2": 101}, 100),
            "the memory of n2",
        ),
        (
            partial(check_level_memory, [10, 900, 90, 920], 20),
            partial(check_level_memory, [10, 900, 90, 921], 20),
            "900 bytes in the first half, 921 in the second",
        ),
        (partial(check_leaders, LED, LED), partial(check_leaders, LED, ELECTED_AGAIN), "the leader changed: {'n2'"),
        (partial(check_served, 991, 9), partial(check_served, 990, 10), "990 of 1000"),
        (partial(check_served, 1, 0), partial(check_served, 0, 0), "0 of 0"),
        (partial(check_goodput, 1000.0, 900.0, 0.9), partial(check_goodput, 1000.0, 899.0, 0.9), "899, 1000"),
        (partial(check_goodput, 1.0, 0.0, 0.0), partial(check_goodput, 0.0, 0.0, 0.0), "0, 0 at the peak"),
        (partial(check_waits, [0.5, 2.0], 2.0), partial(check_waits, [0.5, 2.1], 2.0), "at most 2.10 s"),
        (partial(check_waits, [0.0, 0.1], 2.0), partial(check_waits, [0.0, 0.0], 2.0), "at most 0.00 s"),
    ],
    ids=[
        *("recovery", "commits", "memory", "level memory", "leaders", "served", "served nothing"),
        *("goodput", "no peak", "waits", "accepted nothing"),
    ],
)
def test_a_figure_at_its_bound_is_good_and_one_past_it_is_found(
    good: Callable[[], None], bad: Callable[[], None], words: str
) -> None:
    assert failures(good) == []

    [found] = failures(good, bad)

    assert words in found


@pytest.mark.parametrize(
    ("ends", "longest"),
    [
        ([1.0, 9.0, 12.0, 14.5, 21.0], 6.5),
        ([9.0, 21.0], 12.0),
        ([1.0, 2.0, 30.0, 40.0], 28.0),
        ([15.0], 5.0),
        ([], 10.0),
    ],
    ids=["inside", "before and after", "nothing inside", "neither before nor after", "nothing at all"],
)
def test_the_longest_time_without_a_commit_includes_what_reaches_into_the_fault(
    ends: list[float], longest: float
) -> None:
    assert longest_without(ends, began=10.0, ended=20.0) == longest
