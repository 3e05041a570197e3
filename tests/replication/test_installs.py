"""Rule 16 in the core: a follower that lacks what expired gets a snapshot, and never goes back."""

import pytest

from quire.replication.core import CoreOptions, Promise, actions, events
from quire.replication.core.downstreams import STALLED_TIMEOUTS
from quire.replication.core.events import Reason
from quire.replication.core.fitness import Level
from quire.replication.core.following import Step
from quire.replication.core.messages import Heartbeat, Open, OpenAnswer, OpenVerb
from tests.replication.installing import DEEP, behind, expire, fetched, fetching
from tests.replication.world import World, disk_id


def test_a_follower_that_lacks_what_expired_installs_a_snapshot_and_catches_up() -> None:
    world = behind()
    node, fetch = fetching(world)
    leader = world["n1"]
    assert (fetch.leader_id, fetch.index) == ("n1", leader.snapshots.indices[-1])
    assert [install.snapshot_index for install in leader.leading.downstreams.installs.values()] == [fetch.index]
    fetched(node, fetch)
    leader.write("after")
    world.run_until(lambda: node.log.tail == leader.log.tail and node.state.commit_index == leader.state.commit_index)
    assert node.log.bounds.lowest_index == fetch.index
    assert not leader.leading.downstreams.installs
    # It knows all epochs that the log ever had, so the next opening finds where the logs part.
    assert list(node.running.epochs) == list(leader.running.epochs)


def test_after_an_install_a_node_knows_of_its_backlog_only_when_its_leader_says_what_was_committed() -> None:
    """The snapshot may be old. What it knew before the install says nothing of what was committed since."""
    world = World("n1", "n2", "n3")
    world.start()
    leader, node = world.elect("n1"), world["n3"]
    leader.write("before")
    world.run_until(lambda: node.state.backlog.is_known)
    world.isolate("n3")
    for number in range(DEEP):
        leader.write(f"{number}" * 4_000)
        world.run_for(0.05)
    expire(leader)
    world.heal()
    world.run_until(lambda: bool(node.fetches))
    snapshot_index = node.fetches[-1].index
    leader.write("since")
    world.run_until(lambda: leader.state.commit_index > snapshot_index)
    fetched(node, node.fetches[-1])

    world.run_until(lambda: node.state.commit_index == snapshot_index)

    assert not node.state.backlog.is_known
    world.run_until(lambda: node.state.backlog.is_known)
    assert node.state.backlog.end_index == leader.state.commit_index


def test_the_snapshot_of_which_there_is_a_part_is_offered_again_if_it_is_still_there() -> None:
    world = behind()
    first, last = world["n1"].snapshots.indices
    world["n3"].snapshots.fetching = first
    _, fetch = fetching(world)
    assert fetch.index == first
    world["n3"].crash()
    world["n3"].snapshots.fetching = first - 1
    world["n3"].fetches.clear()
    _, fetch = fetching(world)
    assert fetch.index == last


def test_without_a_snapshot_that_joins_its_log_the_leader_refuses() -> None:
    world = behind()
    leader = world["n1"]
    leader.snapshots.indices = [leader.log.bounds.lowest_index - 1]
    world.start("n3")
    world.run_for(1)
    assert not world["n3"].fetches
    assert not world["n3"].halted


def test_a_divergent_suffix_is_truncated_first_and_the_install_lowers_nothing() -> None:
    world = World("n1", "n2", "n3")
    world.start()
    world.elect("n3")
    world["n3"].write("committed")
    world.run_for(0.3)
    commit = world["n3"].state.commit_index
    world.isolate("n3")
    for _ in range(5):
        world["n3"].write("never committed")
    world.run_for(0.01)
    diverged = world["n3"].log.durable_index
    assert diverged > commit
    world.elect("n1")
    for number in range(DEEP):
        world["n1"].write(f"{number}" * 4_000)
        world.run_for(0.05)
    expire(world["n1"])
    world.heal()
    node = world["n3"]
    world.run_until(lambda: bool(node.fetches))
    assert node.truncations
    assert commit <= node.truncations[-1] < diverged
    durable = node.log.durable_index
    fetched(node, node.fetches[-1])
    world.run_until(lambda: node.log.tail == world["n1"].log.tail)
    assert node.installs[-1].snapshot.index > durable
    assert not node.halted


def test_a_snapshot_that_was_fetched_for_a_stream_that_is_gone_is_not_installed() -> None:
    world = behind()
    node, fetch = fetching(world)
    node.step(events.StreamClosed(fetch.stream_id))
    fetched(node, fetch)
    world.run_for(0.2)
    assert not node.installs


def test_a_node_that_promised_another_leader_meanwhile_installs_nothing() -> None:
    """Rule 2: the promise is checked when the install reaches the head of the queue, not when the fetch began."""
    world = behind()
    node, fetch = fetching(world)
    assert node.core is not None
    # A flush is due: the promise waits in the queue for it, and the install waits for the promise.
    node.hold_flush = True
    node.core.writer.appended()
    node.step(events.Tick())
    promise = Promise(node.state.promise.epoch + 1, "n2", 77)
    node.step(events.Received("n2", disk_id("n2"), Heartbeat(promise, 1, world.clock())))
    fetched(node, fetch)
    assert node.state.promise != promise
    assert not node.installs
    node.release()
    world.run_for(0.02)
    assert node.state.promise == promise
    assert not node.installs


def test_nothing_is_promised_while_a_snapshot_is_installed() -> None:
    world = behind()
    node, fetch = fetching(world)
    node.hold_install = True
    fetched(node, fetch)
    assert node.installs
    before = node.state.promise
    promise = Promise(before.epoch + 1, "n2", 77)
    node.step(events.Received("n2", disk_id("n2"), Heartbeat(promise, 1, world.clock())))
    assert node.state.promise == before
    node.running.install(node.installs[-1].snapshot)
    node.step(events.Installed(fetch.stream_id, fetch.index))
    assert node.state.promise == promise
    assert node.state.commit_index == fetch.index


@pytest.mark.parametrize("above", [0, 1])
def test_a_snapshot_that_brings_nothing_new_is_not_fetched(above: int) -> None:
    """A snapshot at or below commit_index would go back; one above it would not."""
    world = behind()
    world.start("n3")
    node = world["n3"]
    world.run_until(lambda: bool(node.fetches))
    stream = node.upstream
    stream.step = Step.OPENING
    node.fetches.clear()
    boundary = node.log.tail.index
    answer = OpenAnswer(OpenVerb.INSTALL, boundary, 0, "", boundary + above)
    node.step(events.OpenAnswered(stream.stream_id, answer))
    assert bool(node.fetches) == bool(above)


def test_an_install_below_what_is_committed_here_halts() -> None:
    world = behind()
    world.start("n3")
    node = world["n3"]
    world.run_until(lambda: bool(node.fetches))
    node.upstream.step = Step.OPENING
    node.state.commit(node.log.tail.index)
    answer = OpenAnswer(OpenVerb.INSTALL, 1, 0, "", 10_000)
    node.step(events.OpenAnswered(node.upstream.stream_id, answer))
    assert node.halted is not None
    assert "below commit_index" in node.halted


def test_a_fetch_that_failed_is_begun_again_by_another_opening() -> None:
    world = behind()
    node, fetch = fetching(world)
    node.step(events.FetchFailed(fetch.stream_id, "says the test"))
    world.run_until(lambda: len(node.fetches) > 1)
    assert node.fetches[-1].stream_id != fetch.stream_id
    fetched(node, fetch)  # Late, and for a stream that is gone.
    assert not node.installs


def test_a_fetch_that_fails_again_and_again_is_begun_once_in_four_election_timeouts() -> None:
    world = behind()
    node, _ = fetching(world)
    opened: list[int] = []

    def fail_all(timeouts: int) -> int:
        """How many fetches began meanwhile. There is no room for a snapshot, say."""
        before = len(opened)
        for _ in range(20 * timeouts):
            if node.fetches[-1].stream_id not in opened:
                opened.append(node.fetches[-1].stream_id)
                node.step(events.FetchFailed(opened[-1], "says the test"))
            world.run_for(CoreOptions().election_timeout_us / 20_000_000)
        return len(opened) - before

    fail_all(10)
    assert fail_all(40) in (9, 10, 11)


def test_a_fetch_that_fails_after_one_that_succeeded_is_begun_again_soon() -> None:
    world = behind()
    node, fetch = fetching(world)
    node.step(events.FetchFailed(fetch.stream_id, "says the test"))
    world.run_until(lambda: len(node.fetches) > 1)
    fetched(node, node.fetches[-1])
    leader = world["n1"]
    world.run_until(lambda: node.log.tail == leader.log.tail)
    world.isolate("n3")
    for number in range(DEEP):
        leader.write(f"{number}" * 4_000)
        world.run_for(0.05)
    expire(leader)
    world.heal()
    world.run_until(lambda: len(node.fetches) > 2)

    node.step(events.FetchFailed(node.fetches[-1].stream_id, "says the test"))

    world.run_until(lambda: len(node.fetches) > 3, within_s=2 * CoreOptions().election_timeout_us / 1_000_000)


def test_an_install_without_room_is_tried_again_when_there_is_some_and_the_node_votes_meanwhile() -> None:
    world = behind()
    node, fetch = fetching(world)
    node.disk_full = True
    fetched(node, fetch)
    world.run_until(lambda: node.state.fitness.holds(Level.NO_ROOM))
    world.run_for(0.1)
    assert (len(node.installs), node.halted, node.log.bounds.lowest_index) == (1, None, 0)

    world["n1"].crash()
    world.run_until(lambda: world["n2"].leads)  # By n3's vote. It has all frames.
    node.disk_full = False

    world.run_until(lambda: world.leader() is world["n2"] and node.log.tail == world["n2"].log.tail)


def test_a_full_follower_that_needs_a_snapshot_opens_once_in_four_election_timeouts() -> None:
    world = behind()
    node, _ = fetching(world)
    node.disk_full = True
    node.append_done(events.AppendResult(1, is_made=False, refused=Reason.DISK_FULL, error="says the test"))
    opened: list[Open] = []

    def opening(sent: Open) -> Open:
        opened.append(sent)
        return sent

    world.opening = opening
    node.step(events.FetchFailed(node.fetches[-1].stream_id, "says the test"))

    world.run_for(42 * CoreOptions().election_timeout_us / 1_000_000)

    assert len(opened) in (10, 11, 12)
    node.disk_full = False
    world.run_until(lambda: len(node.fetches) > 1)


def test_frames_that_come_while_a_snapshot_is_fetched_are_not_appended() -> None:
    world = behind()
    node, fetch = fetching(world)
    raw, _ = world["n1"].log.read_frames(fetch.index - 1, 1)
    before = node.log.tail
    node.step(events.FramesArrived(fetch.stream_id, raw, node.state.promise.epoch, fetch.index, fetch.index))
    assert node.log.tail == before


def test_nothing_is_dialled_while_an_install_is_on_its_way_to_disk() -> None:
    world = behind()
    node, fetch = fetching(world)
    node.hold_install = True
    fetched(node, fetch)
    [install] = node.installs
    fetches = len(node.fetches)
    node.step(events.StreamClosed(fetch.stream_id))
    world.run_for(1)
    assert not node.has_stream
    node.running.install(install.snapshot)
    node.step(events.Installed(fetch.stream_id, fetch.index))
    world.run_until(lambda: node.log.tail == world["n1"].log.tail)
    assert not node.halted
    assert len(node.fetches) == fetches


def test_a_stream_that_lacks_what_expired_ends_and_the_next_one_gets_a_snapshot() -> None:
    world = World("n1", "n2", "n3", options=CoreOptions(window_bytes=20_000))
    world.start()
    world.elect("n1")
    leader, slow = world["n1"], world["n3"]
    world.run_until(lambda: len(leader.leading.downstreams.streams) == 2)
    slow.hold_flush = True  # It acknowledges nothing, so the leader ships it no more than the window.
    for number in range(DEEP):
        leader.write(f"{number}" * 4_000)
        world.run_for(0.05)
    behind = {stream.node_id: stream_id for stream_id, stream in leader.leading.downstreams.streams.items()}
    expire(leader)
    assert list(leader.leading.downstreams.streams) == [behind["n2"]]
    slow.release()
    world.run_until(lambda: bool(slow.fetches))
    fetched(slow, slow.fetches[-1])
    world.run_until(lambda: slow.log.tail == leader.log.tail)
    assert behind["n3"] not in leader.leading.downstreams.streams
    assert not slow.halted


def test_the_end_of_a_leadership_ends_its_installs() -> None:
    world = behind()
    fetching(world)
    leader = world["n1"]
    assert leader.leading.downstreams.installs
    assert leader.core is not None
    [stream_id] = leader.leading.downstreams.installs
    leading = leader.leading
    told = leader.core.handle(events.Stopped("says the test"), world.now, world.clock())
    assert stream_id in [action.stream_id for action in told if isinstance(action, actions.CloseStream)]
    assert not leading.downstreams.installs


def test_an_install_holds_its_snapshot_while_its_follower_is_heard_and_three_election_timeouts_longer() -> None:
    world = behind()
    node, fetch = fetching(world)
    leader = world["n1"]
    timeout_s = leader.state.options.election_timeout_us / 1e6

    world.run_for(3 * STALLED_TIMEOUTS * timeout_s)
    assert [install.snapshot_index for install in leader.leading.downstreams.installs.values()] == [fetch.index]

    world.silence_streams("n3")  # Its machine is gone, and no connection breaks.
    node.crash()
    world.run_for((STALLED_TIMEOUTS - 1) * timeout_s)
    assert leader.leading.downstreams.installs
    world.run_for(2 * timeout_s)
    assert not leader.leading.downstreams.installs


def test_a_newer_opening_of_the_same_follower_replaces_its_install() -> None:
    world = behind()
    node, _ = fetching(world)
    leader = world["n1"]
    [earlier] = leader.leading.downstreams.installs
    opening = Open(leader.state.promise, tuple(node.running.epochs), node.log.tail.index, node.log.durable_index)
    leader.step(events.StreamOpened(777, "n3", disk_id("n3"), opening))
    assert list(leader.leading.downstreams.installs) == [777]
    assert earlier != 777
