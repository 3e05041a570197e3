"""Rule 5, time: a frame's timestamp is the latest time that a majority of the voters' clocks has reached."""

import pytest

from quire.replication.core import actions, events
from quire.replication.core.members import Identity
from quire.replication.core.messages import HeartbeatEcho, PreVote, PreVoteAnswer
from quire.replication.core.state import VoterClocks
from tests.replication.world import START_CLOCK, SimNode, World, disk_id, voters

SECOND = 1_000_000
TEN_YEARS = 10 * 365 * 86_400 * SECOND
TIMEOUT = SECOND


def clocks_of_n1() -> VoterClocks:
    return VoterClocks(Identity("n1", disk_id("n1"), 1), TIMEOUT)


def last_timestamp(node: SimNode) -> int:
    return node.log.tail.timestamp


def written(world: World, leader: SimNode) -> int:
    """Write once; return the frame's timestamp."""
    leader.write("x")
    world.run_until(lambda: leader.state.commit_index == leader.log.tail.index)
    return last_timestamp(leader)


@pytest.mark.parametrize(
    ("own", "n2", "n3", "time"),
    [(50, 40, 30, 40), (TEN_YEARS, 40, 30, 40), (1, 40, 30, 30), (50, TEN_YEARS, TEN_YEARS + 1, TEN_YEARS)],
)
def test_the_time_is_the_latest_that_a_majority_of_three_clocks_has_reached(
    own: int, n2: int, n3: int, time: int
) -> None:
    clocks = clocks_of_n1()
    clocks.heard("n2", disk_id("n2"), n2, 0)
    clocks.heard("n3", disk_id("n3"), n3, 0)

    assert clocks.time(voters("n1", "n2", "n3"), 0, own) == time


def test_a_clock_of_which_nothing_is_known_counts_as_not_there_yet() -> None:
    clocks = clocks_of_n1()
    members = voters("n1", "n2", "n3")
    assert clocks.time(members, 0, 50) == 0

    clocks.heard("n2", disk_id("n2"), 0, 0)  # An echo of an earlier version names no clock.
    clocks.heard("n3", b"another disk's".ljust(16), 70, 0)
    clocks.heard("n4", disk_id("n4"), 70, 0)  # It is no voter.

    assert clocks.time(members, 0, 50) == 0
    assert clocks.offsets_us(members, 0, 50) == {}


def test_a_reading_is_advanced_by_its_age_and_counts_for_an_election_timeout() -> None:
    clocks, members = clocks_of_n1(), voters("n1", "n2", "n3")
    clocks.heard("n2", disk_id("n2"), 40, 1_000)

    assert clocks.time(members, 1_000 + TIMEOUT, TEN_YEARS) == 40 + TIMEOUT
    assert clocks.time(members, 1_001 + TIMEOUT, TEN_YEARS) == 0


def test_a_lone_voters_own_clock_is_a_majority() -> None:
    assert clocks_of_n1().time(voters("n1"), 0, 50) == 50
    assert clocks_of_n1().time(voters("n1", "n2"), 0, 50) == 0


def test_a_fast_clock_keeps_no_cluster_without_a_leader() -> None:
    # n1 and n2 commit what n3 misses. n1 dies. Only n2 can lead, and its clock is 11 s ahead of n3's.
    world = World("n1", "n2", "n3")
    world.clock_ahead["n2"] = 11 * SECOND
    world.start()
    leader = world.elect("n1")
    world.isolate("n3")
    written(world, leader)
    world.run_until(lambda: world["n2"].log.durable_index == leader.log.tail.index)
    leader.crash()
    world.heal()

    world.run_until(lambda: world.leader() is world["n2"], within_s=10)

    assert written(world, world["n2"]) <= world.clock("n3")


@pytest.mark.parametrize("ahead", [TEN_YEARS, -TEN_YEARS, 11 * SECOND])
def test_one_wrong_clock_of_three_does_not_move_the_logs_time_wherever_it_leads(ahead: int) -> None:
    world = World("n1", "n2", "n3")
    world.clock_ahead["n1"] = ahead
    world.start()

    for leader in (world.elect("n1"), world.elect("n1")):
        before = world.clock()
        world.run_for(5)  # A node that is lost sooner makes way for the others.
        assert before <= written(world, leader) <= world.clock()
        assert leader.leading.status().clock_offsets_us["n1"] == pytest.approx(ahead, abs=SECOND // 10)
        leader.crash()
        leader.start()
        world.link_all()
        # It stamps its `epoch_start` with its voters' time, before it has applied anything.


def test_a_leader_that_knows_no_majoritys_clocks_does_not_move_the_logs_time() -> None:
    world = World("n1", "n2", "n3")
    world.start()
    leader = world.elect("n1")
    world.run_for(0.3)
    stamped = last_timestamp(leader)
    world.isolate("n1")
    world.now += 2 * TIMEOUT
    state = leader.state
    state.now, state.clock = world.now, world.clock("n1")

    assert state.majority_clock == 0
    leader.running.append_system(state.promise.epoch, state.majority_clock, {"type": "cursor"})
    assert last_timestamp(leader) == stamped


def test_a_leader_asks_a_voter_whose_echo_names_no_clock_by_a_pre_vote_without_effect() -> None:
    # A node of an earlier version names its clock in its answers to pre-votes and votes only.
    world = World("n1", "n2", "n3")
    world.start()
    leader = world.elect("n1")
    world.run_for(0.3)
    promise, core = leader.state.promise, leader.core
    assert core is not None
    world.now += TIMEOUT // 2
    echo = events.Received("n2", disk_id("n2"), HeartbeatEcho(promise.epoch, 1, promise.epoch))
    asked = PreVote(0, leader.running.durable, None)

    assert actions.Send("n2", asked) in core.handle(echo, world.now, world.clock("n1"))

    answers = world["n2"].core
    assert answers is not None
    told = answers.handle(events.Received("n1", disk_id("n1"), asked), world.now, world.clock("n2"))
    (answer,) = [each.message for each in told if isinstance(each, actions.Send)]
    assert isinstance(answer, PreVoteAnswer)
    core.handle(events.Received("n2", disk_id("n2"), answer), world.now, world.clock("n1"))
    assert leader.leads
    assert core.state.clocks.age_us("n2", disk_id("n2"), world.now) == 0
    assert actions.Send("n2", asked) not in core.handle(echo, world.now, world.clock("n1"))


def test_a_clock_that_an_echo_names_counts() -> None:
    world = World("n1", "n2", "n3")
    world.start()
    leader = world.elect("n1")
    world.run_for(0.3)
    epoch = leader.state.promise.epoch
    world.now += TIMEOUT // 4
    echo = HeartbeatEcho(epoch, 1, epoch, clock=START_CLOCK + 5)
    assert leader.core is not None

    leader.core.handle(events.Received("n3", disk_id("n3"), echo), world.now, world.clock("n1"))

    assert leader.state.clocks.age_us("n3", disk_id("n3"), world.now) == 0


def test_the_clocks_of_strangers_are_not_kept() -> None:
    world = World("n1", "n2", "n3")
    world.start()
    leader = world.elect("n1")

    for number in range(1_000):
        echo = HeartbeatEcho(leader.state.promise.epoch, 1, 0, clock=START_CLOCK)
        leader.step(events.Received("n9", number.to_bytes(16, "little"), echo))

    assert all(leader.state.clocks.age_us("n9", n.to_bytes(16, "little"), world.now) is None for n in range(1_000))


def test_the_clock_of_a_disk_that_is_no_voter_any_more_is_forgotten() -> None:
    world = World("n1", "n2", "n3")
    world.start()
    leader = world.elect("n1")
    world.run_for(0.3)
    assert leader.state.clocks.age_us("n3", disk_id("n3"), world.now) is not None

    record = {"type": "members", **voters("n1", "n2").to_record()}
    leader.running.append_system(leader.state.promise.epoch, world.clock(), record)
    leader.step(events.Tick())

    assert leader.state.clocks.age_us("n3", disk_id("n3"), world.now) is None
