"""Rules 1, 2, 3 and 5: what a node promises to whom, and what a promise ends."""

from quire.replication.core import Promise, events
from quire.replication.core.messages import Heartbeat, Last, VoteRequest
from tests.replication.world import World, disk_id, values


def serving(*node_ids: str) -> World:
    world = World(*node_ids)
    world.start()
    world.elect(node_ids[0])
    return world


def ask(world: World, target: str, promise: Promise, last: Last) -> None:
    """A candidate asks one node for a promise."""
    request = VoteRequest(promise, last)
    world[target].step(events.Received(promise.candidate, disk_id(promise.candidate), request))


def test_a_promise_is_on_disk_before_it_counts_as_stored() -> None:
    world = World("n1", "n2", "n3")
    world.start()
    ask(world, "n2", Promise(7, "n3", 1), Last(9, 99))

    assert world["n2"].state.promise == Promise(7, "n3", 1)
    assert world["n2"].state.stored_promise.epoch == 0
    world.run_for(0.01)
    assert world["n2"].running.promises.promise == Promise(7, "n3", 1)


def test_a_promise_survives_a_restart() -> None:
    world = World("n1", "n2", "n3")
    world.start()
    ask(world, "n2", Promise(7, "n3", 1), Last(9, 99))
    world.run_for(0.01)

    world["n2"].crash()
    world["n2"].start()

    assert world["n2"].state.promise == Promise(7, "n3", 1)


def test_an_epoch_is_promised_to_one_candidate_only() -> None:
    world = World("n1", "n2", "n3")
    world.start()
    ask(world, "n2", Promise(7, "n3", 1), Last(9, 99))
    world.run_for(0.01)

    ask(world, "n2", Promise(7, "n1", 2), Last(9, 99))
    world.run_for(0.01)

    assert world["n2"].state.promise == Promise(7, "n3", 1)


def test_another_incarnation_of_the_candidate_is_another_candidate() -> None:
    world = World("n1", "n2", "n3")
    world.start()
    ask(world, "n2", Promise(7, "n3", 1), Last(9, 99))
    world.run_for(0.01)

    ask(world, "n2", Promise(7, "n3", 2), Last(9, 99))
    world.run_for(0.01)

    assert world["n2"].state.promise == Promise(7, "n3", 1)


def test_a_candidate_with_a_shorter_log_is_refused() -> None:
    # Raft 5.4.1: the voter denies its vote if its own log is more up-to-date than that of the candidate.
    world = serving("n1", "n2", "n3")
    world["n1"].write("a")
    world.run_until(lambda: world["n2"].log.durable_index == world["n1"].log.tail.index)
    durable = world["n2"].running.durable
    held = world["n2"].state.promise

    ask(world, "n2", Promise(held.epoch + 1, "n3", 1), Last(durable.epoch, durable.index - 1))
    ask(world, "n2", Promise(held.epoch + 1, "n3", 1), Last(durable.epoch - 1, durable.index + 100))

    world.run_for(0.01)
    assert world["n2"].state.promise == held


def test_following_raises_the_promise() -> None:
    world = serving("n1", "n2", "n3")

    leader = world["n1"].state.promise
    world.run_until(lambda: all(world[node].running.promises.promise == leader for node in ("n2", "n3")))


def test_the_elected_leader_replaces_another_candidate_of_its_epoch() -> None:
    world = World("n1", "n2", "n3")
    world.start()
    ask(world, "n2", Promise(7, "n3", 1), Last(9, 99))
    world.run_for(0.01)

    elected = Promise(7, "n1", 5)
    world["n2"].step(events.Received("n1", disk_id("n1"), Heartbeat(elected, 1, 0)))
    world.run_for(0.01)

    assert world["n2"].running.promises.promise == elected
    ask(world, "n2", Promise(7, "n3", 1), Last(9, 99))
    world.run_for(0.01)
    assert world["n2"].state.promise == elected


def test_a_follower_that_promises_another_while_it_flushes_acknowledges_nothing_more() -> None:
    # Rule 2: *a follower promises e2 while its e1 flush runs, then acks.*
    world = serving("n1", "n2", "n3")
    world.run_for(0.2)
    follower = world["n2"]
    follower.hold_flush = True
    world["n1"].write("a")
    world.run_until(lambda: bool(follower.held))
    last = follower.running.durable
    stream_id = follower.upstream.stream_id

    ask(world, "n2", Promise(50, "n3", 1), Last(last.epoch, last.index + 10))
    follower.release()
    # The promise waited for the flush: the ack of that flush may leave before it, and no other.
    of_the_old_stream = [ack for ack in follower.acked if ack[0] == stream_id]
    world.run_for(1)

    assert follower.state.promise.epoch >= 50
    assert [ack for ack in follower.acked if ack[0] == stream_id] == of_the_old_stream


def test_a_leader_that_promises_another_stops_leading_and_counts_nothing() -> None:
    world = serving("n1", "n2", "n3")
    world["n1"].hold_flush = True
    before = world["n1"].state.commit_index
    world["n1"].write("a")
    world.run_until(lambda: all(world[node].log.durable_index > before for node in ("n2", "n3")))
    ask(world, "n1", Promise(50, "n3", 1), Last(40, 99))

    world["n1"].nominated = False
    world["n1"].step(events.Nominated(False))
    world["n1"].release()
    world.run_for(0.001)

    assert not world["n1"].leads
    assert world["n1"].state.promise == Promise(50, "n3", 1)


def test_a_new_epoch_is_above_all_that_were_seen_and_never_resumed() -> None:
    world = serving("n1", "n2", "n3")
    first = world["n1"].state.promise.epoch
    ask(world, "n3", Promise(first + 5, "n2", 1), Last(first, 999))
    world.run_for(0.1)
    world["n1"].crash()
    world["n1"].start()

    world.run_until(lambda: world.leader() is not None)

    assert min(node.state.promise.epoch for node in world.nodes.values()) > first + 5


def test_a_leader_whose_log_lacks_an_acknowledged_record_is_not_elected() -> None:
    world = serving("n1", "n2", "n3")
    world.isolate("n3")
    world["n1"].write("acknowledged")
    end = world["n1"].log.tail.index
    world.run_until(lambda: world["n1"].state.commit_index == end)
    world["n1"].crash()
    world.heal()

    world["n3"].nominate()
    world.run_until(lambda: world.leader() is not None)

    assert world.leader() is world["n2"]
    assert values(world["n2"]) == ["acknowledged"]
