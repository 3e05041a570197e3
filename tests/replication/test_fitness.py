"""How fit a node is to lead: which levels it is at, when it leaves them, and what they do to a candidate."""

import pytest

from quire.replication.core import CoreOptions, Promise, actions, events
from quire.replication.core.election import Phase
from quire.replication.core.fitness import Level
from quire.replication.core.messages import Campaign, Last, PreVote, PreVoteAnswer, VoteAnswer, VoteRequest
from tests.replication.world import MILLISECOND, SimNode, World, disk_id
from tests.rules.scenes import FAR, hear, led, started, suggested

TIMEOUT_S = CoreOptions().election_timeout_us / 1_000_000


def level(node: SimNode) -> Level:
    assert node.core is not None
    return node.core.status().fitness.level


def reason(node: SimNode) -> str:
    assert node.core is not None
    return node.core.status().fitness.reason


def levels(node: SimNode) -> list[Level]:
    """All that hold, the gravest first."""
    assert node.core is not None
    fitness = node.core.status().fitness
    return [held.level for held in (fitness, *fitness.lower)]


def applying_nothing(node: SimNode) -> SimNode:
    """The node, which from now on stays where it is."""
    applied = node.apply_to
    apply_to = property(lambda _: applied)
    node.__class__ = type("Late", (SimNode,), {"apply_to": apply_to.setter(lambda *_: None)})
    return node


def fail_machine(node: SimNode) -> None:
    """Make a node unfit at once, and for good."""
    node.machine_failed = True
    node.world.run_until(lambda: level(node) is Level.MACHINE_FAILED)


def answers(node: SimNode, sender: str, message: PreVote) -> PreVoteAnswer:
    """A node's answer to a pre-vote; it is not sent."""
    assert node.core is not None
    received = events.Received(sender, disk_id(sender), message)
    taken = node.core.handle(received, node.world.now, node.world.clock())
    (answer,) = (action.message for action in taken if isinstance(action, actions.Send))
    assert isinstance(answer, PreVoteAnswer)
    return answer


# Measures


def test_a_healthy_cluster_is_fit() -> None:
    world = led()
    world["n1"].write("a")
    world.run_for(5 * TIMEOUT_S)
    assert [(level(node), reason(node)) for node in world.nodes.values()] == [(Level.FIT, "")] * 3


def test_three_slow_flushes_in_a_row_make_a_slow_disk_and_one_long_one_does_not() -> None:
    node = started()["n2"]

    node.flushes_us = [60_000 * MILLISECOND]
    node.world.run_for(0.2)
    assert level(node) is Level.FIT
    node.flushes_us = [1_000] * 10 + [900 * MILLISECOND] * 3
    node.world.run_until(lambda: level(node) is not Level.FIT)

    assert (level(node), "the disk is slow" in reason(node)) == (Level.SLOW_DISK, True)


def test_what_flushes_took_is_forgotten_after_ten_election_timeouts_without_one() -> None:
    node = started()["n2"]
    node.flushes_us = [900 * MILLISECOND] * 3
    node.world.run_until(lambda: level(node) is Level.SLOW_DISK)
    # A level is left two election timeouts after its measure was calm.
    node.world.run_for(11.5 * TIMEOUT_S)
    assert level(node) is Level.SLOW_DISK
    node.world.run_for(1.5 * TIMEOUT_S)
    assert level(node) is Level.FIT


def test_a_node_with_two_faults_names_both_the_graver_first() -> None:
    node = started()["n2"]
    node.flushes_us = [900 * MILLISECOND] * 5
    node.world.run_until(lambda: level(node) is Level.SLOW_DISK)
    node.machine_failed = True
    node.world.run_until(lambda: level(node) is Level.MACHINE_FAILED)

    assert node.core is not None
    status = node.core.status().fitness
    assert [held.level for held in (status, *status.lower)] == [Level.MACHINE_FAILED, Level.SLOW_DISK]
    assert "machine has failed" in status.reason
    assert "the disk is slow" in status.lower[0].reason


def test_a_level_is_left_when_its_measure_was_below_half_the_bound_for_two_election_timeouts() -> None:
    node = started()["n2"]
    node.flushes_us = [900 * MILLISECOND] * 5
    node.world.run_until(lambda: level(node) is Level.SLOW_DISK)

    node.flushes_us = [400 * MILLISECOND] * 20  # Below the bound, not below half of it.
    node.world.run_for(3 * TIMEOUT_S)
    assert level(node) is Level.SLOW_DISK
    node.flushes_us = [1_000] * 20
    node.world.run_for(1.9 * TIMEOUT_S)
    assert level(node) is Level.SLOW_DISK
    node.world.run_for(0.3 * TIMEOUT_S)
    assert level(node) is Level.FIT


def test_a_node_that_applies_late_is_behind_and_one_that_applies_is_not() -> None:
    world = led()
    node = applying_nothing(world["n2"])

    world["n1"].write("a")
    world.run_for(3.2 * TIMEOUT_S)

    assert level(node) is Level.APPLY_LAG
    assert [level(world[other]) for other in ("n1", "n3")] == [Level.FIT] * 2


def test_a_full_disk_is_asked_for_room_every_four_election_timeouts_and_is_fit_again_when_there_is_some() -> None:
    world = led("n1")
    leader = world["n1"]
    leader.disk_full = True
    leader.write("a")
    assert (level(leader), leader.probes) == (Level.NO_ROOM, 0)

    world.run_for(8.1 * TIMEOUT_S)
    assert (level(leader), leader.probes) == (Level.NO_ROOM, 2)
    leader.disk_full = False

    world.run_until(lambda: level(leader) is Level.FIT, within_s=6.2 * TIMEOUT_S)
    assert leader.probes == 3


def test_a_follower_whose_disk_is_full_is_unfit_and_its_own_system_records_show_no_room() -> None:
    world = led()
    world["n2"].disk_full = True
    world["n1"].write("a")
    world.run_for(0.1)
    assert level(world["n2"]) is Level.NO_ROOM

    assert world["n2"].core is not None
    world["n2"].append_done(events.AppendResult(is_system=True))
    world.run_for(3 * TIMEOUT_S)

    assert level(world["n2"]) is Level.NO_ROOM


def test_a_leader_that_commits_nothing_of_what_it_appends_says_so() -> None:
    world = led()
    for follower in ("n2", "n3"):
        world[follower].hold_flush = True
    world["n1"].write("a")
    world.run_for(2.9 * TIMEOUT_S)
    assert level(world["n1"]) is Level.FIT
    levels: list[Level] = []
    world.watch = lambda node, *_: levels.append(level(node)) if node.node_id == "n1" else None

    world.run_for(0.3 * TIMEOUT_S)

    assert Level.COMMITS_NOTHING in levels


def test_a_leader_whose_majority_catches_up_is_not_stuck() -> None:
    world = led()
    leader = world["n1"]
    for follower in ("n2", "n3"):
        world[follower].hold_flush = True
    for number in range(8):
        leader.write(number)
        world.run_for(0.8 * TIMEOUT_S)
        for follower in ("n2", "n3"):
            world[follower].release()
            world[follower].hold_flush = True
    assert (level(leader), leader.leads) == (Level.FIT, True)


def test_a_machine_that_failed_makes_a_node_unfit_until_it_runs_again() -> None:
    node = started()["n2"]
    fail_machine(node)
    assert reason(node) == "its machine has failed"
    node.machine_failed = False
    node.world.run_until(lambda: level(node) is Level.FIT)


def test_that_nothing_is_applied_is_no_fault_of_its_own_once_the_machine_has_failed() -> None:
    world = led()
    node = applying_nothing(world["n2"])
    world["n1"].write("a")
    world.run_for(3.2 * TIMEOUT_S)
    assert levels(node) == [Level.APPLY_LAG]

    node.machine_failed = True
    world.run_until(lambda: level(node) is Level.MACHINE_FAILED)
    assert levels(node) == [Level.MACHINE_FAILED]
    world.run_for(8 * TIMEOUT_S)
    assert levels(node) == [Level.MACHINE_FAILED]


def test_a_disk_that_hangs_is_told_from_a_process_that_was_paused() -> None:
    world = led()
    paused = world["n2"]
    paused.hold_flush = True
    world["n1"].write("a")
    world.run_for(0.1)
    assert paused.core is not None

    paused.core.handle(events.Tick(), world.now + 5_000_000, world.clock())  # No event came for five seconds.
    assert level(paused) is Level.FIT
    for tick in range(1, 25):
        paused.core.handle(events.Tick(), world.now + 5_000_000 + tick * 50 * MILLISECOND, world.clock())

    assert level(paused) is Level.DISK_HANGS


def test_a_disk_that_hangs_is_not_hidden_by_pauses_of_the_process() -> None:
    world = led()
    node = world["n2"]
    node.hold_flush = True
    world["n1"].write("a")
    world.run_for(0.1)
    assert node.core is not None

    for pause in range(1, 5):
        node.core.handle(events.Tick(), world.now + pause * 900 * MILLISECOND, world.clock())

    assert level(node) is Level.DISK_HANGS


# Candidates


def test_a_node_that_is_unfit_campaigns_after_six_election_timeouts_without_a_leader() -> None:
    world = started("n1", "n2", "n3")
    world["n3"].crash()
    for node in ("n1", "n2"):
        fail_machine(world[node])

    world.run_for(6 * TIMEOUT_S - world.now / 1_000_000)
    assert world.leader() is None
    world.run_until(lambda: world.leader() is not None, within_s=2 * TIMEOUT_S)

    leader = world.leader()
    assert leader is not None
    assert leader.roles[-1].reason == "no leader was heard for six election timeouts"


def test_a_nomination_of_a_node_that_is_unfit_counts_when_it_is_fit() -> None:
    world = started("n1", "n2", "n3")
    fail_machine(world["n1"])
    suggested(world["n1"], by_control_plane=True)
    world.run_for(0.5 * TIMEOUT_S)
    assert world.leader() is None

    world["n1"].machine_failed = False
    world.run_until(lambda: world.leader() is world["n1"], within_s=3 * TIMEOUT_S)


def test_a_node_whose_disk_has_no_room_for_an_epoch_start_never_campaigns() -> None:
    world = started("n1")
    node = world["n1"]
    node.disk_full, node.reserve = True, False
    suggested(node, by_control_plane=True)
    world.run_for(20 * TIMEOUT_S)

    assert (level(node), node.leads) == (Level.NO_ROOM, False)
    assert node.state.promise.epoch == 1  # It learned that from its first epoch_start.
    node.disk_full = False
    world.run_until(lambda: node.leads, within_s=6 * TIMEOUT_S)


def test_a_pre_vote_is_refused_while_a_fitter_candidate_asks_and_no_longer() -> None:
    world = started("n1", "n2", "n3")
    voter = world["n3"]
    last = voter.log.durable_tail
    unfit = PreVote(1, Last(last.epoch, last.index), None, Level.NO_ROOM)
    assert answers(voter, "n1", unfit).granted

    assert answers(voter, "n2", PreVote(1, unfit.last, None, Level.SLOW_DISK)).granted
    assert not answers(voter, "n1", unfit).granted
    world.run_for(2.9 * TIMEOUT_S)
    assert not answers(voter, "n1", unfit).granted
    world.run_for(0.2 * TIMEOUT_S)
    assert answers(voter, "n1", unfit).granted


def test_a_fitter_candidate_that_nobody_elects_does_not_stand_in_the_way_for_ever() -> None:
    world = started("n1", "n2", "n3")
    voter = world["n3"]
    unfit = PreVote(1, FAR, None, Level.NO_ROOM)
    for node in world.nodes:
        world.isolate(node)
    granted = []
    for _ in range(9):
        answers(voter, "n2", PreVote(1, FAR, None))
        granted.append(answers(voter, "n1", unfit).granted)
        world.run_for(0.8 * TIMEOUT_S)
    assert granted == [False] * 8 + [True]


@pytest.mark.parametrize(
    ("fitter", "sender"),
    [(PreVote(1, Last(0, 0), None), "n2"), (PreVote(1, FAR, None, Level.NO_ROOM), "n2"), (PreVote(1, FAR, None), "n9")],
    ids=["its log is shorter", "it is as unfit", "it is no voter"],
)
def test_a_candidate_does_not_count_against_another_if(fitter: PreVote, sender: str) -> None:
    voter = started("n1", "n2", "n3")["n3"]
    answers(voter, sender, fitter)
    assert answers(voter, "n1", PreVote(1, FAR, None, Level.NO_ROOM)).granted


def test_fitness_refuses_no_promise() -> None:
    world = started("n1", "n2", "n3")
    voter = world["n3"]
    fail_machine(voter)
    answers(voter, "n2", PreVote(1, FAR, None))
    answers(voter, "n1", PreVote(1, FAR, None, Level.MACHINE_FAILED))

    promise = Promise(7, "n1", 1)
    hear(voter, "n1", VoteRequest(promise, FAR))
    world.run_for(0.005)

    assert voter.running.promises.promise == promise


def test_a_candidate_asks_the_fittest_of_those_that_a_majority_would_promise() -> None:
    world = World("n1", "n2", "n3", "n4", "n5")
    world.start()
    candidate = world["n1"]
    world.isolate("n1")
    suggested(candidate, by_control_plane=True)
    world.run_until(lambda: candidate.core is not None and candidate.core.candidate.phase is Phase.PRE_VOTE)
    assert candidate.core is not None
    attempt = candidate.core.candidate.attempt
    asked: list[str] = []
    world.watch = lambda _, __, taken: asked.extend(
        action.node_id for action in taken if isinstance(action, actions.Send) and action.message == Campaign(None)
    )

    ends = {"n2": (Last(1, 9), Level.NO_ROOM), "n3": (Last(1, 8), Level.FIT), "n4": (Last(1, 2), Level.FIT)}
    for node, (last, fitness) in {**ends, "n5": (Last(1, 2), Level.FIT)}.items():
        hear(candidate, node, PreVoteAnswer(attempt, False, 0, last, 0, fitness))

    assert asked == ["n3"]


@pytest.mark.parametrize("how", ["a voter refuses", "its link breaks"])
def test_a_campaign_that_cannot_win_ends_at_once(how: str) -> None:
    world = started("n1", "n2", "n3")
    node = world["n1"]
    world.cut(("n2", "n1"))
    suggested(node, by_control_plane=True)
    world.run_until(lambda: node.state.stored_promise.candidate == "n1")
    assert node.core is not None
    assert node.core.candidate.phase is Phase.REQUESTING

    node.step(events.LinkDown("n2"))
    assert node.core.candidate.phase is Phase.REQUESTING
    wanted = node.state.stored_promise
    refused = events.Received("n3", disk_id("n3"), VoteAnswer(wanted, False, wanted.epoch, 0))
    node.step(refused if how == "a voter refuses" else events.LinkDown("n3"))

    assert node.core.candidate.wanted is None


def test_a_follower_that_hears_a_leader_without_room_echoes_no_better_level_before_it_asked_its_own_disk() -> None:
    world = led()
    state = world["n2"].state
    fitness = state.fitness
    assert fitness.echoed(state, Level.SLOW_DISK) is Level.FIT

    assert fitness.echoed(state, Level.NO_ROOM) is Level.NO_ROOM
    fitness.room_probed(state, events.RoomProbed(has_room=True, has_reserve=True))
    assert fitness.echoed(state, Level.NO_ROOM) is Level.FIT
    assert fitness.echoed(state, Level.FIT) is Level.FIT
    assert fitness.echoed(state, Level.NO_ROOM) is Level.NO_ROOM  # It may be another time, and another size.


@pytest.mark.parametrize("delay_s", [0.001, 0.35])
def test_a_leader_without_room_hands_over_to_nobody_whose_disk_is_full_too_however_late_it_hears_of_it(
    delay_s: float,
) -> None:
    world = led()
    world.delay_us = lambda source, target: int(delay_s * 1_000_000)
    world.run_for(5 * TIMEOUT_S)
    assert world["n1"].leads
    for node in world.nodes.values():
        node.disk_full = True
    world["n1"].write("a")
    world.run_for(20 * TIMEOUT_S)
    assert (world["n1"].leads, world["n1"].state.promise.epoch) == (True, 1)
