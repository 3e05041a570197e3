"""A command and a client against a cluster of which too few nodes run: the reason comes soon, server by server."""

import time

import pytest

import quire
from tests.processes.cluster import Clusters, run_quire

WITHIN_S = 20.0  # A call that waits for its deadline takes 30 s.
UNAVAILABLE = 3


@pytest.mark.full
def test_a_command_names_the_voters_that_are_down_and_a_client_served_before_waits_for_them(clusters: Clusters) -> None:
    cluster = clusters.formed()
    leader, (second, third) = cluster.leader, cluster.followers
    with quire.connect_sync(cluster.servers) as client:
        assert client.apply(["add", 3]) == "45"
        for node in cluster.followers:
            node.kill()
        cluster.wait_until("the leader steps down", lambda: leader.status()["leader"] is None)

        refuse = f"{second.address} and {third.address} refuse connections"
        for servers, know in (
            (cluster.servers, f"{leader.address} knows no leader; {refuse}"),
            (leader.address, f"{leader.address} knows no leader"),
        ):
            began_at = time.monotonic()
            ended = run_quire("apply", "add", "3", extra={"QUIRE_SERVER": servers})

            assert time.monotonic() - began_at < WITHIN_S, ended.stderr
            assert f"{know}: 1 of 3 voters is no majority: start" in ended.stderr
            assert ended.code == UNAVAILABLE

        waiting = client.submit(["add", 5])
        for node in cluster.followers:
            node.start()
        assert waiting.result(WITHIN_S) == "50"

    cluster.kill_all()
    began_at = time.monotonic()
    ended = run_quire("state", extra={"QUIRE_SERVER": cluster.servers})
    assert time.monotonic() - began_at < WITHIN_S
    addresses = cluster.servers.split(",")
    assert f"no server answers: {addresses[0]}, {addresses[1]} and {addresses[2]} refuse connections" in ended.stderr
    assert ended.code == UNAVAILABLE
