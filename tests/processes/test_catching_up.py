"""A follower that was away, or joins late, receives what it lacks and no more (rules 0 and 8 of `docs/protocol.md`)."""

import pytest

from tests import tuned
from tests.processes.cluster import Clusters
from tests.processes.load import COMMANDS, running_load

PART = COMMANDS // 4


@pytest.mark.soak
def test_a_follower_killed_in_the_middle_of_a_load_receives_what_it_lacks_and_no_more(clusters: Clusters) -> None:
    cluster = clusters.formed()
    follower = cluster["n3"]
    with running_load(cluster) as load:
        load.wait_for_more(cluster, PART)
        acknowledged = int(cluster.leader.status()["nodes"]["n3"]["durable_index"])
        follower.kill()
        load.wait_for_more(cluster, PART)
        cluster.start("n3")
        load.wait_for_more(cluster, PART)
        load.end()

    load.check(cluster)
    assert (load.history.unknown, load.not_written) == ([], 0)
    assert acknowledged > PART / 2, "it was killed in the middle, not at the beginning"
    cluster.check_received(follower, acknowledged)


@pytest.mark.soak
def test_a_follower_killed_again_and_again_under_load_ends_equal(clusters: Clusters) -> None:
    cluster = clusters.formed()
    with running_load(cluster, clients=3) as load:
        for node_id in ("n2", "n3", "n2"):
            load.wait_for_more(cluster, PART // 10)
            cluster[node_id].kill()
            load.wait_for_more(cluster, PART // 10)
            cluster.start(node_id)
        load.end()

    load.check(cluster)
    assert (load.history.unknown, load.not_written) == ([], 0)


@pytest.mark.soak
def test_a_node_first_started_after_the_load_that_is_no_initial_member_joins_as_an_observer_and_ends_equal(
    clusters: Clusters,
) -> None:
    cluster = clusters.make(initial=["n1", "n2"])
    cluster.start("n1", "n2")
    with running_load(cluster) as load:
        load.wait_for_more(cluster, PART)
        load.end()

    cluster.start("n3")

    load.check(cluster)
    cluster.check_received(cluster["n3"], 1)
    for node in cluster:
        assert [member["node_id"] for member in node.status()["members"]] == ["n1", "n2"]


@pytest.mark.soak
def test_an_observer_counts_for_nothing_a_leader_with_it_alone_acknowledges_no_write(clusters: Clusters) -> None:
    cluster = clusters.make(initial=["n1", "n2"], flags=tuned.flags(request_timeout_ms=3000))
    cluster.start("n1", "n2")
    cluster.start("n3")
    before = cluster.leader.apply(["add", 1])
    cluster["n2"].kill()

    reply = cluster.leader.call("POST", "/commands", b'["add", 2]\n', {"Content-Type": "application/x-ndjson"})

    assert reply.status in (503, 504), reply
    cluster.wait_until("the leader serves no more", lambda: not cluster.leader.status()["serving"])
    cluster.start("n2")
    cluster.wait_until("the leader is ready", cluster.leader.is_ready)
    assert before["results"] == ["43"]
    # What was answered 503 was not written; what was answered 504 may have been.
    expected = {503: {"46"}, 504: {"46", "48"}}[reply.status]
    assert cluster.leader.apply(["add", 3])["results"][0] in expected
    cluster.wait_for_equal()


@pytest.mark.soak
def test_a_voter_that_was_present_only_at_the_formation_catches_up_and_counts(clusters: Clusters) -> None:
    cluster = clusters.formed()
    cluster["n3"].kill()
    with running_load(cluster) as load:
        load.wait_for_more(cluster, PART)
        load.end()

    cluster.start("n3")

    load.check(cluster)
    cluster.check_received(cluster["n3"], 1)
    roles = {member["node_id"]: member["role"] for member in cluster["n3"].status()["members"]}
    assert roles == {"n1": "voter", "n2": "voter", "n3": "voter"}
    cluster["n2"].kill()
    cluster.leader.apply(["add", 1])  # n1 and n3 are a majority
