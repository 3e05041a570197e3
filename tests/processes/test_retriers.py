"""Exactly once: clients that retry blindly through failovers. The long form is `make soak-retriers`."""

import pytest

from quire.log import Run
from tests.processes.cluster import Clusters
from tests.processes.retriers import CLIENTS, FAILOVERS, FLAGS, run, sequences_in
from tests.sm.frames import Frames


@pytest.mark.soak
def test_what_blind_retries_count_up_through_failovers_is_counted_once(clusters: Clusters) -> None:
    figures = run(clusters.formed(flags=FLAGS), CLIENTS, FAILOVERS, commands=100)

    assert figures["acknowledged"] >= 2 * FAILOVERS * 100
    assert figures["of_them_retries"] > 0


def test_the_sequences_of_a_log_are_those_of_its_frames() -> None:
    frames = Frames()
    made = [
        frames.records(["a"]),
        frames.records(["b", "c"], 7, 3),
        frames.runs([Run(7, 4, 1), Run(0, 0, 1)], ["c", "d"]),
    ]
    assert sequences_in(made) == [(7, 3), (7, 4), (7, 4)]
