"""Rule 18: an epoch that is out of range or out of reach is refused, wherever a message names it, and never written."""

from collections.abc import Callable

import pytest

from quire.replication.core import Promise, actions, events
from quire.replication.core.belief import EPOCH_LIMIT, EPOCH_REACH, EPOCH_STEP, Refusal, highest_epoch, judge
from quire.replication.core.messages import (
    Campaign,
    CoreMessage,
    Heartbeat,
    HeartbeatEcho,
    Last,
    Open,
    PreVote,
    PreVoteAnswer,
    Snapshot,
    VoteAnswer,
    VoteRequest,
)
from tests.replication.test_elections import alone, handled, phase, pre_vote, received, sent
from tests.replication.test_second_leaders import led_by_n1
from tests.replication.world import SimNode, World

OURS = 5
HIGHEST = 2**64 - 1
FINE = Last(1, 1)
FIELDS: dict[str, Callable[[int], CoreMessage]] = {
    "PreVote.last": lambda epoch: PreVote(1, Last(epoch, 1), None),
    "PreVote.transferred_by": lambda epoch: PreVote(1, FINE, Promise(epoch, "n1", 1)),
    "PreVoteAnswer.held_epoch": lambda epoch: PreVoteAnswer(1, True, epoch, FINE, 0),
    "PreVoteAnswer.last": lambda epoch: PreVoteAnswer(1, True, 1, Last(epoch, 1), 0),
    "Campaign.transferred_by": lambda epoch: Campaign(Promise(epoch, "n3", 1)),
    "VoteRequest.promise": lambda epoch: VoteRequest(Promise(epoch, "n3", 1), Last(9, 99)),
    "VoteRequest.last": lambda epoch: VoteRequest(Promise(9, "n3", 1), Last(epoch, 99)),
    "VoteAnswer.asked": lambda epoch: VoteAnswer(Promise(epoch, "n1", 1), True, 1, 0),
    "VoteAnswer.held_epoch": lambda epoch: VoteAnswer(Promise(1, "n1", 1), False, epoch, 0),
    "Heartbeat.promise": lambda epoch: Heartbeat(Promise(epoch, "n3", 1), 1, 0),
    "HeartbeatEcho.epoch": lambda epoch: HeartbeatEcho(epoch, 1, 1),
    "HeartbeatEcho.held_epoch": lambda epoch: HeartbeatEcho(2, 1, epoch),
}
STREAMS: dict[str, Callable[[int], Open | Snapshot]] = {
    "Open.promise": lambda epoch: Open(Promise(epoch, "n1", 1), ((0, 0),), 1, 1),
    "Open.epochs": lambda epoch: Open(Promise(1, "n1", 1), ((0, 0), (epoch, 1)), 2, 2),
    "Snapshot.epoch": lambda epoch: Snapshot(9, epoch, 0, 0, 0, ((0, 0),)),
    "Snapshot.epochs": lambda epoch: Snapshot(9, 1, 0, 0, 0, ((0, 0), (epoch, 1))),
}
NUMBERS: dict[str, Callable[[int], CoreMessage | Open | Snapshot]] = {
    "PreVote.last": lambda number: PreVote(1, Last(1, number), None),
    "PreVoteAnswer.last": lambda number: PreVoteAnswer(1, True, 1, Last(1, number), 0),
    "PreVoteAnswer.clock": lambda number: PreVoteAnswer(1, True, 1, FINE, number),
    "VoteRequest.last": lambda number: VoteRequest(Promise(9, "n3", 1), Last(1, number)),
    "VoteAnswer.clock": lambda number: VoteAnswer(Promise(1, "n1", 1), True, 1, number),
    "Heartbeat.clock": lambda number: Heartbeat(Promise(1, "n3", 1), 1, number),
    "HeartbeatEcho.clock": lambda number: HeartbeatEcho(1, 1, 1, 0, number),
    "Open.highest_index": lambda number: Open(Promise(1, "n1", 1), ((0, 0),), number, 1),
    "Open.durable_index": lambda number: Open(Promise(1, "n1", 1), ((0, 0),), 1, number),
    "Open.fetching": lambda number: Open(Promise(1, "n1", 1), ((0, 0),), 1, 1, number),
    "Open.epochs": lambda number: Open(Promise(1, "n1", 1), ((0, 0), (1, number)), 1, 1),
    "Snapshot.index": lambda number: Snapshot(number, 1, 0, 0, 0, ((0, 0),)),
    "Snapshot.timestamp": lambda number: Snapshot(9, 1, number, 0, 0, ((0, 0),)),
    "Snapshot.members_index": lambda number: Snapshot(9, 1, 0, 0, number, ((0, 0),)),
    "Snapshot.epochs": lambda number: Snapshot(9, 1, 0, 0, 0, ((0, 0), (1, number))),
}
BEYOND = [EPOCH_LIMIT - 1, EPOCH_LIMIT, HIGHEST]


@pytest.mark.parametrize("field", [*FIELDS, *STREAMS])
def test_every_field_that_names_an_epoch_is_judged_at_both_bounds_and_one_past_them(field: str) -> None:
    message = (FIELDS | STREAMS)[field]
    assert highest_epoch(message(1 << 40)) == 1 << 40
    assert judge(OURS, message(OURS + EPOCH_REACH)) is None
    assert judge(OURS, message(OURS + EPOCH_REACH + 1)) is Refusal.OUT_OF_REACH
    assert judge(0, message(EPOCH_LIMIT - 1)) is None
    assert judge(0, message(EPOCH_LIMIT)) is judge(OURS, message(HIGHEST)) is Refusal.OUT_OF_RANGE


@pytest.mark.parametrize("field", NUMBERS)
def test_an_index_or_a_clock_that_leaves_no_room_for_more_is_out_of_range(field: str) -> None:
    assert judge(OURS, NUMBERS[field](2**63 - 1)) is None
    assert judge(OURS, NUMBERS[field](2**63)) is Refusal.OUT_OF_RANGE


def test_nobody_leads_epoch_0() -> None:
    assert judge(0, FIELDS["Heartbeat.promise"](0)) is Refusal.OUT_OF_RANGE
    assert judge(0, FIELDS["VoteRequest.promise"](0)) is Refusal.OUT_OF_RANGE


@pytest.mark.parametrize("epoch", BEYOND)
@pytest.mark.parametrize("field", FIELDS)
def test_a_follower_that_hears_its_leader_drops_the_message_and_only_counts_it(field: str, epoch: int) -> None:
    world = led_by_n1()
    follower = world["n2"]
    promise = follower.state.promise

    assert handled(follower, received("n3", FIELDS[field](epoch))) == []

    core = follower.core
    assert core is not None
    assert (follower.state.promise, core.candidate.highest_epoch) == (promise, 0)
    assert follower.state.refused.total() == 1


@pytest.mark.parametrize("epoch", BEYOND)
@pytest.mark.parametrize("field", FIELDS)
def test_a_leader_leads_on_unless_an_echo_names_an_epoch_that_it_must_come_nearer_to(field: str, epoch: int) -> None:
    world = led_by_n1()
    leader = world["n1"]
    promise, comes_nearer = leader.state.promise, epoch < EPOCH_LIMIT and field.startswith("HeartbeatEcho")

    leader.step(received("n3", FIELDS[field](epoch)))

    assert leader.leads is not comes_nearer
    assert leader.state.promise == (Promise(promise.epoch + EPOCH_STEP, "", 0) if comes_nearer else promise)
    world.run_for(3)
    assert world.leader() is not None
    assert [node.halted for node in world.nodes.values()] == [None, None, None]


@pytest.mark.parametrize("epoch", [EPOCH_LIMIT, HIGHEST])
@pytest.mark.parametrize("field", FIELDS)
def test_a_candidate_adopts_no_epoch_out_of_range(field: str, epoch: int) -> None:
    node = alone("n1", "n2", "n3")
    node.step(received("n2", FIELDS[field](epoch)))
    node.step(pre_vote(node, "n2"))
    assert node.state.promise.epoch == 1


def apart(world: World, **epochs: int) -> None:
    """Restart the nodes with these promises, as if somebody had told each another epoch."""
    for node_id, epoch in epochs.items():
        node = world[node_id]
        node.crash()
        node.start()
        node.running.store_promise(Promise(epoch, "n9", 1))
        node.crash()
        node.start()


@pytest.mark.parametrize("epochs", [(0, 0, 3), (0, 3, 7), (3, 0, 0), (7, 7, 0), (1, 0, 2), (3, 3, 0)])
def test_nodes_that_were_parted_by_more_than_the_reach_come_together_again(epochs: tuple[int, int, int]) -> None:
    world = led_by_n1()
    apart(world, **{f"n{place + 1}": 5 + times * EPOCH_REACH for place, times in enumerate(epochs)})

    def agree() -> bool:
        return len({node.state.stored_promise for node in world.nodes.values()}) == 1 and world.leader() is not None

    world.run_until(agree)
    assert [node.halted for node in world.nodes.values()] == [None, None, None]


def test_a_node_that_was_away_while_epochs_rose_catches_up_though_the_others_need_it() -> None:
    world = led_by_n1()
    world["n3"].crash()
    apart(world, n1=5 * EPOCH_REACH, n2=5 * EPOCH_REACH)
    world.run_until(lambda: world.leader() is not None)
    world["n1"].crash()

    world["n3"].start()
    world.run_until(lambda: world.leader() is not None)
    assert world["n3"].log.durable_index == world["n2"].log.durable_index


def test_a_node_that_promised_the_last_epoch_campaigns_no_more_and_says_so() -> None:
    world = led_by_n1()
    apart(world, n1=EPOCH_LIMIT - 1)
    node = world["n1"]
    world.isolate("n1")
    node.nominate()
    world.run_until(lambda: node.core is not None and node.core.candidate.attempt > 0)
    for voter in ("n2", "n3"):
        node.step(pre_vote(node, voter))

    world.run_for(5)

    assert (node.halted, node.state.promise.epoch, node.leads) == (None, EPOCH_LIMIT - 1, False)
    assert node.alarms == [
        f"the epochs are used up: this node has promised {EPOCH_LIMIT - 1}, and no higher one exists"
    ]


def test_an_opening_that_names_an_epoch_above_its_leaders_is_refused() -> None:
    world = led_by_n1()
    leader = world["n1"]
    promise = leader.state.promise
    for epoch in (promise.epoch + 1, EPOCH_LIMIT, HIGHEST):
        opening = Open(promise, ((0, 0), (epoch, 1)), 2, 2)
        told = handled(leader, events.StreamOpened(9_000, "n3", world["n3"].disk_id, opening))
        (answer,) = [action.answer for action in told if isinstance(action, actions.AnswerOpen)]
        assert "above that of its leader" in answer.reason
    assert leader.leads


def nothing_was_promised(node: SimNode) -> bool:
    return node.state.promise.epoch == node.state.stored_promise.epoch == 0


def test_a_node_that_has_promised_nothing_takes_any_epoch_in_range() -> None:
    world = World("n1", "n2", "n3")
    world.start()
    voter = world["n2"]
    assert nothing_was_promised(voter)
    assert handled(voter, received("n3", FIELDS["VoteRequest.promise"](EPOCH_LIMIT))) == []
    asked = Promise(EPOCH_LIMIT - 1, "n3", 1)
    assert actions.StorePromise(asked) in handled(voter, received("n3", VoteRequest(asked, Last(9, 99))))
    assert sent(handled(voter)) == []
    assert phase(voter).name == "IDLE"
