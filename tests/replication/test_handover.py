"""An unfit leader hands over; one that cannot steps down and holds back. So a healthy majority soon makes progress."""

from collections.abc import Callable

import pytest

from quire.log import STORE_HEADER_BYTES, FrameCorrupt
from quire.replication.core import CoreOptions, events
from quire.replication.core.downstreams import Installing
from quire.replication.core.election import Phase
from quire.replication.core.fitness import Level
from quire.replication.core.messages import Campaign
from tests.replication.installing import behind, fetched, fetching
from tests.replication.test_fitness import fail_machine, level
from tests.replication.world import MILLISECOND, SimNode, World, values
from tests.rules.scenes import hear, led, started, suggested

TIMEOUT_S = CoreOptions().election_timeout_us / 1_000_000
LAW_S = 10 * TIMEOUT_S


def settled() -> World:
    """n1 leads, and knows the others' levels for long enough."""
    world = led("n1", "n2", "n3")
    world.run_for(2.5 * TIMEOUT_S)
    return world


def commits_elsewhere(world: World, faulty: SimNode, *, within_s: float = LAW_S) -> SimNode:
    """Wait until another node leads and commits a write; return it."""
    began = world.now
    world.run_until(lambda: world.leader() not in (None, faulty), within_s=within_s)
    leader = world.leader()
    assert leader is not None
    leader.write("after")
    left_s = within_s - (world.now - began) / 1_000_000
    world.run_until(lambda: leader.state.commit_index == leader.log.tail.index, within_s=left_s)
    assert values(leader)[-1] == "after"
    return leader


def be_full(node: SimNode) -> None:
    node.disk_full = True
    node.write("refused")


def be_full_without_reserve(node: SimNode) -> None:
    node.reserve = False
    be_full(node)


def be_slow(node: SimNode) -> None:
    node.flushes_us = [900 * MILLISECOND] * 5


def hang(node: SimNode) -> None:
    node.hold_flush = True
    node.write("never flushed")


def fail(node: SimNode) -> None:
    node.machine_failed = True


def find_rot(node: SimNode) -> None:
    node.storage.make_unreadable(f"log/{0:020d}.store", STORE_HEADER_BYTES)
    with pytest.raises(FrameCorrupt):
        node.log.read_frames(0, 1)


PERMANENT_FAULTS = [be_full, be_full_without_reserve, be_slow, hang, fail, find_rot]


@pytest.mark.parametrize("inject", PERMANENT_FAULTS)
def test_the_others_go_on_within_ten_election_timeouts_of_a_leader_s(inject: Callable[[SimNode], None]) -> None:
    world = settled()
    faulty = world["n1"]
    epoch = faulty.state.promise.epoch

    inject(faulty)
    leader = commits_elsewhere(world, faulty)
    world.run_for(30 * TIMEOUT_S)

    assert world.leader() is leader
    assert leader.state.promise.epoch == epoch + 1


def test_a_transfer_for_fitness_goes_to_the_fittest_and_loses_no_write() -> None:
    world = settled()
    be_slow(world["n3"])
    world["n1"].write("before")
    world.run_for(2.5 * TIMEOUT_S)

    fail(world["n1"])
    world.run_until(lambda: world.leader() is world["n2"], within_s=TIMEOUT_S)

    assert values(world["n2"]) == ["before"]
    assert "handed over to n2" in [role.reason for role in world["n1"].roles]


def test_an_unfit_leader_without_a_fitter_voter_goes_on() -> None:
    world = settled()
    for node in world.nodes.values():
        fail(node)
    world.run_for(20 * TIMEOUT_S)
    assert world.leader() is world["n1"]
    assert world["n1"].transfers_ended == []


def test_an_unfit_leader_whose_target_does_not_take_over_steps_down() -> None:
    world = settled()
    faulty, target = world["n1"], world["n3"]
    target.hold_flush = True  # It acknowledges nothing, and is heard.
    faulty.write("before")
    fail(faulty)
    world.run_until(lambda: faulty.leading.handover.target == "n3" if faulty.leads else True, within_s=TIMEOUT_S)

    leader = commits_elsewhere(world, faulty)

    assert leader is world["n2"]


def test_an_unfit_leader_goes_on_after_a_transfer_that_failed_if_nobody_is_fitter_by_then() -> None:
    world = settled()
    faulty = world["n1"]
    world["n2"].crash()
    world.stream_cut.add(("n3", "n1"))  # n3 is heard, and acknowledges nothing.
    faulty.write("before")
    be_slow(faulty)
    world.run_until(lambda: faulty.leading.handover.target == "n3", within_s=2 * TIMEOUT_S)

    fail(world["n3"])
    world.run_until(lambda: faulty.leading.handover.target is None, within_s=3 * TIMEOUT_S)
    world.run_for(5 * TIMEOUT_S)

    assert faulty.leads


def test_a_voter_that_has_been_fit_for_less_than_two_election_timeouts_is_no_target_yet() -> None:
    world = settled()
    for node in world.nodes.values():
        fail(node)
    world.run_for(TIMEOUT_S)
    # It leaves the level after two election timeouts, and is a target after two more.
    world["n2"].machine_failed = False

    world.run_for(3.9 * TIMEOUT_S)
    assert world.leader() is world["n1"]
    world.run_until(lambda: world.leader() is world["n2"], within_s=TIMEOUT_S)


def test_a_voter_that_fetches_a_snapshot_is_no_target() -> None:
    world = settled()
    leader = world["n1"]
    world["n3"].crash()
    leader.snapshots.indices.append(leader.log.durable_index)
    leader.leading.downstreams.installs[99] = Installing("n2", leader.log.durable_index, world.now)
    leader.checked = False

    fail(leader)
    world.run_for(20 * TIMEOUT_S)

    assert leader.leads


def test_a_leader_that_is_stuck_steps_down_for_a_voter_that_commits_what_it_can() -> None:
    world = settled()
    stuck = world["n1"]
    for follower in ("n2", "n3"):  # The streams carry nothing; heartbeats pass.
        world.stream_cut.add(("n1", follower))
    stuck.write("lost")

    leader = commits_elsewhere(world, stuck)
    world.run_for(20 * TIMEOUT_S)

    assert world.leader() is leader


@pytest.mark.slow
def test_leaders_that_are_stuck_for_the_others_fault_step_down_ever_more_seldom() -> None:
    world = settled()
    for follower in ("n2", "n3"):
        world.stream_cut |= {("n1", follower), ("n2", follower), ("n3", follower), (follower, "n1")}
    world["n1"].write("lost")

    def epoch_after(timeouts: float) -> int:
        world.run_for(timeouts * TIMEOUT_S)
        return max(node.state.promise.epoch for node in world.nodes.values())

    at_first = epoch_after(60)
    assert at_first <= 8
    assert epoch_after(240) - at_first <= 5


def test_a_leader_that_is_stuck_steps_down_again_for_a_voter_that_came_back() -> None:
    world = settled()
    stuck = world["n1"]
    world["n3"].crash()
    world.stream_cut.add(("n1", "n2"))
    stuck.write("lost")
    world.run_until(lambda: not stuck.leads, within_s=LAW_S)  # n2 has less, so only n1 can lead.
    world.run_until(lambda: world.leader() is None and stuck.leads, within_s=2 * LAW_S)

    world.stream_cut.add(("n1", "n3"))
    world["n3"].start()

    commits_elsewhere(world, stuck)


def test_a_leader_that_is_stuck_steps_down_again_after_a_pause_though_it_hears_the_same_voters() -> None:
    world = settled()
    stuck = world["n1"]
    for follower in ("n2", "n3"):
        world.stream_cut |= {("n1", follower), ("n2", follower), ("n3", follower), (follower, "n1")}
    stuck.write("lost")
    world.run_for(20 * TIMEOUT_S)
    world.run_until(lambda: stuck.leads and stuck.state.fitness.is_stuck, within_s=200 * TIMEOUT_S)

    world.stream_cut -= {("n2", "n3"), ("n3", "n2")}

    world.run_until(lambda: world.leader() in (world["n2"], world["n3"]), within_s=200 * TIMEOUT_S)


def test_a_leader_that_is_stuck_and_full_hands_over_to_nobody_without_room() -> None:
    world = settled()
    leader = world["n1"]
    for follower in ("n2", "n3"):
        world[follower].disk_full = True
    leader.write("no follower has room for it")
    world.run_until(lambda: level(leader) is Level.COMMITS_NOTHING, within_s=LAW_S)
    be_full(leader)
    epoch = leader.state.promise.epoch

    world.run_for(60 * TIMEOUT_S)

    assert world.leader() is leader
    assert leader.state.promise.epoch == epoch
    leader.step(events.ReadRequested(7))
    world.run_until(lambda: leader.reads.get(7) is not None)
    for node in world.nodes.values():
        node.disk_full = False
    world.run_until(lambda: values(world["n3"]) == ["no follower has room for it"])


def test_a_leader_that_is_stuck_and_whose_machine_failed_hands_over_for_that() -> None:
    world = settled()
    faulty = world["n1"]
    world["n3"].crash()
    world.stream_cut.add(("n1", "n2"))
    faulty.write("lost")
    world.run_until(lambda: not faulty.leads, within_s=LAW_S)
    world.run_until(lambda: faulty.leads, within_s=2 * LAW_S)
    world.run_until(lambda: faulty.state.fitness.is_stuck, within_s=LAW_S)

    fail_machine(faulty)

    world.run_until(lambda: not faulty.leads or faulty.leading.handover.target == "n2", within_s=8 * TIMEOUT_S)


def test_a_leader_whose_only_follower_has_just_installed_a_snapshot_is_stuck_no_more() -> None:
    world = behind()
    follower, fetch = fetching(world)
    leader = world["n1"]
    world["n2"].crash()
    leader.write("waits")
    world.run_until(lambda: level(leader) is Level.COMMITS_NOTHING, within_s=LAW_S)
    world.run_for(3 * TIMEOUT_S)
    epoch = leader.state.promise.epoch

    world.delay_us = lambda source, target: 100 * MILLISECOND  # It is shipped the rest no sooner than that.
    fetched(follower, fetch)
    world.run_for(5 * TIMEOUT_S)

    assert (leader.leads, leader.state.promise.epoch) == (True, epoch)
    assert leader.state.commit_index == leader.log.tail.index


def test_nodes_that_hold_back_do_so_no_longer_when_nobody_else_leads() -> None:
    world = settled()
    for node_id in ("n2", "n3"):
        fail_machine(world[node_id])
        for _ in range(5):
            world[node_id].state.fitness.hold_off(world[node_id].state)  # 64 election timeouts

    world["n1"].crash()

    world.run_until(lambda: world.leader() is not None, within_s=12 * TIMEOUT_S)


def test_a_leader_elected_without_room_for_its_first_record_holds_back_and_epochs_do_not_climb() -> None:
    world = started("n1", "n2", "n3")
    faulty = world["n1"]
    faulty.disk_full, faulty.reserve = True, False
    suggested(faulty, by_control_plane=True)
    world.run_until(lambda: level(faulty) is Level.NO_ROOM)

    leader = commits_elsewhere(world, faulty)
    world.run_for(60 * TIMEOUT_S)

    assert leader.state.promise.epoch <= 3


def test_a_node_that_holds_back_does_not_campaign_for_another_candidate_either() -> None:
    world = settled()
    stuck = world["n1"]
    for follower in ("n2", "n3"):
        world.stream_cut.add(("n1", follower))
    stuck.write("lost")
    world.run_until(lambda: not stuck.leads, within_s=LAW_S)
    world.isolate("n1")
    world.run_for(1.5 * TIMEOUT_S)

    hear(stuck, "n2", Campaign(None))

    assert stuck.core is not None
    assert (stuck.core.candidate.phase, stuck.core.leader_id) == (Phase.IDLE, None)


def test_hold_offs_double_until_the_node_is_fit_again() -> None:
    world = started("n1")
    node = world["n1"]
    fitness, state = node.state.fitness, node.state
    fail_machine(node)
    held: list[float] = []
    for _ in range(6):
        fitness.hold_off(state)
        began = state.now
        world.run_until(lambda: not fitness.holds_off(state), within_s=100 * TIMEOUT_S)
        held.append(round((state.now - began) / 1_000_000 / TIMEOUT_S))
    assert held == [4, 8, 16, 32, 64, 64]

    fitness.hold_off(state)
    node.machine_failed = False
    world.run_until(lambda: not fitness.holds_off(state), within_s=3 * TIMEOUT_S)


def test_a_slow_leader_that_is_slow_again_hands_over_once_in_ten_election_timeouts() -> None:
    world = settled()
    be_slow(world["n1"])
    world.run_until(lambda: world.leader() is world["n2"] or world.leader() is world["n3"], within_s=LAW_S)
    handed_over = world.now
    leader = world.leader()
    assert leader is not None
    world["n1"].flushes_us = [1_000] * 30
    world.run_until(lambda: level(world["n1"]) is Level.FIT)
    world.run_for(0.5)
    leader.step(events.TransferRequested("n1"))
    world.run_until(lambda: world.leader() is world["n1"])
    be_slow(world["n1"])

    world.run_until(lambda: world.leader() not in (None, world["n1"]), within_s=LAW_S)

    assert world.now - handed_over >= 9.9 * TIMEOUT_S * 1_000_000


def test_a_leader_that_stays_faulty_and_gets_leadership_back_hands_over_without_that_pause() -> None:
    world = settled()
    be_slow(world["n1"])
    world.run_until(lambda: world.leader() not in (None, world["n1"]), within_s=LAW_S)
    other = world.leader()
    assert other is not None
    suggested(other, by_control_plane=False)
    be_slow(world["n1"])
    promise = other.state.promise
    hear(world["n1"], other.node_id, Campaign(promise))
    world.run_until(lambda: world.leader() is world["n1"], within_s=TIMEOUT_S)

    world.run_until(lambda: world.leader() not in (None, world["n1"]), within_s=4 * TIMEOUT_S)


# An operator's transfer


def test_an_operator_s_transfer_to_a_voter_that_is_unfit_is_refused_with_the_reason() -> None:
    world = settled()
    fail_machine(world["n3"])
    world.run_for(0.3)

    world["n1"].step(events.TransferRequested("n3"))

    assert world["n1"].transfers_ended == ["n3 is not fit to lead (machine failed), n1 is fitter"]


def test_an_operator_s_transfer_to_an_unfit_voter_is_made_if_none_is_fitter() -> None:
    world = settled()
    for node in world.nodes.values():
        fail_machine(node)
    world.run_for(0.3)

    world["n1"].step(events.TransferRequested("n3"))

    world.run_until(lambda: world.leader() is world["n3"], within_s=TIMEOUT_S)


def test_an_operator_s_transfer_is_not_refused_for_a_fitter_voter_that_is_down() -> None:
    world = settled()
    world["n2"].crash()
    world.run_for(1.5 * TIMEOUT_S)
    for node_id in ("n1", "n3"):
        fail_machine(world[node_id])
    world.run_for(0.3)

    world["n1"].step(events.TransferRequested("n3"))

    world.run_until(lambda: world.leader() is world["n3"], within_s=TIMEOUT_S)


def test_an_operator_s_transfer_waits_for_the_target_s_first_echo() -> None:
    world = led("n1", "n2", "n3")
    leader = world["n1"]
    leader.leading.handover._levels.clear()  # pyright: ignore[reportPrivateUsage]
    leader.step(events.TransferRequested("n3"))
    assert leader.leading.handover.campaigns is None

    world.run_until(lambda: world.leader() is world["n3"], within_s=TIMEOUT_S)
