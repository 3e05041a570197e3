"""The histogram of durations."""

import pytest

from quire.replication.durations import BOUNDS_S, Durations


def test_a_duration_counts_in_its_bucket_and_all_above() -> None:
    durations = Durations()
    for seconds in (0.0, BOUNDS_S[0], BOUNDS_S[0] * 1.01, BOUNDS_S[-1], BOUNDS_S[-1] + 1):
        durations.observe(seconds)

    buckets = dict(durations.buckets())
    assert buckets[str(BOUNDS_S[0])] == 2
    assert buckets[str(BOUNDS_S[1])] == 3
    assert buckets[str(BOUNDS_S[-2])] == 3
    assert buckets[str(BOUNDS_S[-1])] == 4
    assert buckets["+Inf"] == 5
    assert durations.sum_s == sum((0.0, BOUNDS_S[0], BOUNDS_S[0] * 1.01, BOUNDS_S[-1], BOUNDS_S[-1] + 1))


@pytest.mark.parametrize("longest_s", [BOUNDS_S[0], 3.0])
def test_many_at_once_count_as_one_after_the_other_do(longest_s: float) -> None:
    one_by_one, at_once = Durations(), Durations()
    durations_s = [longest_s / part for part in range(1, 9)]
    for seconds in durations_s:
        one_by_one.observe(seconds)
    at_once.observe_all(durations_s)
    at_once.observe_all([])
    assert list(at_once.buckets()) == list(one_by_one.buckets())
    assert at_once.sum_s == pytest.approx(one_by_one.sum_s)
    assert at_once.take_longest() == one_by_one.take_longest() == longest_s
