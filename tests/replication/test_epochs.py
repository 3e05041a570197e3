"""Rule 18: an epoch that is out of range or out of reach is refused, wherever a message names it, and never written."""

from collections.abc import Callable

import pytest

from quire.replication.core import Promise, actions, events
from quire.replication.core.belief import EPOCH_LIMIT, EPOCH_REACH, EPOCH_STEP, Refusal, highest_epoch, judge
from quire.replication.core.belief.reaching import EPOCH_RETURN, LED_TIMEOUTS
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
from tests.replication.test_elections import alone, handled, pre_vote, received
from tests.replication.test_second_leaders import led_by_n1
from tests.replication.world import World

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
    assert judge(0, message(EPOCH_LIMIT - 1), is_new=True) is None
    assert judge(0, message(EPOCH_LIMIT), is_new=True) is judge(OURS, message(HIGHEST)) is Refusal.OUT_OF_RANGE


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


def test_a_leader_leads_on_whatever_field_names_such_an_epoch() -> None:
    world = led_by_n1()
    leader = world["n1"]
    promise = leader.state.promise
    world.run_for(LED_TIMEOUTS)

    for field, message in FIELDS.items():
        for epoch in BEYOND:
            leader.step(received("n3", message(epoch)))
            assert (field, leader.leads, leader.state.promise) == (field, True, promise)
    world.run_for(1)

    assert (leader.leads, leader.state.promise) == (True, promise)
    assert leader.state.refused.total() == len(FIELDS) * len(BEYOND)
    assert [node.halted for node in world.nodes.values()] == [None, None, None]


@pytest.mark.parametrize(
    ("beyond", "disk", "led_s", "steps_down"),
    [
        (EPOCH_RETURN, None, LED_TIMEOUTS, True),
        (EPOCH_RETURN + 1, None, LED_TIMEOUTS, False),
        (EPOCH_RETURN, bytes(16), LED_TIMEOUTS, False),
        (EPOCH_RETURN, None, LED_TIMEOUTS / 2, False),
    ],
    ids=["near enough", "too far", "another disk", "a young leadership"],
)
def test_a_leader_comes_nearer_to_a_node_that_it_reaches_and_not_at_once(
    beyond: int, disk: bytes | None, led_s: float, steps_down: bool
) -> None:
    world = led_by_n1()
    leader = world["n1"]
    ours = leader.state.promise.epoch
    world.run_for(led_s)

    leader.step(received("n3", HeartbeatEcho(ours, 0, ours + beyond), disk=disk))

    assert leader.leads is not steps_down
    assert leader.state.promise.epoch == ours + (EPOCH_STEP if steps_down else 0)
    assert [f"n3 holds epoch {ours + beyond}, out of reach" in text for text in leader.alarms] == (
        [True] if beyond > EPOCH_RETURN else []
    )


@pytest.mark.parametrize("epoch", [EPOCH_LIMIT, HIGHEST])
@pytest.mark.parametrize("field", FIELDS)
def test_a_candidate_adopts_no_epoch_out_of_range(field: str, epoch: int) -> None:
    node = alone("n1", "n2", "n3")
    node.step(received("n2", FIELDS[field](epoch)))
    node.step(pre_vote(node, "n2"))
    assert node.state.promise.epoch == 1


def apart(world: World, **epochs: int) -> None:
    """Restart the nodes with these promises, as if each had been sent a different epoch."""
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


def test_a_node_whose_epoch_is_too_far_costs_the_others_no_leader() -> None:
    world = led_by_n1()
    apart(world, n1=1 << 50, n2=5, n3=5)
    world.run_until(lambda: world.leader() is not None)
    leader = world.leader()
    world.run_for(3 * LED_TIMEOUTS)
    assert world.leader() is leader
    assert world["n1"].halted is None
    assert leader is not None
    assert leader.alarms != []


def test_a_new_disk_that_is_no_voter_joins_at_any_epoch_in_range_and_a_voter_comes_nearer() -> None:
    world = World("n1", "n2", "n3", observers=["n4"])
    world.start()
    high = Heartbeat(Promise(EPOCH_LIMIT - 1, "n3", 1), 1, 0)
    assert handled(world["n4"], received("n3", Heartbeat(Promise(EPOCH_LIMIT, "n3", 1), 1, 0))) == []
    assert actions.StorePromise(high.promise) in handled(world["n4"], received("n3", high))
    assert actions.StorePromise(Promise(EPOCH_STEP, "", 0)) in handled(world["n2"], received("n3", high))


def test_an_echo_of_a_heartbeat_that_was_not_sent_yet_counts_for_nothing() -> None:
    # It would count for check quorum and for reads as long as the leadership lasts.
    world = led_by_n1()
    leader = world["n1"]
    epoch = leader.state.promise.epoch
    for sender in ("n2", "n3"):
        leader.step(received(sender, HeartbeatEcho(epoch, HIGHEST, epoch)))
    world.isolate("n1")
    leader.step(events.ReadRequested(1))
    world.run_until(lambda: not leader.leads)
    assert leader.reads == {1: None}
    assert leader.state.refused[Refusal.UNSENT_HEARTBEAT] == 2
