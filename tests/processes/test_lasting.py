"""State lasts: far more commands than the log may hold. The long form is `make soak-lasting`."""

from pathlib import Path

import pytest

from tests.processes.cluster import Clusters
from tests.processes.lasting import CI, run


@pytest.mark.soak
def test_a_million_commands_leave_each_node_the_log_that_it_keeps_and_the_same_answer(
    clusters: Clusters, tmp_path: Path
) -> None:
    figures = run(clusters, CI, tmp_path)

    assert figures["commands"] == 1_000_000
    lowest = figures["lowest_index"]
    assert isinstance(lowest, dict)
    assert lowest["n1"] > 0, "nothing has expired"
    assert lowest["n3"] < min(lowest["n1"], lowest["n2"]), "the node that keeps more has kept no more"
