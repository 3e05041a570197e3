"""Rules 3, 4 and 5: what a candidate may count, and what a voter says and when."""

from collections.abc import Sequence

import pytest

from quire.log.simulated import faulty
from quire.replication import PromiseFile
from quire.replication.core import Promise, actions, events
from quire.replication.core.election import Phase
from quire.replication.core.messages import (
    CoreMessage,
    Heartbeat,
    HeartbeatEcho,
    Last,
    PreVote,
    PreVoteAnswer,
    VoteAnswer,
    VoteRequest,
)
from tests.replication.world import SimNode, World, disk_id

HIGH = Last(9, 99)
ASKED = Promise(7, "n3", 1)


def received(sender: str, message: CoreMessage, *, disk: bytes | None = None) -> events.Received:
    return events.Received(sender, disk_id(sender) if disk is None else disk, message)


def handled(node: SimNode, *happened: events.Event) -> list[actions.Action]:
    """The actions that the core asks for after these events; none is carried out."""
    core = node.core
    assert core is not None
    return [action for event in happened for action in core.handle(event, node.world.now, node.world.clock())]


def sent(told: Sequence[actions.Action]) -> list[CoreMessage]:
    return [action.message for action in told if isinstance(action, actions.Send)]


def started(*node_ids: str) -> World:
    world = World(*node_ids)
    world.start()
    return world


def alone(*node_ids: str) -> SimNode:
    """The first node, nominated and isolated."""
    world = started(*node_ids)
    world.isolate(node_ids[0])
    node = world[node_ids[0]]
    node.nominate()
    world.run_until(lambda: phase(node) is Phase.PRE_VOTE)
    return node


def phase(node: SimNode) -> Phase:
    assert node.core is not None
    return node.core.candidate.phase


def pre_vote(node: SimNode, sender: str, *, granted: bool = True, earlier: int = 0) -> events.Received:
    assert node.core is not None
    attempt = node.core.candidate.attempt - earlier
    return received(sender, PreVoteAnswer(attempt, granted, 0, Last(0, 1), node.world.clock()))


def requesting(*node_ids: str) -> SimNode:
    """The first node; its own promise is on disk, and it waits for the others'."""
    node = alone(*node_ids)
    for voter in node_ids[1:]:
        node.step(pre_vote(node, voter))
    node.world.run_until(lambda: phase(node) is Phase.REQUESTING)
    return node


def grant(node: SimNode, sender: str, *, promise: Promise | None = None, disk: bytes | None = None) -> None:
    answer = VoteAnswer(promise or node.state.promise, True, 0, node.world.clock())
    node.step(received(sender, answer, disk=disk))


# The voter


def test_a_promise_is_answered_only_once_it_is_on_disk() -> None:
    voter = started("n1", "n2", "n3")["n2"]

    asked = handled(voter, received("n3", VoteRequest(ASKED, HIGH)))
    stored = handled(voter, events.PromiseStored(ASKED))

    assert actions.StorePromise(ASKED) in asked
    assert sent(asked) == []
    (answer,) = sent(stored)
    assert isinstance(answer, VoteAnswer)
    assert (answer.asked, answer.granted) == (ASKED, True)


def test_the_same_triple_asked_again_is_promised_again_without_another_write() -> None:
    voter = started("n1", "n2", "n3")["n2"]
    handled(voter, received("n3", VoteRequest(ASKED, HIGH)), events.PromiseStored(ASKED))

    told = handled(voter, received("n3", VoteRequest(ASKED, HIGH)))

    assert [action for action in told if isinstance(action, actions.StorePromise)] == []
    (answer,) = sent(told)
    assert isinstance(answer, VoteAnswer)
    assert answer.granted


def test_a_refusal_names_the_epoch_that_is_held() -> None:
    voter = started("n1", "n2", "n3")["n2"]
    handled(voter, received("n3", VoteRequest(ASKED, HIGH)), events.PromiseStored(ASKED))

    (answer,) = sent(handled(voter, received("n1", VoteRequest(Promise(7, "n1", 5), HIGH))))

    assert isinstance(answer, VoteAnswer)
    assert (answer.asked, answer.granted, answer.held_epoch) == (Promise(7, "n1", 5), False, 7)


def test_a_promise_asked_for_by_another_than_the_candidate_is_not_considered() -> None:
    voter = started("n1", "n2", "n3")["n2"]
    assert handled(voter, received("n1", VoteRequest(ASKED, HIGH))) == []


@pytest.mark.parametrize(("sender", "disk"), [("n3", bytes(16)), ("n9", None)])
def test_a_candidate_that_this_log_names_no_voter_is_promised_to(sender: str, disk: bytes | None) -> None:
    """Section 4.1 of the Raft thesis: the candidate's log may hold the record that made it a voter."""
    voter = started("n1", "n2", "n3")["n2"]
    promise = Promise(7, sender, 1)
    told = handled(voter, received(sender, VoteRequest(promise, HIGH), disk=disk))
    assert actions.StorePromise(promise) in told


def test_only_the_disks_that_the_candidate_s_log_names_are_asked() -> None:
    node = started("n1", "n2", "n3")["n1"]
    handled(node, events.LinkUp("n3", bytes(16)))
    told = handled(node, events.Nominated(True), events.Tick())
    assert [action.node_id for action in told if isinstance(action, actions.Send)] == ["n2"]


def test_what_one_candidate_asks_again_and_again_of_a_busy_disk_does_not_pile_up() -> None:
    world = started("n1", "n2", "n3")
    world.elect("n1")
    world.run_for(0.3)
    voter = world["n2"]
    voter.hold_flush = True
    world["n1"].write("a")
    world.run_until(lambda: bool(voter.held))

    for epoch in range(100, 200):
        voter.step(received("n3", VoteRequest(Promise(epoch, "n3", 1), HIGH)))
    voter.release()
    world.run_for(0.2)

    assert 100 <= voter.state.promise.epoch < 105


def test_a_pre_vote_changes_nothing_on_the_voter() -> None:
    voter = started("n1", "n2", "n3")["n2"]
    held = voter.state.promise

    told = handled(voter, received("n3", PreVote(4, HIGH, None)))

    (answer,) = sent(told)
    assert isinstance(answer, PreVoteAnswer)
    assert (answer.attempt, answer.granted, answer.held_epoch, answer.last) == (4, True, 0, Last(0, 1))
    assert len(told) == 1
    assert voter.state.promise == held


def test_a_voter_whose_log_is_longer_would_not_promise() -> None:
    world = started("n1", "n2", "n3")
    world.elect("n1").write("a")
    world.run_until(lambda: world["n2"].apply_to == world["n1"].log.tail.index)
    world["n1"].crash()
    world.run_for(2)
    last = world["n2"].running.durable

    granted = [
        answer.granted
        for theirs in (last, Last(last.epoch, last.index - 1), Last(last.epoch - 1, last.index + 9))
        for answer in sent(handled(world["n2"], received("n3", PreVote(1, theirs, None))))
        if isinstance(answer, PreVoteAnswer)
    ]

    assert granted == [True, False, False]


def test_a_voter_that_hears_a_leader_would_promise_nobody_else() -> None:
    world = started("n1", "n2", "n3")
    world.elect("n1")
    world.run_for(0.3)
    epoch = world["n1"].state.promise.epoch

    world.cut(("n1", "n3"), ("n3", "n1"))
    world["n3"].nominate()
    world.run_for(5)

    assert world["n1"].leads
    assert world["n1"].state.promise.epoch == world["n3"].state.promise.epoch == epoch


def test_a_node_promises_nothing_below_the_last_epoch_of_its_log() -> None:
    # Rule 1: at start the promise is at least the last frame's epoch.
    world = started("n1", "n2", "n3")
    world.elect("n1")
    world.run_for(0.3)
    world["n2"].crash()
    fresh = faulty.Disk()
    PromiseFile.create(fresh.directory(), disk_id("n2"))
    world["n2"].storage.replace("promise", fresh.content("promise"))
    world.cut(("n1", "n2"), ("n2", "n1"))

    world["n2"].start()
    epoch = world["n2"].log.tail.epoch
    told = handled(world["n2"], received("n3", VoteRequest(Promise(epoch, "n3", 1), HIGH)))

    assert world["n2"].state.promise.epoch == epoch
    (answer,) = sent(told)
    assert isinstance(answer, VoteAnswer)
    assert not answer.granted


# The candidate


def test_a_candidate_leads_with_a_majority_of_promises_and_not_before() -> None:
    node = requesting("n1", "n2", "n3", "n4", "n5")

    grant(node, "n2")
    grant(node, "n2")
    assert not node.leads
    grant(node, "n3")
    assert node.leads


def test_half_of_an_even_number_of_promises_is_no_majority() -> None:
    node = requesting("n1", "n2", "n3", "n4")

    grant(node, "n2")

    assert not node.leads


@pytest.mark.parametrize(("sender", "disk"), [("n2", bytes(16)), ("n9", None)])
def test_a_promise_of_a_node_that_is_no_voter_does_not_count(sender: str, disk: bytes | None) -> None:
    node = requesting("n1", "n2", "n3")

    grant(node, sender, disk=disk)

    assert not node.leads


def test_a_promise_of_another_triple_does_not_count() -> None:
    node = requesting("n1", "n2", "n3")
    promise = node.state.promise

    for other in (
        Promise(promise.epoch - 1, promise.candidate, promise.incarnation),
        Promise(promise.epoch, promise.candidate, promise.incarnation + 1),
        Promise(promise.epoch, "n2", promise.incarnation),
    ):
        grant(node, "n2", promise=other)

    assert not node.leads


def test_a_refused_promise_does_not_count() -> None:
    node = requesting("n1", "n2", "n3")

    node.step(received("n2", VoteAnswer(node.state.promise, False, 0, node.world.clock())))

    assert not node.leads


def test_a_candidate_asks_the_others_only_once_its_own_promise_is_on_disk() -> None:
    # Rule 5: its durable last is taken after its own promise is durable.
    node = alone("n1", "n2", "n3")

    asked = handled(node, pre_vote(node, "n2"))
    promise = node.state.promise
    stored = handled(node, events.PromiseStored(promise))

    assert sent(asked) == []
    assert sent(stored) == [VoteRequest(promise, node.running.durable)] * 2


def test_a_promise_to_another_that_reaches_the_disk_first_is_not_taken_for_the_candidates_own() -> None:
    node = alone("n1", "n2", "n3")
    handled(node, received("n3", VoteRequest(ASKED, HIGH)))
    node.world.now += node.state.options.election_timeout_us  # It backs off for a while.
    handled(node, events.Tick())

    told = handled(node, pre_vote(node, "n2"), events.PromiseStored(ASKED))

    assert [message for message in sent(told) if isinstance(message, VoteRequest)] == []
    assert phase(node) is Phase.PROMISING
    assert node.state.promise.epoch == ASKED.epoch + 1


def test_a_pre_vote_that_was_refused_does_not_count() -> None:
    node = alone("n1", "n2", "n3")

    for voter in ("n2", "n3"):
        node.step(pre_vote(node, voter, granted=False))

    assert phase(node) is Phase.PRE_VOTE
    assert node.state.promise.epoch == 0


def test_an_answer_to_an_earlier_attempt_does_not_count() -> None:
    node = alone("n1", "n2", "n3")
    assert node.core is not None
    first = node.core.candidate.attempt
    node.world.run_until(lambda: node.core is not None and node.core.candidate.attempt > first)

    node.step(pre_vote(node, "n2", earlier=1))

    assert phase(node) is Phase.PRE_VOTE


def test_a_candidate_that_nobody_would_promise_raises_no_epoch() -> None:
    world = started("n1", "n2", "n3")
    world.isolate("n3")
    world.elect("n1").write("a")
    world.run_until(lambda: world["n1"].state.commit_index == world["n1"].log.tail.index)
    world["n1"].crash()
    world.heal()
    held = world["n2"].state.promise

    world["n3"].nominate()
    world.run_for(5)

    # Rule 4: it asks the better one to campaign.
    assert world.leader() is world["n2"]
    assert world["n2"].state.promise == Promise(held.epoch + 1, "n2", world["n2"].incarnation)


def test_an_epoch_is_above_every_epoch_that_a_pre_vote_answer_named() -> None:
    node = alone("n1", "n2", "n3")
    assert node.core is not None
    attempt = node.core.candidate.attempt

    node.step(received("n3", PreVoteAnswer(attempt, False, 41, Last(0, 1), 0)))
    node.step(pre_vote(node, "n2"))

    assert node.state.promise.epoch == 42


def test_an_epoch_that_was_promised_to_oneself_is_not_used_again_after_a_restart() -> None:
    node = requesting("n1", "n2", "n3")
    first = node.state.promise
    node.crash()
    node.start()
    node.world.run_until(lambda: phase(node) is Phase.PRE_VOTE)

    for voter in ("n2", "n3"):
        node.step(pre_vote(node, voter))

    assert node.state.promise.epoch > first.epoch


# Hearing a leader


def test_a_heartbeat_is_echoed_only_once_the_leaders_promise_is_on_disk() -> None:
    follower = started("n1", "n2", "n3")["n2"]
    leader = Promise(7, "n1", 5)

    first = handled(follower, received("n1", Heartbeat(leader, 1, 0)))
    second = handled(follower, received("n1", Heartbeat(leader, 2, 0)))
    stored = handled(follower, events.PromiseStored(leader))
    third = handled(follower, received("n1", Heartbeat(leader, 3, 0)))

    assert actions.StorePromise(leader) in first
    assert [sent(told) for told in (first, second, stored)] == [[], [], []]
    assert sent(third) == [HeartbeatEcho(7, 3, 7, clock=follower.world.clock())]


def test_a_heartbeat_of_an_older_epoch_is_answered_with_the_newer_one_and_not_followed() -> None:
    follower = started("n1", "n2", "n3")["n2"]
    handled(follower, received("n3", VoteRequest(ASKED, HIGH)), events.PromiseStored(ASKED))

    told = handled(follower, received("n1", Heartbeat(Promise(6, "n1", 5), 3, 0)))

    assert sent(told) == [HeartbeatEcho(6, 3, 7, clock=follower.world.clock())]
    assert follower.core is not None
    assert follower.core.following is None


def test_a_leader_heard_before_a_higher_promise_but_queued_after_it_is_not_followed() -> None:
    world = started("n1", "n2", "n3")
    world.elect("n1")
    world.run_for(0.3)
    follower = world["n2"]
    epoch = follower.state.promise.epoch
    follower.hold_flush = True
    world["n1"].write("a")
    world.run_until(lambda: bool(follower.held))

    follower.step(received("n3", VoteRequest(Promise(epoch + 5, "n3", 1), HIGH)))
    follower.step(received("n3", Heartbeat(Promise(epoch + 2, "n3", 1), 1, 0)))
    follower.release()
    world.run_for(0.01)

    assert follower.state.promise == Promise(epoch + 5, "n3", 1)


def test_a_heartbeat_for_another_than_its_sender_is_not_followed() -> None:
    follower = started("n1", "n2", "n3")["n2"]
    assert handled(follower, received("n3", Heartbeat(Promise(7, "n1", 5), 1, 0))) == []
