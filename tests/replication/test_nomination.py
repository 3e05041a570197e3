"""Rules 4 and 13: who campaigns, when, and for whom it makes way. Liveness only: promises decide who leads."""

from collections.abc import Iterable

import pytest

from quire.replication.core import CoreOptions, Promise, actions, events
from quire.replication.core.election import FALLBACK_TIMEOUTS, IN_VAIN_TIMEOUTS, SHORT_TIMEOUTS, Phase
from quire.replication.core.messages import (
    Campaign,
    Heartbeat,
    Last,
    PreVote,
    PreVoteAnswer,
    VoteAnswer,
    VoteRequest,
)
from tests.replication.world import MILLISECOND, SimNode, World, disk_id, values

TIMEOUT_S = CoreOptions().election_timeout_us / 1_000_000


def started(*node_ids: str) -> World:
    world = World(*node_ids)
    world.start()
    return world


def serving(*node_ids: str) -> World:
    """The first node leads, and is no longer nominated."""
    world = started(*node_ids)
    leader = world.elect(node_ids[0])
    world.run_for(0.3)
    suggest(leader, nominated=False)
    return world


def suggest(node: SimNode, *, nominated: bool) -> None:
    node.nominated = nominated
    node.step(events.Nominated(nominated))


def phase(node: SimNode) -> Phase:
    assert node.core is not None
    return node.core.candidate.phase


def epochs(nodes: Iterable[SimNode]) -> int:
    return max(node.state.promise.epoch for node in nodes)


def sent(node: SimNode, event: events.Event) -> list[object]:
    """What a node's core would send after an event; nothing is sent."""
    assert node.core is not None
    told = node.core.handle(event, node.world.now, node.world.clock())
    return [action.message for action in told if isinstance(action, actions.Send)]


# A level


def test_a_candidate_leads() -> None:
    world = started("n1", "n2", "n3")
    assert world.elect("n2").roles[-1].reason == "the control plane nominated it"


def test_a_nomination_that_came_while_a_leader_lived_counts_when_that_leader_is_lost() -> None:
    world = serving("n1", "n2", "n3")
    suggest(world["n3"], nominated=True)
    world.run_for(3)
    assert world.leader() is world["n1"]

    world["n1"].crash()
    world.run_until(lambda: world.leader() is world["n3"], within_s=TIMEOUT_S)


def test_a_candidate_whose_nomination_is_taken_back_asks_nobody_any_more() -> None:
    world = started("n1", "n2", "n3")
    world.isolate("n1")
    suggest(world["n1"], nominated=True)
    world.run_until(lambda: phase(world["n1"]) is Phase.PRE_VOTE)

    suggest(world["n1"], nominated=False)
    world["n1"].step(events.Tick())

    assert phase(world["n1"]) is Phase.IDLE


def test_a_candidate_asks_again_until_it_is_heard() -> None:
    world = started("n1", "n2", "n3")
    world.isolate("n1")
    suggest(world["n1"], nominated=True)
    world.run_for(2)

    world.heal()
    world.run_until(lambda: world.leader() is world["n1"], within_s=0.2)


def test_a_pre_vote_counts_answers_that_take_longer_than_it_waits_to_ask_again() -> None:
    world = started("n1", "n2", "n3")
    world.delay_us = lambda source, target: 200 * MILLISECOND  # two heartbeats each way

    world.elect("n1")


def test_two_candidates_find_one_leader() -> None:
    world = started("n1", "n2", "n3")

    suggest(world["n1"], nominated=True)
    suggest(world["n2"], nominated=True)
    world.run_until(lambda: world.leader() is not None, within_s=2 * TIMEOUT_S)
    leader, epoch = world.leader(), epochs(world.nodes.values())
    world.run_for(10)

    assert world.leader() is leader
    assert epochs(world.nodes.values()) == epoch


@pytest.mark.parametrize("first", range(1, 40))
def test_candidates_that_part_the_votes_find_one_leader_by_backing_off(first: int) -> None:
    world = World("n1", "n2", "n3", "n4")
    for _ in range(first):
        next(world.incarnations)
    world.start()
    # Each reaches one voter before the other candidate does: two votes each, and half of four is not a majority.
    near = {("n1", "n3"), ("n2", "n4")}
    world.delay_us = lambda source, target: MILLISECOND if (source, target) in near else 3 * MILLISECOND

    for node in ("n1", "n2"):
        suggest(world[node], nominated=True)

    world.run_until(lambda: world.leader() is not None, within_s=6 * TIMEOUT_S)


def test_a_node_that_promised_a_candidate_gives_it_time_to_lead() -> None:
    world = started("n1", "n2", "n3")
    voter = world["n2"]
    request = VoteRequest(Promise(7, "n3", 1), Last(9, 99))
    voter.step(events.Received("n3", disk_id("n3"), request))
    world.cut(("n3", "n2"))

    suggest(voter, nominated=True)
    world.run_for(0.4 * TIMEOUT_S)
    assert phase(voter) is Phase.IDLE
    world.run_until(lambda: phase(voter) is not Phase.IDLE, within_s=0.7 * TIMEOUT_S)


# A lost leader


def test_a_leader_whose_connection_ended_is_not_waited_for() -> None:
    world = serving("n1", "n2", "n3")
    suggest(world["n2"], nominated=True)

    world["n1"].crash()

    world.run_until(lambda: world.leader() is world["n2"], within_s=0.1)


def test_a_leader_that_falls_silent_on_open_connections_is_lost_after_an_election_timeout() -> None:
    world = serving("n1", "n2", "n3")
    suggest(world["n2"], nominated=True)

    world.isolate("n1")

    world.run_until(lambda: world.leader() is world["n2"], within_s=1.2 * TIMEOUT_S)


def test_a_leader_that_speaks_after_its_link_broke_is_heard_again() -> None:
    world = serving("n1", "n2", "n3")
    follower = world["n2"]

    follower.step(events.LinkDown("n1"))
    assert follower.core is not None
    assert follower.core.leader_id is None
    world.run_until(lambda: follower.core is not None and follower.core.leader_id == "n1", within_s=0.2)

    assert world["n1"].leads


def test_a_node_that_lost_only_its_own_link_to_the_leader_disturbs_nobody() -> None:
    world = serving("n1", "n2", "n3")
    epoch = epochs(world.nodes.values())
    suggest(world["n2"], nominated=True)

    for _ in range(20):
        world["n2"].step(events.LinkDown("n1"))
        world.run_for(0.05)

    assert world.leader() is world["n1"]
    assert epochs(world.nodes.values()) == epoch


# Nobody is nominated


def test_without_a_control_plane_some_voter_campaigns_after_three_election_timeouts() -> None:
    world = serving("n1", "n2", "n3")
    world["n1"].write("kept")
    world.run_for(SHORT_TIMEOUTS * TIMEOUT_S)

    world["n1"].crash()
    lost = world.now
    world.run_until(lambda: world.leader() is not None, within_s=(FALLBACK_TIMEOUTS + 2) * TIMEOUT_S)

    assert world.now - lost >= (FALLBACK_TIMEOUTS - 0.2) * TIMEOUT_S * 1_000_000
    leader = world.leader()
    assert leader is not None
    assert "three election timeouts" in leader.roles[-1].reason
    assert values(leader) == ["kept"]


def test_a_cluster_that_starts_without_a_control_plane_finds_a_leader() -> None:
    world = started("n1", "n2", "n3", "n4", "n5")
    world.run_until(lambda: world.leader() is not None, within_s=(FALLBACK_TIMEOUTS + 2) * TIMEOUT_S)


@pytest.mark.parametrize("first", range(1, 30))
def test_nodes_that_all_wait_do_not_campaign_at_the_same_time(first: int) -> None:
    world = World("n1", "n2", "n3", "n4", "n5")
    for _ in range(first):
        next(world.incarnations)
    world.start()

    world.run_until(lambda: world.leader() is not None, within_s=(FALLBACK_TIMEOUTS + 2) * TIMEOUT_S)

    assert epochs(world.nodes.values()) <= 3


def test_a_node_that_does_not_count_never_campaigns() -> None:
    world = World("n1", "n2", observers=("n3",))
    world.start()
    world.isolate("n3")

    suggest(world["n3"], nominated=True)
    world.run_for(6)

    assert phase(world["n3"]) is Phase.IDLE
    assert world["n3"].state.promise.epoch == 0


# Campaign (rule 4)


def behind() -> World:
    """n1 led; n2 holds what it acknowledged, n3 lacks it; n1 is down."""
    world = serving("n1", "n2", "n3")
    world.isolate("n3")
    world["n1"].write("acknowledged")
    world.run_until(lambda: world["n2"].apply_to == world["n1"].log.tail.index)
    world["n1"].crash()
    world.heal()
    world.run_for(1.2)
    return world


def test_a_candidate_that_is_not_the_best_of_a_majority_asks_the_best_to_campaign() -> None:
    world = behind()

    suggest(world["n3"], nominated=True)
    world.run_until(lambda: world.leader() is world["n2"], within_s=0.3)

    assert world["n2"].roles[-1].reason == "n3 asked it to"
    assert values(world["n2"]) == ["acknowledged"]


def test_a_candidate_asks_the_longest_log_of_those_that_answered_to_campaign() -> None:
    world = serving("n1", "n2", "n3", "n4", "n5")
    node = world["n2"]
    world.isolate("n2")
    suggest(node, nominated=True)
    world.run_for(2 * TIMEOUT_S)
    assert phase(node) is Phase.PRE_VOTE
    assert node.core is not None
    epoch, index = node.running.durable

    told: list[object] = []
    for voter, ahead in (("n3", 1), ("n4", 9), ("n5", 2)):
        answer = PreVoteAnswer(node.core.candidate.attempt, False, 0, Last(epoch, index + ahead), node.world.clock())
        told += sent(node, events.Received(voter, disk_id(voter), answer))
    assert told == []  # n1 is linked and has not answered
    world.now += 100 * MILLISECOND
    asked = node.core.handle(events.Tick(), world.now, world.clock())

    assert actions.Send("n4", Campaign(None)) in asked


def test_a_campaign_of_a_candidate_does_not_disturb_a_live_leader() -> None:
    world = serving("n1", "n2", "n3")
    assert sent(world["n2"], events.Received("n3", disk_id("n3"), Campaign(None))) == []


def test_a_campaign_that_shows_another_than_the_leader_that_is_heard_is_not_followed() -> None:
    world = serving("n1", "n2", "n3")
    led = world["n1"].state.promise

    for sender, shown in (("n3", led), ("n1", Promise(led.epoch - 1, "n1", led.incarnation))):
        assert sent(world["n2"], events.Received(sender, disk_id(sender), Campaign(shown))) == []


def test_a_campaign_of_a_node_that_is_no_voter_is_not_followed() -> None:
    world = behind()
    assert sent(world["n2"], events.Received("n3", bytes(16), Campaign(None))) == []


def test_a_node_that_hears_a_leader_would_promise_only_to_whom_that_leader_sent() -> None:
    world = serving("n1", "n2", "n3")
    led, high = world["n1"].state.promise, Last(9, 99)

    for shown in (None, Promise(led.epoch, "n1", led.incarnation + 1), led):
        (answer,) = sent(world["n2"], events.Received("n3", disk_id("n3"), PreVote(1, high, shown)))
        assert isinstance(answer, PreVoteAnswer)
        assert answer.granted == (shown == led)


def test_an_attempt_that_too_many_refused_ends_at_once_and_is_tried_again_in_a_higher_epoch() -> None:
    world = started("n1", "n2", "n3")
    node = world["n1"]
    suggest(node, nominated=True)
    world.run_until(lambda: phase(node) is Phase.REQUESTING)
    first = node.state.promise

    for voter in ("n2", "n3"):
        node.step(events.Received(voter, disk_id(voter), VoteAnswer(first, False, first.epoch, world.clock())))

    assert phase(node) is Phase.IDLE
    world.run_until(lambda: world.leader() is node, within_s=2 * TIMEOUT_S)
    assert node.state.promise.epoch > first.epoch


def refuse(node: SimNode, *voters: str) -> None:
    """The next attempt of a node is refused by these, which leaves it without a majority."""
    world = node.world
    world.run_until(lambda: phase(node) is Phase.REQUESTING)
    asked = node.state.promise
    for voter in voters:
        node.step(events.Received(voter, disk_id(voter), VoteAnswer(asked, False, asked.epoch, world.clock())))
    assert phase(node) is Phase.IDLE


@pytest.mark.parametrize("first", range(1, 8))
def test_a_candidate_that_heard_a_leader_backs_off_as_after_a_first_attempt(first: int) -> None:
    world = World("n1", "n2", "n3")
    for _ in range(first):
        next(world.incarnations)
    world.start()
    node = world["n1"]
    suggest(node, nominated=True)
    refuse(node, "n2", "n3")
    refuse(node, "n2", "n3")
    suggest(node, nominated=False)
    world.elect("n2")
    suggest(node, nominated=True)
    world["n2"].crash()

    refuse(node, "n3")

    world.run_until(lambda: phase(node) is not Phase.IDLE, within_s=1.1 * TIMEOUT_S)


def granted(node: SimNode, sender: str, held_epoch: int) -> events.Event:
    """A pre-vote that a voter grants to the attempt under way."""
    assert node.core is not None
    attempt, world = node.core.candidate.attempt, node.world
    answer = PreVoteAnswer(attempt, True, held_epoch, node.state.log.durable, world.clock())
    return events.Received(sender, disk_id(sender), answer)


def test_a_candidate_that_hears_its_leader_again_stops_whatever_was_granted_to_it() -> None:
    world = serving("n1", "n2", "n3")
    node, led = world["n2"], world["n1"].state.promise
    suggest(node, nominated=True)
    node.step(events.LinkDown("n1"))
    assert phase(node) is Phase.PRE_VOTE

    node.step(events.Received("n1", disk_id("n1"), Heartbeat(led, 1 << 20, world.clock())))
    node.step(granted(node, "n3", led.epoch))

    assert phase(node) is Phase.IDLE
    world.run_for(1)
    assert world["n1"].leads
    assert node.state.promise == led


def test_an_attempt_that_ended_while_its_own_promise_waited_for_the_disk_raises_no_epoch() -> None:
    world = serving("n1", "n2", "n3")
    node = world["n2"]
    elected = Promise(node.state.promise.epoch + 1, "n3", 7)
    node.step(events.Received("n3", disk_id("n3"), VoteRequest(elected, Last(9, 99))))
    node.step(events.Received("n3", disk_id("n3"), Heartbeat(elected, 1, world.clock())))
    node.step(events.Received("n1", disk_id("n1"), Campaign(None)))
    node.step(granted(node, "n1", elected.epoch))
    assert phase(node) is Phase.PROMISING

    world.run_for(0.05)

    assert phase(node) is Phase.IDLE
    assert node.state.promise == node.running.promises.promise == elected


# A node that crashes again and again


@pytest.mark.parametrize("runs_s", [0.06, 0.3])
def test_a_nominated_node_that_crashes_again_and_again_does_not_keep_the_others_from_leading(runs_s: float) -> None:
    world = serving("n1", "n2", "n3")
    faulty = world["n1"]
    suggest(faulty, nominated=True)
    faulty.write("before")
    world.run_for(0.3)
    world.delay_us = lambda source, target: 15 * MILLISECOND  # In 0.06 s it is promised an epoch, and no more.
    began, waited_since, longest_us, commit = world.now, world.now, 0, 0

    while world.now - began < 15 * TIMEOUT_S * 1_000_000:
        faulty.crash()
        for running_s in (0.05, runs_s):
            ends_at = world.now + running_s * 1_000_000
            while world.now < ends_at:
                world.run_for(0.05)
                if (leader := world.leader()) and leader.state.commit_index == leader.log.tail.index:
                    leader.write("more")
                reached = max(world[node_id].state.commit_index for node_id in ("n2", "n3"))
                if reached > commit:
                    commit, waited_since = reached, world.now
                longest_us = max(longest_us, world.now - waited_since)
            if faulty.core is None:
                faulty.start()

    assert longest_us <= 10 * TIMEOUT_S * 1_000_000


def test_a_node_that_is_lost_soon_after_it_was_promised_is_waited_for_less_long() -> None:
    world = serving("n1", "n2", "n3")
    world["n1"].write("committed")
    world.run_for(0.1)

    world["n1"].crash()
    lost = world.now
    world.run_until(lambda: world.leader() is not None, within_s=(IN_VAIN_TIMEOUTS + 1.5) * TIMEOUT_S)

    assert world.now - lost >= (IN_VAIN_TIMEOUTS - 0.2) * TIMEOUT_S * 1_000_000
    leader = world.leader()
    assert leader is not None
    assert "lost soon after" in leader.roles[-1].reason
    assert values(leader) == ["committed"]


def test_a_nominated_node_that_is_lost_soon_after_it_was_promised_makes_way_whatever_it_committed() -> None:
    world = serving("n1", "n2", "n3")
    suggest(world["n1"], nominated=True)
    world["n1"].write("committed")
    world.run_for(0.1)

    world["n1"].crash()
    world["n1"].start()
    world.run_until(lambda: world.leader() is not None, within_s=(IN_VAIN_TIMEOUTS + 1.5) * TIMEOUT_S)

    assert world.leader() is not world["n1"]


def test_a_leader_that_served_campaigns_at_once_when_it_is_back_and_nominated() -> None:
    world = serving("n1", "n2", "n3")
    suggest(world["n1"], nominated=True)
    for node in world.nodes.values():
        node.crash()
    world.start()

    world.run_until(lambda: world.leader() is world["n1"], within_s=0.9 * TIMEOUT_S)
