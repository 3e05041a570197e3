"""The files of a process: the limits of all its parts are one sum."""

from __future__ import annotations

import pytest

from quire.cluster.http.admission.connections import CONNECTIONS_LIMIT, PEER_RESERVE
from quire.cluster.http.admission.streams import STREAMS_LIMIT
from quire.cluster.serve.descriptors import TooFewFiles, connections_of, files_needed
from quire.cluster.serve.log_service import LOG_FILES
from quire.cluster.serve.node_service import NODE_FILES
from quire.log import open_segments_of

SERVICES = [(PEER_RESERVE, NODE_FILES, STREAMS_LIMIT), (0, LOG_FILES, 0)]


def fits(files: int, reserve: int, own: int, streams: int) -> bool:
    try:
        connections = connections_of(files, reserve, own, streams)
    except TooFewFiles:
        return False
    assert files_needed(connections, reserve, own, open_segments_of(files), streams) <= files
    return True


@pytest.mark.parametrize(("reserve", "own", "streams"), SERVICES)
def test_whatever_the_limit_no_more_files_are_needed_than_the_process_may_open(
    reserve: int, own: int, streams: int
) -> None:
    fitting = [files for files in range(1, 20_000) if fits(files, reserve, own, streams)]
    assert fitting == list(range(fitting[0], 20_000))
    assert fitting[0] <= 1024


@pytest.mark.parametrize(("reserve", "own", "streams"), SERVICES)
def test_at_the_least_limit_a_few_connections_are_left_and_one_file_below_it_the_start_is_refused_in_words(
    reserve: int, own: int, streams: int
) -> None:
    least = next(files for files in range(1, 1025) if fits(files, reserve, own, streams))
    assert connections_of(least, reserve, own, streams) == 16
    with pytest.raises(TooFewFiles, match=f"may open {least - 1} files.*raise the limit"):
        connections_of(least - 1, reserve, own, streams)


@pytest.mark.parametrize(("reserve", "own", "streams"), SERVICES)
def test_with_enough_files_there_are_as_many_connections_as_the_limit_and_one_file_less_costs_one(
    reserve: int, own: int, streams: int
) -> None:
    enough = next(files for files in range(1, 20_000) if most(files, reserve, own, streams) == CONNECTIONS_LIMIT)
    assert most(enough - 1, reserve, own, streams) == CONNECTIONS_LIMIT - 1
    assert most(1 << 20, reserve, own, streams) == most(-1, reserve, own, streams) == CONNECTIONS_LIMIT


def most(files: int, reserve: int, own: int, streams: int) -> int:
    try:
        return connections_of(files, reserve, own, streams)
    except TooFewFiles:
        return 0
