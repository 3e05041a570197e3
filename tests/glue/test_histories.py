"""Real nodes, with their links, streams, threads and HTTP, in histories that a seed decides.

What a seed finds: `python -m tests.glue SEED` prints its trace.
"""

import pytest

from tests.glue.history import run

AT_ONCE = 6
SEEDS = 24


@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=pytest.mark.slow if seed < AT_ONCE else pytest.mark.full) for seed in range(SEEDS)],
)
def test_every_caller_is_told_the_truth_and_nothing_is_held_for_ever(seed: int) -> None:
    outcome = run(seed)
    assert not outcome.failure, "\n".join([*outcome.trace[-40:], outcome.failure])
    assert outcome.counts["write 200"] > 4  # More than the last ones, when all was well again.


@pytest.mark.slow
def test_the_same_seed_makes_the_same_history() -> None:
    first, second = run(5, trouble_s=1.0), run(5, trouble_s=1.0)
    assert first.trace == second.trace
    assert run(6, trouble_s=1.0).trace != first.trace
