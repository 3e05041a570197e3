"""The histogram of durations."""

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
