"""Rules 11 and 12, and the limits of a leader: being heard, answering reads, refusing what is too much."""

from quire.log import encode_records
from quire.replication import Write
from quire.replication.core import CoreOptions, actions, events
from quire.replication.core.messages import Heartbeat, HeartbeatEcho
from tests.replication.world import World, disk_id


def serving(*node_ids: str, options: CoreOptions | None = None) -> World:
    world = World(*node_ids, options=options)
    world.start()
    world.elect(node_ids[0])
    world.run_for(0.3)
    return world


def test_a_leader_that_no_majority_hears_steps_down() -> None:
    # Rule 11; Raft thesis, 6.2: a leader steps down if an election timeout passes without a majority's answers.
    world = serving("n1", "n2", "n3")
    world["n1"].step(events.Nominated(False))

    world.isolate("n1")
    world.run_for(1.2)

    assert not world["n1"].leads
    assert "no majority" in world["n1"].roles[-1].reason


def test_writes_that_the_log_did_not_take_do_not_count_as_uncommitted() -> None:
    # No commit would ever subtract them: at the limit the leader would append nothing more, and still lead.
    world = serving("n1", "n2", "n3", options=CoreOptions(uncommitted_bytes=1_000))
    leader = world["n1"]
    for number in range(100):
        leader.step(events.Proposed((Write(encode_records([number]), 1, expected_index=1_000_000, owner=None),)))
        world.run_for(0.01)
    assert leader.leading.status().queues.uncommitted_bytes == 0

    leader.write("taken")

    world.run_until(lambda: leader.state.commit_index == leader.log.tail.index > leader.start_index + 1)


def test_a_leader_that_hears_one_follower_of_two_continues() -> None:
    world = serving("n1", "n2", "n3")

    world.isolate("n3")
    world.run_for(3)

    assert world["n1"].leads


def test_a_leader_that_was_frozen_steps_down_before_it_handles_what_waited() -> None:
    # Rule 11: a process that was frozen believes that it leads, and finds writes, reads and old echoes in its sockets.
    world = serving("n1", "n2", "n3")
    world["n1"].step(events.Nominated(False))
    leader = world["n1"]
    epoch = leader.state.promise.epoch
    assert leader.core is not None

    world.now += 5 * world.options.election_timeout_us
    write = leader.write("waited in a socket")
    leader.step(events.ReadRequested(7))

    assert not leader.leads
    assert leader.rejected == [(write, "not_leader")]
    assert leader.reads == {7: None}
    leader.step(events.Received("n2", disk_id("n2"), HeartbeatEcho(epoch, 1, epoch)))
    assert not leader.leads


def test_an_echo_counts_from_when_its_heartbeat_was_sent() -> None:
    world = serving("n1", "n2", "n3")
    leader = world["n1"]
    leader.step(events.Nominated(False))
    world.isolate("n1")
    epoch, sequence = leader.state.promise.epoch, 0
    assert leader.core is not None
    for action in leader.core.handle(events.ReadRequested(1), world.now, world.clock()):
        if isinstance(action, actions.Send) and isinstance(action.message, Heartbeat):
            sequence = action.message.sequence

    for _ in range(12):
        world.run_for(0.1)
        leader.step(events.Received("n2", disk_id("n2"), HeartbeatEcho(epoch, sequence, epoch)))

    assert not leader.leads


def test_a_higher_epoch_in_an_echo_ends_a_leadership() -> None:
    world = serving("n1", "n2", "n3")
    world["n1"].step(events.Nominated(False))
    epoch = world["n1"].state.promise.epoch

    world["n1"].step(events.Received("n2", disk_id("n2"), HeartbeatEcho(epoch, 1, epoch + 1)))

    assert not world["n1"].leads


def test_writes_that_wait_when_a_leadership_ends_are_refused_as_not_written() -> None:
    world = serving("n1", "n2", "n3")
    leader = world["n1"]
    leader.hold_flush = True
    leader.write("appended")
    world.run_for(0)
    waiting = leader.write("still waiting")
    leader.step(events.Nominated(False))

    world.isolate("n1")
    world.run_for(1.2)

    assert leader.rejected == [(waiting, "not_leader")]


def test_a_linearizable_read_waits_for_an_echo_of_a_later_heartbeat() -> None:
    world = serving("n1", "n2", "n3")
    leader = world["n1"]

    leader.step(events.ReadRequested(7))
    asked = dict(leader.reads)
    world.run_until(lambda: 7 in leader.reads)

    assert asked == {}
    assert leader.reads[7] == leader.state.commit_index


def test_a_deposed_leader_answers_no_linearizable_read() -> None:
    world = serving("n1", "n2", "n3")
    leader = world["n1"]
    leader.step(events.Nominated(False))
    world.isolate("n1")

    leader.step(events.ReadRequested(7))
    world.run_for(0.5)
    assert leader.reads == {}

    world.run_for(1)
    assert leader.reads == {7: None}


def test_an_echo_of_an_earlier_heartbeat_answers_no_read() -> None:
    world = serving("n1", "n2", "n3")
    leader = world["n1"]
    epoch = leader.state.promise.epoch
    world.isolate("n1")
    leader.step(events.ReadRequested(7))

    for node in ("n2", "n3"):
        leader.step(events.Received(node, disk_id(node), HeartbeatEcho(epoch, 1, epoch)))

    assert leader.reads == {}


def test_reads_that_arrive_while_a_barrier_is_under_way_share_the_next_one() -> None:
    world = serving("n1", "n2", "n3")
    leader = world["n1"]

    for read_id in range(50):
        leader.step(events.ReadRequested(read_id))
    world.run_until(lambda: len(leader.reads) == 50)

    assert all(index is not None for index in leader.reads.values())


def test_reads_that_arrive_while_a_barrier_is_under_way_wait_for_no_heartbeat_that_is_due() -> None:
    # The echo that ends the first barrier sends the next heartbeat: at rest one is sent once in ten seconds here.
    world = serving("n1", "n2", "n3", options=CoreOptions(heartbeat_us=10_000_000, election_timeout_us=40_000_000))
    leader = world["n1"]

    leader.step(events.ReadRequested(1))
    leader.step(events.ReadRequested(2))
    world.run_for(1)

    assert sorted(leader.reads) == [1, 2]


def test_what_a_full_disk_refused_does_not_count_as_waiting() -> None:
    # At the limit the leader would refuse every write as overload for ever.
    world = serving("n1", "n2", "n3", options=CoreOptions(frame_requests=1))
    leader = world["n1"]
    leader.hold_flush = True
    leader.write("in the file")
    world.run_for(0)
    leader.disk_full = True
    waiting = [leader.write(number) for number in range(3)]
    assert leader.leading.status().queues.waiting_bytes > 0

    leader.release()
    world.run_until(lambda: len(leader.rejected) == len(waiting))

    assert leader.leading.status().queues.waiting_bytes == 0


def test_as_many_linearizable_reads_as_the_limit_wait_and_one_more_is_refused() -> None:
    world = serving("n1", "n2", "n3", options=CoreOptions(reads_waiting=2))
    leader = world["n1"]

    for read_id in range(3):
        leader.step(events.ReadRequested(read_id))
    refused = dict(leader.reads)
    world.run_until(lambda: len(leader.reads) == 3)

    assert refused == {2: None}
    assert None not in (leader.reads[0], leader.reads[1])


def test_a_node_that_does_not_lead_refuses_reads_and_writes() -> None:
    world = serving("n1", "n2", "n3")

    world["n2"].step(events.ReadRequested(7))
    write = world["n2"].write("a")

    assert world["n2"].reads == {7: None}
    assert world["n2"].rejected == [(write, "not_leader")]


def test_a_leader_serves_nothing_before_its_first_record_is_committed() -> None:
    # Rule 6.
    world = World("n1", "n2", "n3")
    world.start()
    for follower in ("n2", "n3"):
        world[follower].hold_flush = True
    world["n1"].nominate()
    world.run_until(lambda: world["n1"].leads)

    write = world["n1"].write("too early")
    world["n1"].step(events.ReadRequested(7))

    assert world["n1"].rejected == [(write, "not_leader")]
    assert world["n1"].reads == {7: None}


def test_one_write_too_many_is_refused_as_overload() -> None:
    world = serving("n1", options=CoreOptions(waiting_requests=3))
    leader = world["n1"]
    leader.hold_flush = True
    leader.write("in the flush")
    world.run_for(0)

    writes = [leader.write(number) for number in range(4)]

    assert leader.rejected == [(writes[3], "overloaded")]


def test_bytes_too_many_are_refused_as_overload() -> None:
    write = Write(encode_records(["x" * 100]), 1, owner=None)
    world = serving("n1", options=CoreOptions(waiting_bytes=3 * write.size))
    leader = world["n1"]
    leader.hold_flush = True
    leader.write("in the flush")
    world.run_for(0)

    writes = [leader.write("x" * 100) for _ in range(4)]

    assert leader.rejected == [(writes[3], "overloaded")]


def test_after_a_write_refused_for_its_bytes_a_small_one_is_refused_in_the_same_turn_and_taken_in_the_next() -> None:
    large, small = (Write(encode_records(["x" * size]), 1, owner=None) for size in (300, 10))
    world = serving("n1", options=CoreOptions(waiting_bytes=large.size + small.size - 1))
    leader = world["n1"]
    leader.hold_flush = True
    leader.write("in the flush")
    world.run_for(0)
    first = leader.write("x" * 10)

    leader.step(events.Proposed((large, small)))
    assert leader.rejected == [(large, "overloaded"), (small, "overloaded")]
    leader.step(events.Proposed((small,)))
    leader.release()
    world.run_until(lambda: leader.state.commit_index == leader.log.tail.index)

    assert leader.rejected == [(large, "overloaded"), (small, "overloaded")]
    assert leader.log.reader.frame(leader.log.tail.index - 1).header.count == first.count + small.count
    assert leader.leading.status().queues.waiting_bytes == 0


def test_a_write_larger_than_the_bytes_that_may_wait_is_taken_where_none_waits_and_refused_behind_one() -> None:
    write = Write(encode_records(["x" * 100]), 1, owner=None)
    world = serving("n1", options=CoreOptions(waiting_bytes=write.size - 1))
    leader = world["n1"]
    leader.hold_flush = True
    leader.write("in the flush")
    world.run_for(0)

    writes = [leader.write("x" * 100) for _ in range(2)]
    world.run_for(0)
    assert leader.rejected == [(writes[1], "overloaded")]
    leader.release()
    world.run_until(lambda: leader.state.commit_index == leader.log.tail.index)

    assert leader.rejected == [(writes[1], "overloaded")]
    assert leader.leading.status().queues.waiting_bytes == 0


def test_behind_a_write_that_waited_for_the_limit_none_is_queued_and_none_is_lost() -> None:
    world = serving("n1", options=CoreOptions(waiting_us=200_000))
    leader = world["n1"]
    leader.hold_flush = True
    leader.write("in the flush")
    world.run_for(0)
    leader.write("first")
    world.run_for(0.2)
    leader.write("at the limit")
    world.run_for(0.001)
    late = leader.write("later")
    assert leader.rejected == [(late, "overloaded")]

    leader.release()
    world.run_until(lambda: leader.state.commit_index == leader.log.tail.index)

    assert leader.log.reader.frame(leader.log.tail.index - 1).header.count == 2
    leader.write("again")
    assert leader.rejected == [(late, "overloaded")]


def test_all_that_waits_for_a_flush_becomes_one_frame() -> None:
    world = serving("n1")
    leader = world["n1"]
    leader.hold_flush = True
    leader.write("first")
    world.run_for(0)
    for number in range(10):
        leader.write(number)

    leader.release()
    world.run_until(lambda: leader.state.commit_index == leader.log.tail.index)

    last = leader.log.reader.frame(leader.log.tail.index - 1).header
    assert last.count == 10


def test_a_leader_whose_disk_hangs_steps_down_and_does_not_campaign_until_it_answers() -> None:
    # Rule 11: a failed or hung flush has the same effect.
    world = serving("n1", "n2", "n3")
    leader = world["n1"]
    leader.hold_flush = True
    leader.write("never flushed")

    world.run_for(1.5)
    assert not leader.leads
    world.run_for(1)
    assert not leader.leads

    leader.release()
    world.run_until(lambda: world.leader() is not None)


def test_uncommitted_appends_are_bounded() -> None:
    world = serving("n1", "n2", "n3", options=CoreOptions(uncommitted_bytes=1_000))
    for follower in ("n2", "n3"):
        world[follower].hold_flush = True
    leader = world["n1"]
    before = leader.log.size

    for _ in range(50):
        leader.write("x" * 100)
        world.run_for(0.002)

    assert leader.log.size - before < 3_000
    for follower in ("n2", "n3"):
        world[follower].release()
    world.run_until(
        lambda: (
            leader.state.commit_index == leader.log.tail.index and not leader.leading.status().queues.waiting_requests
        )
    )
    assert leader.log.size - before > 5_000


def test_a_stopped_node_refuses_what_waits_and_does_nothing_more() -> None:
    world = serving("n1", "n2", "n3")
    leader = world["n1"]
    leader.hold_flush = True
    leader.write("appended")
    world.run_for(0)
    waiting = leader.write("still waiting")

    leader.step(events.Stopped("the node stops"))

    assert leader.rejected == [(waiting, "not_leader")]
    tail = leader.log.tail
    leader.write("too late")
    assert leader.log.tail == tail
