"""The links between a leader and one follower, cut, flapping, or broken in the middle of a frame.

Each direction of dialling has a proxy: on the one that n1 dials go n1's heartbeats, on the one that n2 dials its
stream and its echoes. Nothing blocks here but the test itself: the load runs in a thread, the nodes in processes.
"""

from dataclasses import dataclass

import pytest

from tests.faults.toxiproxy import Link, ToxiproxyServer
from tests.processes.cluster import Cluster, Clusters
from tests.processes.load import COMMANDS, Command, running_load
from tests.processes.verdict import check_cluster, check_received

PART = COMMANDS // 10
SHIPMENT_BYTES = 1 << 18
FLAPS = 8

FRAME_COMMANDS = 10_000
COMMAND_BYTES = 43  # ["add", <36 characters>] as msgpack
FRAME_BYTES = FRAME_COMMANDS * COMMAND_BYTES
LARGE_REQUESTS = ["--max-request-bytes", str(4 << 20)]


@dataclass(frozen=True)
class Linked:
    """A cluster whose n1 and n2 reach each other through proxies only."""

    cluster: Cluster
    heartbeats: Link
    stream: Link

    def links(self, which: str) -> list[Link]:
        """The links that a parameter names."""
        return {"both": [self.heartbeats, self.stream], "heartbeats": [self.heartbeats], "stream": [self.stream]}[which]


async def linked(clusters: Clusters, toxiproxy: ToxiproxyServer, *flags: str) -> Linked:
    """A formed cluster with proxies between n1 and n2."""
    cluster = clusters.make(flags=flags)
    heartbeats = await toxiproxy.add_link("n1-n2", cluster["n2"].address)
    stream = await toxiproxy.add_link("n2-n1", cluster["n1"].address)
    cluster["n1"].flags += ["--link", f"n2={heartbeats.address}"]
    cluster["n2"].flags += ["--link", f"n1={stream.address}"]
    cluster.start()
    return Linked(cluster, heartbeats, stream)


def position_of_n2(cluster: Cluster) -> int:
    """n2's durable_index as the leader knows it."""
    return int(cluster.leader.status()["nodes"]["n2"]["durable_index"])


def wait_for_n2_beyond(cluster: Cluster, position: int) -> None:
    """Return when n2 has more than it had."""
    cluster.wait_until("n2 gets on", lambda: position_of_n2(cluster) > position)


def large_frame(number: int, commands: int = FRAME_COMMANDS) -> list[Command]:
    """Commands of COMMAND_BYTES each: one request, so one frame."""
    return [["add", f"0.{number * FRAME_COMMANDS + place:034}"] for place in range(commands)]


@pytest.mark.parametrize(
    "which",
    [
        pytest.param("both", marks=pytest.mark.full),
        pytest.param("heartbeats", marks=pytest.mark.full),
        pytest.param("stream", marks=pytest.mark.full),
    ],
)
async def test_a_link_cut_and_healed_in_the_middle_of_a_load_loses_nothing_and_the_follower_catches_up(
    clusters: Clusters, toxiproxy: ToxiproxyServer, which: str
) -> None:
    under_test = await linked(clusters, toxiproxy)
    cluster = under_test.cluster
    with running_load(cluster, clients=2) as load:
        load.wait_for_more(cluster, PART)
        cluster.wait_until("n2 takes part", lambda: position_of_n2(cluster) > 1)
        before = position_of_n2(cluster)
        for link in under_test.links(which):
            await link.cut()
        load.wait_for_more(cluster, PART)
        for link in under_test.links(which):
            await link.heal()
        load.wait_for_more(cluster, PART)
        load.end()

    check_cluster(cluster, load)
    assert load.unknown == load.not_written == [], "n1 and n3 are a majority all the time"
    if which != "heartbeats":
        check_received(cluster, cluster["n2"], before)


@pytest.mark.full
async def test_a_cut_follower_lags_until_the_link_is_healed_and_says_that_it_is_not_ready(
    clusters: Clusters, toxiproxy: ToxiproxyServer
) -> None:
    under_test = await linked(clusters, toxiproxy)
    cluster = under_test.cluster
    cluster.leader.apply(["add", 1])
    cluster.wait_for_equal()
    for link in under_test.links("both"):
        await link.cut()
    cluster.wait_until("n2 hears no leader", lambda: not cluster["n2"].is_ready())

    index = cluster.leader.apply(["add", 2], ["add", 3])["index"]

    status = cluster.leader.status()
    assert status["nodes"]["n2"]["lag"]["records"] == 2
    assert "n2" not in status["links"]
    assert "n2" in status["link_failures"]
    assert cluster["n2"].status()["durable_index"] == index
    for link in under_test.links("both"):
        await link.heal()
    cluster.wait_until("n2 is ready", cluster["n2"].is_ready)
    cluster.wait_for_equal()
    cluster.wait_until("the link stands", lambda: "n2" not in cluster.leader.status()["link_failures"])


@pytest.mark.full
async def test_a_flapping_link_loses_nothing_and_the_follower_catches_up(
    clusters: Clusters, toxiproxy: ToxiproxyServer
) -> None:
    under_test = await linked(clusters, toxiproxy)
    cluster = under_test.cluster
    with running_load(cluster, clients=2) as load:
        for flap in range(FLAPS):
            link = under_test.links("both")[flap % 2]
            await link.cut()
            load.wait_for_more(cluster, PART // 10)
            await link.heal()
            wait_for_n2_beyond(cluster, position_of_n2(cluster))
        load.end()

    check_cluster(cluster, load)
    assert load.unknown == load.not_written == []


@pytest.mark.full
async def test_a_link_that_breaks_inside_a_frame_gives_the_follower_no_part_of_it_and_all_once_it_is_whole(
    clusters: Clusters, toxiproxy: ToxiproxyServer
) -> None:
    under_test = await linked(clusters, toxiproxy, *LARGE_REQUESTS)
    cluster, follower = under_test.cluster, under_test.cluster["n2"]
    boundary = cluster.leader.apply(["add", 1])["index"] + 1
    cluster.wait_for_equal()
    limit = SHIPMENT_BYTES * 3 // 2
    toxic = await under_test.stream.add_toxic("limit_data", "downstream", bytes=limit)
    assert SHIPMENT_BYTES < limit < FRAME_BYTES, "a part of the frame arrives, the whole does not"

    def has_a_part() -> bool:
        status = follower.status()
        return bool(status["stream"]["from_index"] == boundary and status["stream"]["received_bytes"] == SHIPMENT_BYTES)

    written = cluster.leader.apply(*large_frame(1))

    assert written["index"] == boundary
    cluster.wait_until("n2 has a part of the frame", has_a_part)
    cluster.wait_until("the stream broke", lambda: "stream with n1" in follower.status()["link_failures"])
    cluster.wait_until("n2 has a part of the frame again", has_a_part)
    status = follower.status()
    assert status["highest_index"] == status["durable_index"] == status["applied_index"] == boundary
    assert cluster.leader.apply(["add", 2])["results"], "the others go on"

    await under_test.stream.remove_toxic(toxic)

    cluster.wait_for_equal()
    check_received(cluster, follower, boundary)
    assert follower.raw_frames() == cluster.leader.raw_frames()


@pytest.mark.full
async def test_a_follower_gets_on_over_a_link_that_breaks_again_and_again_inside_frames(
    clusters: Clusters, toxiproxy: ToxiproxyServer
) -> None:
    under_test = await linked(clusters, toxiproxy, *LARGE_REQUESTS)
    cluster, follower = under_test.cluster, under_test.cluster["n2"]
    cluster.wait_for_equal()
    cluster.stop("n2")
    for number in range(4):
        cluster.leader.apply(*large_frame(number))
    # Room for one frame and a part of the next: each connection ends inside one, and begins at a boundary.
    await under_test.stream.add_toxic("limit_data", "downstream", bytes=FRAME_BYTES * 3 // 2)

    follower.start()

    begun: set[int] = set()

    def has_all() -> bool:
        status = follower.status()
        begun.add(status.get("stream", {}).get("from_index", 0))
        return bool(status.get("durable_index") == cluster.leader.status()["durable_index"])

    cluster.wait_until("n2 has all frames", has_all)
    cluster.wait_for_equal()
    assert len(begun - {0}) >= 3, f"it went on at several boundaries: {begun}"
    assert follower.raw_frames() == cluster.leader.raw_frames()
