"""The lag of a node, number for number.

records   the leader's durable_index - the node's
bytes     likewise: of the frames between the two
seconds   0 when equal, else the leader's clock - the timestamp of the first record that the node lacks
"""

from collections.abc import Iterator
from typing import Any

import pytest

from quire.log import walk_frames
from tests.processes.cluster import Cluster, ending_clusters
from tests.processes.load import COMMANDS, running_load

MICROSECONDS = 1_000_000
SILENCE_S = 1.0
NO_LAG = {"records": 0, "bytes": 0, "seconds": 0.0}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster for all tests here; each leaves it whole and equal."""
    with ending_clusters(tmp_path_factory.mktemp("lag")) as clusters:
        yield clusters.formed()


def lag_by_the_glossary(cluster: Cluster, status: dict[str, Any], node_id: str) -> dict[str, Any]:
    """What the leader's `/status` must say, from the same document's positions and clock, and the leader's frames."""
    theirs, ours = status["nodes"][node_id]["durable_index"], status["durable_index"]
    if theirs >= ours:
        return NO_LAG
    lacking = cluster.leader.raw_frames(theirs, ours)
    first = next(walk_frames(lacking)).header
    assert first.index == theirs, "a position is a frame boundary"
    late = max(0, status["clock"] - first.timestamp)
    return {"records": ours - theirs, "bytes": len(lacking), "seconds": late / MICROSECONDS}


@pytest.mark.full
def test_the_lag_of_a_paused_follower_is_the_glossary_s_formula_number_for_number(cluster: Cluster) -> None:
    with running_load(cluster) as load:
        load.wait_for_more(cluster, COMMANDS // 20)
        cluster["n3"].pause()
        load.wait_for_more(cluster, COMMANDS // 20)
        load.end()

    def at_rest() -> bool:
        status = cluster.leader.status()
        return bool(status["commit_index"] == status["durable_index"] == status["nodes"]["n2"]["durable_index"])

    cluster.wait_until("n1 and n2 have all", at_rest)
    seconds: list[float] = []
    for _ in range(5):
        status = cluster.leader.status()
        expected = lag_by_the_glossary(cluster, status, "n3")
        assert expected["records"] >= COMMANDS // 20
        assert status["nodes"]["n3"]["lag"] == expected
        assert status["nodes"]["n2"]["lag"] == lag_by_the_glossary(cluster, status, "n2") == NO_LAG
        assert status["lag"] == NO_LAG, "the leader lacks nothing"
        seconds.append(expected["seconds"])
    assert seconds == sorted(set(seconds)), "it grows with the leader's clock"

    cluster["n3"].resume()

    cluster.wait_for_equal()
    cluster.wait_until("n3 lags no more", lambda: cluster.leader.status()["nodes"]["n3"]["lag"] == NO_LAG)


@pytest.mark.full
def test_the_lag_of_a_killed_follower_counts_from_its_last_known_position(cluster: Cluster) -> None:
    cluster.leader.apply(["add", 1])
    cluster.wait_for_equal()
    cluster.wait_until("n3 lags not", lambda: cluster.leader.status()["nodes"]["n3"]["lag"] == NO_LAG)
    position = cluster.leader.status()["nodes"]["n3"]["durable_index"]
    cluster["n3"].kill()

    cluster.leader.apply(["add", 2], ["add", 3])
    cluster.leader.apply(["add", 4])

    status = cluster.leader.status()
    assert status["nodes"]["n3"]["durable_index"] == position
    assert status["nodes"]["n3"]["lag"]["records"] == 3
    assert status["nodes"]["n3"]["lag"] == lag_by_the_glossary(cluster, status, "n3")
    cluster.start("n3")
    cluster.wait_for_equal()


@pytest.mark.full
def test_a_follower_says_itself_how_far_it_was_behind_when_it_is_heard_again(cluster: Cluster) -> None:
    cluster["n3"].pause()
    cluster.leader.apply(["add", 1])
    paused_at = cluster.leader.status()["clock"]
    cluster.wait_until("some time passes", lambda: cluster.leader.status()["clock"] > paused_at + MICROSECONDS)

    cluster["n3"].resume()

    cluster.wait_for_equal()
    lag = cluster["n3"].status()["lag"]
    assert (lag["records"], lag["bytes"]) == (0, 0)


@pytest.mark.full
def test_a_follower_counts_at_least_the_seconds_since_it_last_heard_its_leader(cluster: Cluster) -> None:
    cluster.leader.apply(["add", 1])
    cluster.wait_for_equal()
    node = cluster["n2"]
    cluster.wait_until("n2 was told how far it lags", lambda: node.status()["lag"]["seconds"] > 0)
    heard_at = node.status()["clock"]
    cluster.leader.pause()
    paused_at = node.status()["clock"]

    def silent() -> dict[str, Any] | None:
        status = node.status()
        return status if status["clock"] > paused_at + 3 * SILENCE_S * MICROSECONDS else None

    status = cluster.wait_until("n2 has heard nothing for three seconds", silent)

    lag = status["lag"]
    assert (lag["records"], lag["bytes"]) == (0, 0)
    # What the leader sent before its pause may arrive a little later; until then it was heard every 50 ms.
    least = (status["clock"] - paused_at) / MICROSECONDS - SILENCE_S
    most = (status["clock"] - heard_at) / MICROSECONDS + SILENCE_S
    assert least < lag["seconds"] < most
    cluster.leader.resume()
    cluster.wait_until("n2 hears its leader", lambda: node.status()["lag"]["seconds"] < SILENCE_S)
