"""Rule 4, transfer: leadership moves, and no write is lost, doubled or left unknown."""

import pytest

from quire.replication.core import CoreOptions, events
from quire.replication.core.election import Phase
from quire.replication.core.messages import Campaign, HeartbeatEcho
from tests.replication.world import World, disk_id, values

TIMEOUT_S = CoreOptions().election_timeout_us / 1_000_000


def serving(*node_ids: str) -> World:
    """The first node leads, and is still nominated."""
    world = World(*node_ids)
    world.start()
    world.elect(node_ids[0])
    world.run_for(0.3)
    return world


def test_a_leader_transfers_leadership_to_the_voter_that_was_named() -> None:
    world = serving("n1", "n2", "n3")

    world["n1"].step(events.TransferRequested("n3"))
    world.run_until(lambda: world.leader() is world["n3"], within_s=0.1)

    assert world["n1"].roles[-1].leader_id in (None, "n3")
    assert "handed over to n3" in [role.reason for role in world["n1"].roles]
    assert world["n3"].roles[-1].reason == "n1 asked it to"


def test_a_leader_that_transferred_does_not_take_leadership_back_though_it_is_nominated() -> None:
    world = serving("n1", "n2", "n3")

    world["n1"].step(events.TransferRequested("n3"))
    world.run_until(lambda: world.leader() is world["n3"])
    world.run_for(10)

    assert world.leader() is world["n3"]


def test_a_leader_that_learns_of_its_target_s_promise_by_an_echo_does_not_campaign_against_it() -> None:
    world = serving("n1", "n2", "n3")
    leader = world["n1"]
    promise = leader.state.promise
    world.cut(("n1", "n3"))
    leader.step(events.TransferRequested("n3"))
    world.run_until(lambda: leader.leading.handover.campaigns == "n3")

    leader.step(events.Received("n3", disk_id("n3"), HeartbeatEcho(promise.epoch, 1, promise.epoch + 1)))
    world.run_for(0.4 * TIMEOUT_S)

    assert leader.core is not None
    assert leader.core.candidate.nominated
    assert leader.core.candidate.phase is Phase.IDLE
    assert (leader.state.promise, leader.leads) == (promise, False)
    assert leader.roles[-1].reason == "handed over to n3"
    world.heal()
    world.run_until(lambda: world.leader() is not None)


def test_without_a_target_leadership_goes_to_the_voter_that_has_most() -> None:
    world = serving("n1", "n2", "n3")
    world["n3"].hold_flush = True
    world["n1"].write("a")
    world.run_for(0.1)

    world["n1"].step(events.TransferRequested(None))

    world.run_until(lambda: world.leader() is world["n2"], within_s=0.1)


def test_a_target_that_lags_gets_everything_first_and_what_waits_is_refused_as_not_written() -> None:
    world = serving("n1", "n2", "n3")
    leader, target = world["n1"], world["n3"]
    target.hold_flush = True
    leader.write("before")
    world.run_for(0.1)

    leader.step(events.TransferRequested("n3"))
    waiting = leader.write("during")
    world.run_for(0.3)
    assert leader.leads
    assert leader.rejected == []
    target.release()
    world.run_until(lambda: world.leader() is target)

    assert leader.rejected == [(waiting, "not_leader")]
    assert values(target) == ["before"]


def test_a_target_that_never_catches_up_is_given_up_after_an_election_timeout_and_what_waits_is_written() -> None:
    world = serving("n1", "n2", "n3")
    leader = world["n1"]
    world.silence_streams("n3")
    leader.write("before")
    world.run_for(0.1)

    leader.step(events.TransferRequested("n3"))
    leader.write("during")
    world.run_for(1.1 * TIMEOUT_S)

    assert leader.leads
    assert leader.transfers_ended == ["n3 did not take over in time"]
    world.run_until(lambda: leader.state.commit_index == leader.log.tail.index)
    assert values(leader) == ["before", "during"]


def test_a_target_that_stays_silent_after_the_campaign_is_given_up_and_what_waits_is_written() -> None:
    world = serving("n1", "n2", "n3")
    leader, target = world["n1"], world["n3"]
    world.cut(("n3", "n2"), ("n3", "n1"))

    leader.step(events.TransferRequested("n3"))
    leader.write("during")
    world.run_for(3.2 * TIMEOUT_S)

    assert leader.leads
    assert len(leader.transfers_ended) == 1
    world.run_until(lambda: leader.state.commit_index == leader.log.tail.index)
    assert not target.leads


def test_a_leader_waits_longer_for_a_transfer_than_its_target_campaigns() -> None:
    # Otherwise it would accept writes whose outcome the late target's election makes unknown.
    world = serving("n1", "n2", "n3")
    leader, target = world["n1"], world["n3"]
    world.cut(("n3", "n2"), ("n3", "n1"))
    leader.step(events.TransferRequested("n3"))

    world.run_until(lambda: bool(leader.transfers_ended), within_s=4 * TIMEOUT_S)

    assert target.core is not None
    assert target.core.candidate.transferred_by is None


@pytest.mark.parametrize("target", ["n1", "n9", None])
def test_a_leader_without_another_connected_voter_refuses_a_transfer(target: str | None) -> None:
    world = World("n1")
    world.start()
    leader = world.elect("n1")

    leader.step(events.TransferRequested(target))

    assert leader.leads
    assert len(leader.transfers_ended) == 1
    assert "not connected" in leader.transfers_ended[0]
    leader.write("a")
    world.run_until(lambda: leader.state.commit_index == leader.log.tail.index)


def test_a_second_transfer_while_one_is_under_way_is_refused() -> None:
    world = serving("n1", "n2", "n3")
    world["n3"].hold_flush = True
    world["n1"].write("a")
    world.run_for(0.1)

    world["n1"].step(events.TransferRequested("n3"))
    world["n1"].step(events.TransferRequested("n2"))

    assert world["n1"].transfers_ended == ["another is under way"]


def test_a_node_that_does_not_lead_refuses_a_transfer() -> None:
    world = serving("n1", "n2", "n3")
    world["n2"].step(events.TransferRequested("n3"))
    assert world["n2"].transfers_ended == ["this node does not lead"]


def test_a_leader_that_does_not_serve_yet_refuses_a_transfer() -> None:
    world = World("n1", "n2", "n3")
    world.start()
    for follower in ("n2", "n3"):
        world[follower].hold_flush = True
    world["n1"].nominate()
    world.run_until(lambda: world["n1"].leads)

    world["n1"].step(events.TransferRequested("n2"))

    assert world["n1"].transfers_ended == ["this leader does not serve yet"]


def test_a_campaign_that_arrives_when_its_leader_is_lost_already_does_no_harm() -> None:
    world = serving("n1", "n2", "n3")
    led = world["n1"].state.promise
    world["n1"].crash()
    world.run_for(2 * TIMEOUT_S)

    world["n2"].step(events.Received("n1", disk_id("n1"), Campaign(led)))

    world.run_until(lambda: world.leader() is not None, within_s=5 * TIMEOUT_S)
