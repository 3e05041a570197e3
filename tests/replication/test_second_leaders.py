"""Rule 19: a heartbeat of an epoch whose leader is known, from another, moves nobody and halts nobody."""

import pytest

from quire.log.simulated import faulty
from quire.replication import PromiseFile
from quire.replication.core import Promise, actions
from quire.replication.core.belief import Refusal
from quire.replication.core.messages import Heartbeat, HeartbeatEcho, Last, VoteRequest
from tests.replication.test_elections import handled, received, sent
from tests.replication.world import SimNode, World, values

HIGH = Last(9, 99)


def led_by_n1() -> World:
    world = World("n1", "n2", "n3")
    world.start()
    world.elect("n1").write("a")
    world.run_until(lambda: world["n3"].apply_to == world["n1"].log.tail.index)
    return world


def claim(node: SimNode, sender: str, epoch: int) -> list[actions.Action]:
    """What a node does with a heartbeat of `epoch` from a sender that was not elected in it."""
    return handled(node, received(sender, Heartbeat(Promise(epoch, sender, 77), 1, 0)))


def refused(node: SimNode) -> int:
    return node.state.refused[Refusal.SECOND_LEADER]


def test_a_second_leader_of_the_epoch_is_refused_counted_and_an_alarm_and_nobody_halts() -> None:
    world = led_by_n1()
    epoch = world["n1"].state.promise.epoch
    before = {node.node_id: node.state.promise for node in world.nodes.values()}

    for node in ("n2", "n1"):
        for _ in range(3):
            world[node].step(received("n3", Heartbeat(Promise(epoch, "n3", 77), 1, 0)))
    world.run_for(1)
    world["n1"].write("b")
    world.run_until(lambda: world["n2"].apply_to == world["n1"].log.tail.index)

    assert world.leader() is world["n1"]
    assert {node.node_id: node.state.promise for node in world.nodes.values()} == before
    for node in ("n1", "n2"):
        assert (world[node].halted, refused(world[node]), len(world[node].alarms)) == (None, 3, 1)
        assert f"n3 claims to lead epoch {epoch}" in world[node].alarms[0]
        core = world[node].core
        assert core is not None
        assert list(core.status().alarms.values()) == world[node].alarms
        assert core.status().refused["second_leader"] == 3


def test_a_second_leader_gets_neither_an_echo_nor_a_stream() -> None:
    world = led_by_n1()
    told = claim(world["n2"], "n3", world["n1"].state.promise.epoch)
    assert [action for action in told if not isinstance(action, actions.Alarm)] == []


def test_records_of_an_epoch_are_the_leaders_that_this_node_promised_after_a_restart_too() -> None:
    world = led_by_n1()
    promise = world["n2"].state.promise
    world.isolate("n2")
    world["n2"].crash(faulty.Keep.EVERYTHING)
    world["n2"].start()
    world.run_for(0.01)

    assert claim(world["n2"], "n3", promise.epoch) != []
    assert (world["n2"].state.promise, refused(world["n2"])) == (promise, 1)
    assert sent(handled(world["n2"], received("n1", Heartbeat(promise, 9, 0)))) == []
    assert world["n2"].following.leader == promise


def test_another_incarnation_of_the_leader_is_another_leader() -> None:
    world = led_by_n1()
    claim(world["n2"], "n1", world["n1"].state.promise.epoch)
    assert refused(world["n2"]) == 1


def test_the_leader_that_was_promised_is_heard_after_another_who_left_no_record_fell_silent() -> None:
    world = World("n1", "n2", "n3")
    world.start()
    world.isolate("n2")
    voter, elected, liar = world["n2"], Promise(7, "n1", 5), Promise(7, "n3", 77)
    voter.step(received("n3", Heartbeat(liar, 1, 0)))
    world.run_until(lambda: voter.state.stored_promise == liar)

    voter.step(received("n1", Heartbeat(elected, 1, 0)))
    assert (voter.following.leader, refused(voter)) == (liar, 1)
    world.now += voter.state.options.election_timeout_us
    voter.step(received("n1", Heartbeat(elected, 2, 0)))
    world.run_until(lambda: voter.state.stored_promise == elected)

    told = handled(voter, received("n1", Heartbeat(elected, 3, 0)))
    assert sent(told) == [HeartbeatEcho(7, 3, 7, clock=world.clock())]


@pytest.mark.parametrize("order", [("n1", "n3"), ("n3", "n1")])
def test_of_two_that_wait_for_the_disk_the_first_is_followed(order: tuple[str, str]) -> None:
    world = World("n1", "n2", "n3")
    world.start()
    world.isolate("n2")
    voter = world["n2"]
    voter.step(received("n3", VoteRequest(Promise(6, "n3", 1), HIGH)))  # The disk is busy with it.
    for sender in order:
        voter.step(received(sender, Heartbeat(Promise(7, sender, 5), 1, 0)))
    world.run_for(0.1)
    assert (voter.state.stored_promise.candidate, refused(voter), voter.halted) == (order[0], 1, None)


def test_heartbeats_of_ever_other_epochs_do_not_pile_up_before_a_busy_disk() -> None:
    world = led_by_n1()
    voter = world["n2"]
    voter.hold_flush = True
    world["n1"].write("b")
    world.run_until(lambda: bool(voter.held))
    for epoch in range(100, 300):
        voter.step(received("n3", Heartbeat(Promise(epoch, "n3", 1), 1, 0)))
    voter.release()
    world.run_for(0.2)
    assert 100 <= voter.state.promise.epoch < 105


def followed(node: SimNode) -> Promise | None:
    assert node.core is not None
    return node.core.status().following


def forgets_its_promise(node: SimNode) -> None:
    """Restart a node that is down with a promise file that was never written to."""
    fresh = faulty.Disk()
    PromiseFile.create(fresh.directory(), node.disk_id)
    node.storage.replace("promise", fresh.content("promise"))
    node.start()


def test_two_leaders_of_one_epoch_never_both_commit_and_what_was_committed_stays() -> None:
    world = World("n1", "n2", "n3")
    world.start()
    world.isolate("n3")
    first, voter, second = world["n1"], world["n2"], world["n3"]
    first.nominate()
    world.run_until(lambda: voter.running.promises.promise.candidate == "n1")
    voter.crash()
    world.run_until(lambda: first.leads)
    world.heal()
    world.isolate("n1")
    forgets_its_promise(voter)
    second.nominate()
    world.run_until(lambda: second.leads and followed(voter) == second.state.promise)
    assert first.leads
    assert first.state.promise.epoch == second.state.promise.epoch

    world.heal()
    first.write("never")
    world.run_until(lambda: world.leader() is second)
    second.write("always")
    world.run_until(lambda: "always" in values(voter) and not first.leads)
    world.run_until(lambda: voter.apply_to == second.log.tail.index)

    assert first.state.commit_index <= 1
    assert [refused(node) > 0 for node in (voter, second)] == [True, True]
    assert [len(node.alarms) for node in (voter, second)] == [1, 1]
    assert [node.halted for node in world.nodes.values()] == [None, None, None]
    assert values(voter) == values(second) == ["always"]
