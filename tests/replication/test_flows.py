"""Connections that go silent without an error: streams and installs end, and are made anew."""

from dataclasses import replace

import pytest

from quire.replication.core import CoreOptions, events
from quire.replication.core.fitness import Level
from quire.replication.core.messages import Open
from tests.replication.disks import remove_expired
from tests.replication.installing import expire
from tests.replication.world import SimNode, World, disk_id

DEEP = 40


def serving(options: CoreOptions | None = None) -> World:
    world = World("n1", "n2", "n3", options=options)
    world.start()
    world.elect("n1")
    world.run_until(lambda: all(matched(world[node]) for node in ("n2", "n3")))
    return world


def matched(node: SimNode) -> bool:
    return node.core is not None and node.core.status().is_matched


def caught_up(world: World, node_id: str) -> bool:
    return world[node_id].apply_to == world["n1"].log.tail.index


def streams_of(leader: SimNode) -> dict[str, int]:
    return {stream.node_id: stream_id for stream_id, stream in leader.leading.downstreams.streams.items()}


def held(leader: SimNode) -> dict[str, str]:
    status = leader.core.status().leader if leader.core else None
    return {stream.node_id: stream.held_for for stream in status.streams} if status else {}


def installing(world: World) -> SimNode:
    """n3 was down until the leader's log began above its own, and was told to fetch a snapshot."""
    world["n3"].crash()
    for number in range(DEEP):
        world["n1"].write(f"{number}" * 4_000)
        world.run_for(0.05)
    expire(world["n1"])
    world.start("n3")
    world.run_until(lambda: bool(world["n3"].fetches))
    return world["n3"]


def test_a_silent_stream_is_dialled_anew_while_the_leader_is_heard() -> None:
    world = serving()
    world.silence_streams("n3")
    world["n1"].write("after the silence")
    world.run_until(lambda: all(caught_up(world, node) for node in world.nodes), within_s=5)
    assert world["n1"].leads


def test_a_leader_closes_a_stream_that_acknowledges_nothing() -> None:
    world = serving()
    silent = streams_of(world["n1"])["n3"]
    world.silence_streams("n3")
    world["n3"].crash()
    world["n1"].write("n3 is owed it")
    world.run_until(lambda: silent not in world["n1"].leading.downstreams.streams, within_s=5)
    assert "n3" not in streams_of(world["n1"])


def test_a_follower_whose_idle_stream_is_silent_is_not_matched_for_long() -> None:
    world = serving()
    world.silence_streams("n3")
    world.run_until(lambda: not matched(world["n3"]), within_s=5)
    world.run_until(lambda: matched(world["n3"]), within_s=5)


def test_an_idle_stream_on_which_its_leader_says_nothing_is_opened_anew() -> None:
    world = serving()
    world.run_for(2)  # All is said and answered.
    before = world["n3"].upstream.stream_id
    for stream in world["n1"].leading.downstreams.streams.values():
        stream.shipped_at = 1 << 62  # It never becomes due that it says something on an idle stream.
    world.run_for(30)
    assert world["n3"].upstream.stream_id != before
    assert matched(world["n3"])


def test_a_follower_that_is_never_answered_opens_another_stream() -> None:
    world = serving()
    world["n3"].crash()
    world.start("n3")
    world.run_until(lambda: world["n3"].has_stream)
    world.silence_streams("n3")
    world.run_until(lambda: matched(world["n3"]), within_s=5)


def test_idle_streams_stay() -> None:
    world = serving()
    before = streams_of(world["n1"])
    world.run_for(30)
    assert streams_of(world["n1"]) == before


def test_what_is_acknowledged_takes_no_room_of_the_window() -> None:
    world = serving()
    world["n1"].write("acknowledged")
    world.run_until(lambda: all(caught_up(world, node) for node in world.nodes))
    streams = world["n1"].leading.downstreams.streams.values()
    assert [(len(stream.in_flight), stream.in_flight_bytes) for stream in streams] == [(0, 0), (0, 0)]


def test_patience_with_an_idle_stream_begins_when_an_ack_is_owed_and_not_with_the_last_one() -> None:
    world = serving()
    leader = world["n1"]
    stream = leader.leading.downstreams.streams[streams_of(leader)["n3"]]
    half = CoreOptions().election_timeout_us // 2
    world.run_until(lambda: leader.state.now - stream.progress_at >= half and not stream.is_owed_an_ack)
    leader.write("owed")
    world.run_until(lambda: stream.is_owed_an_ack)
    assert leader.state.now - stream.progress_at < half


def test_a_stream_that_lacks_nothing_that_expired_stays() -> None:
    world = serving()
    leader = world["n1"]
    before = streams_of(leader)
    for number in range(DEEP):
        leader.write(f"{number}" * 4_000)
        world.run_for(0.05)
    remove_expired(leader.running, leader.log.durable_index)
    for stream in leader.leading.downstreams.streams.values():
        stream.next_index = leader.log.bounds.lowest_index
    leader.leading.downstreams.expired()
    assert streams_of(leader) == before


def test_a_stream_stays_while_its_followers_disk_takes_long() -> None:
    world = serving(CoreOptions(window_bytes=10_000))
    before = streams_of(world["n1"])
    world["n3"].hold_flush = True
    for number in range(20):
        world["n1"].write(f"{number}" * 1_000)
        world.run_for(0.5)
    assert streams_of(world["n1"]) == before
    world["n3"].release()
    world.run_until(lambda: caught_up(world, "n3"))


def test_an_install_of_a_follower_that_is_lost_is_dropped_with_what_it_holds() -> None:
    world = serving()
    lost = installing(world)
    leader = world["n1"]
    world.silence_streams("n3")
    lost.crash()
    status = leader.core.status().leader if leader.core else None
    assert status is not None
    assert [install.node_id for install in status.installs] == ["n3"]
    world.run_until(lambda: not leader.leading.downstreams.installs, within_s=5)


def test_an_install_lasts_while_its_follower_is_heard() -> None:
    world = serving()
    installing(world)
    before = dict(world["n1"].leading.downstreams.installs)
    world.run_for(30)
    assert world["n1"].leading.downstreams.installs == before


def test_a_follower_whose_install_was_dropped_gets_a_fresh_answer() -> None:
    world = serving()
    node = installing(world)
    world.isolate("n3")
    world.run_until(lambda: not world["n1"].leading.downstreams.installs, within_s=5)
    world.heal()
    opening = Open(node.state.promise, tuple(node.running.epochs), node.log.tail.index, node.log.durable_index)
    world["n1"].step(events.StreamOpened(777, "n3", disk_id("n3"), opening))
    assert list(world["n1"].leading.downstreams.installs) == [777]


@pytest.mark.parametrize("delay_ms", [1, 400])
def test_a_read_ends_though_heartbeats_leave_faster_than_echoes_return(delay_ms: int) -> None:
    world = serving(CoreOptions(election_timeout_us=2_000_000))
    world.delay_us = lambda source, target: delay_ms * 1_000
    world.run_for(2)
    world["n1"].step(events.ReadRequested(7))
    world.run_until(lambda: 7 in world["n1"].reads, within_s=5)
    assert world["n1"].reads[7] == world["n1"].state.commit_index


def test_a_full_follower_is_shipped_nothing_before_it_has_room() -> None:
    world = serving()
    n3, leader = world["n3"], world["n1"]
    leader.write("both have it")
    world.run_until(lambda: caught_up(world, "n3"))
    n3.disk_full = True
    leader.write("there is no room for it")
    world.run_until(lambda: n3.following.stream is not None and bool(n3.following.stream.held_for))
    world.run_for(0.5)
    refused = n3.refused_appends
    for number in range(20):
        leader.write(f"{number}")
        world.run_for(0.5)
    assert refused == n3.refused_appends == 1
    assert held(leader) == {"n2": "", "n3": "the disk of the log is full"}
    assert not matched(n3)

    n3.disk_full = False
    world.run_until(lambda: caught_up(world, "n3") and matched(n3), within_s=10)
    assert held(leader) == {"n2": "", "n3": ""}


def test_a_follower_that_was_refused_nothing_is_shipped_everything_though_a_probe_found_no_room() -> None:
    world = serving()
    for node in ("n1", "n3"):
        world[node].disk_full = True
    world["n1"].write("there is no room for it")
    world.run_until(lambda: world["n3"].state.fitness.level is Level.NO_ROOM)
    first = world["n3"].following.stream
    world["n3"].following.close_stream("says the test")
    world.run_until(lambda: world["n3"].following.stream is not first and matched(world["n3"]))
    assert held(world["n1"])["n3"] == ""


def test_a_full_follower_of_a_leader_that_heeds_no_reason_takes_a_window_once_in_four_election_timeouts() -> None:
    world = serving()
    world.opening = lambda opening: replace(opening, reason="")
    n3 = world["n3"]
    n3.disk_full = True
    for number in range(40):
        world["n1"].write(f"{number}")
        world.run_for(0.5)
    assert n3.refused_appends <= 2 + 20 // 4

    n3.disk_full = False
    world.run_until(lambda: caught_up(world, "n3") and matched(n3), within_s=10)


def test_a_new_leaders_first_record_reaches_the_reserve_of_a_full_follower() -> None:
    """Two of three disks are full: the epoch_start of a new leader takes their reserve, so that it can serve reads."""
    world = serving()
    for node in ("n2", "n3"):
        world[node].disk_full = True
    world["n1"].write("there is room at n1 alone")
    world.run_until(lambda: all(world[node].refused_appends for node in ("n2", "n3")))
    world["n1"].crash()
    world.run_until(lambda: world.leader() is not None)
    [follower] = [world[node] for node in ("n2", "n3") if world[node] is not world.leader()]
    assert follower.upstream.held_for


def test_a_full_follower_is_offered_no_snapshot() -> None:
    world = serving()
    world["n3"].crash()
    for number in range(DEEP):
        world["n1"].write(f"{number}" * 4_000)
        world.run_for(0.05)
    expire(world["n1"])
    opening = Open(world["n1"].state.promise, ((0, 0),), 1, 1, reason="no room")
    world["n1"].step(events.StreamOpened(777, "n3", disk_id("n3"), opening))
    assert not world["n1"].leading.downstreams.installs


def test_a_stream_stays_while_a_large_frame_arrives_in_pieces() -> None:
    """The follower says at least once in an election timeout that something came, whole frames or not."""
    world = serving()
    stream_id, before = world["n3"].upstream.stream_id, streams_of(world["n1"])
    world["n3"].hold_flush = True
    world["n1"].write("its ack is owed all the time")
    for _ in range(20):
        world.run_for(0.5)
        world["n3"].step(events.FramesArrived(stream_id, b"", 0, 0, 0))
    assert streams_of(world["n1"]) == before
