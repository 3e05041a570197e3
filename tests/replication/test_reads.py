"""Rule 12 where reads overlap each other, a deposition, or heartbeats that are out before an echo comes back."""

import pytest

from quire.replication.core import CoreOptions, actions, events
from quire.replication.core.messages import Heartbeat, HeartbeatEcho
from tests.replication.test_leading import serving
from tests.replication.world import MILLISECOND, SimNode, World, disk_id


def heartbeats_of(leader: SimNode) -> list[int]:
    """The sequences of the heartbeats that it sends from now on."""
    sequences = list[int]()

    def watch(node: SimNode, _: object, taken: list[actions.Action]) -> None:
        for action in taken:
            if node is leader and isinstance(action, actions.Send) and isinstance(action.message, Heartbeat):
                sequences.append(action.message.sequence)

    leader.world.watch = watch
    return sequences


def echo(leader: SimNode, sender: str, sequence: int, *, epochs_ago: int = 0, disk: bytes = b"") -> None:
    """A follower's echo arrives, from when it had promised nobody else."""
    epoch = leader.state.promise.epoch
    leader.step(events.Received(sender, disk or disk_id(sender), HeartbeatEcho(epoch - epochs_ago, sequence, epoch)))


def depose(world: World) -> None:
    """n2 is elected by n3 and commits a write; n1 cannot know."""
    world["n1"].step(events.Nominated(False))
    world["n2"].nominated = True
    for node_id in ("n2", "n3"):
        world[node_id].step(events.LinkDown("n1"))  # So they wait for no timeout.
    world["n2"].step(events.Nominated(True))
    world.run_until(lambda: world["n2"].leads and world["n2"].leading.serving, within_s=0.5)
    world["n2"].write("after")
    world.run_until(lambda: world["n2"].state.commit_index == world["n2"].log.tail.index, within_s=0.3)
    assert world["n1"].leads
    assert world["n1"].state.commit_index < world["n2"].state.commit_index


def test_an_echo_sent_before_a_second_read_and_late_by_a_deposition_answers_the_first_alone() -> None:
    """The first read overlaps what the new leader wrote, and may miss it; the second began after it."""
    world = serving("n1", "n2", "n3")
    leader = world["n1"]
    world.isolate("n1")
    sent = heartbeats_of(leader)
    leader.step(events.ReadRequested(1))
    heard, before = sent[-1], leader.state.commit_index
    depose(world)
    leader.step(events.ReadRequested(2))

    echo(leader, "n3", heard)
    assert leader.reads == {1: before}

    echo(leader, "n2", heard)
    world.run_for(1.2)
    assert leader.reads == {1: before, 2: None}


def test_an_echo_that_names_the_epoch_of_the_next_leader_deposes_and_answers_no_read() -> None:
    world = serving("n1", "n2", "n3")
    leader = world["n1"]
    world.isolate("n1")
    sent, epoch = heartbeats_of(leader), leader.state.promise.epoch
    leader.step(events.ReadRequested(1))
    depose(world)

    answer = HeartbeatEcho(epoch, sent[-1], world["n3"].state.promise.epoch)
    leader.step(events.Received("n3", disk_id("n3"), answer))

    assert leader.reads == {1: None}
    assert not leader.leads


def test_a_read_waits_for_echoes_of_a_majority_and_a_late_echo_of_an_earlier_heartbeat_takes_none_back() -> None:
    world = serving("n1", "n2", "n3", "n4", "n5")
    leader = world["n1"]
    world.isolate("n1")
    sent = heartbeats_of(leader)
    leader.step(events.ReadRequested(1))
    sequence = sent[-1]

    echo(leader, "n2", sequence)
    echo(leader, "n2", sequence)
    echo(leader, "n2", sequence - 1)
    echo(leader, "n3", sequence - 1)
    assert leader.reads == {}

    echo(leader, "n3", sequence)
    assert leader.reads == {1: leader.state.commit_index}


@pytest.mark.parametrize("reads", [1, 3])
def test_reads_are_answered_though_later_heartbeats_are_sent_before_an_echo_comes_back(reads: int) -> None:
    options = CoreOptions(heartbeat_us=20 * MILLISECOND)
    world = serving("n1", "n2", "n3", options=options)
    leader = world["n1"]
    world.delay_us = lambda source, target: 75 * MILLISECOND

    for read_id in range(reads):
        leader.step(events.ReadRequested(read_id))
        world.run_for(0.01)
    world.run_for(0.35)  # Two round trips, and a tick.

    assert sorted(leader.reads) == list(range(reads))
    assert None not in leader.reads.values()


@pytest.mark.parametrize(("epochs_ago", "disk"), [(1, b""), (0, b"another disk id.")])
def test_an_echo_of_another_leadership_or_disk_is_no_sign_of_life_and_answers_no_read(
    epochs_ago: int, disk: bytes
) -> None:
    world = serving("n1", "n2", "n3")
    leader = world["n1"]
    leader.step(events.Nominated(False))
    world.isolate("n1")
    sent = heartbeats_of(leader)
    leader.step(events.ReadRequested(7))

    for _ in range(30):
        world.run_for(0.05)
        for node_id in ("n2", "n3"):
            echo(leader, node_id, sent[-1], epochs_ago=epochs_ago, disk=disk)

    assert leader.reads == {7: None}
    assert not leader.leads
