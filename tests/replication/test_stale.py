"""What arrives late, twice or from elsewhere counts for nothing (rules 2, 7, 8 and 9)."""

import pytest

from quire.log import Kind, encode_frame, encode_records
from quire.log.simulated.faulty import Keep
from quire.replication.core import Promise, actions, events
from quire.replication.core.election import Phase
from quire.replication.core.following import Step
from quire.replication.core.messages import (
    Ack,
    CoreMessage,
    Last,
    Open,
    OpenAnswer,
    OpenVerb,
    PreVoteAnswer,
    VoteAnswer,
)
from quire.replication.core.writer import TruncateLog, WriteFrames
from tests.replication.world import SimNode, World, disk_id, values


def serving() -> World:
    world = World("n1", "n2", "n3")
    world.start()
    world.elect("n1")
    world.run_for(0.3)
    return world


def stream_of(leader: SimNode, node_id: str) -> int:
    """The leader's number of a follower's stream."""
    return next(number for number, stream in leader.leading.downstreams.streams.items() if stream.node_id == node_id)


def ack(index: int) -> Ack:
    return Ack(index, index, 0, bytes(16))


def uncommitted() -> World:
    """n1 has flushed a record that both followers have in their files, and neither has acknowledged."""
    world = serving()
    for follower in ("n2", "n3"):
        world[follower].hold_flush = True
    world["n1"].write("a")
    end = world["n1"].log.tail.index
    world.run_until(lambda: all(node.log.tail.index == end for node in world.nodes.values()))
    world.run_for(0.01)
    assert world["n1"].log.durable_index == end
    return world


def next_frame(node: SimNode, *, epoch: int | None = None) -> bytes:
    """A whole frame that would follow what a node has."""
    tail = node.log.tail
    return encode_frame(
        index=tail.index,
        epoch=tail.epoch if epoch is None else epoch,
        timestamp=tail.timestamp,
        count=1,
        prev_crc32c=tail.crc32c,
        kind=Kind.RECORDS,
        payload=encode_records(["stray"]),
    )


# Acks


def test_an_ack_counts_while_its_stream_is_open() -> None:
    world = uncommitted()
    leader = world["n1"]

    leader.step(events.AckArrived(stream_of(leader, "n2"), ack(leader.log.tail.index)))

    assert leader.state.commit_index == leader.log.tail.index


def test_an_ack_on_a_stream_that_is_gone_does_not_count() -> None:
    world = uncommitted()
    leader = world["n1"]
    commit, gone = leader.state.commit_index, stream_of(leader, "n2")

    leader.step(events.StreamClosed(gone))
    leader.step(events.AckArrived(gone, ack(leader.log.tail.index)))

    assert leader.state.commit_index == commit


def test_a_newer_stream_of_a_follower_ends_the_earlier_one_and_its_acks() -> None:
    world = uncommitted()
    leader = world["n1"]
    commit, earlier = leader.state.commit_index, stream_of(leader, "n2")
    epochs = tuple(leader.log.epochs)

    opening = Open(leader.state.promise, epochs, commit, commit)
    assert leader.core is not None
    told = leader.core.handle(events.StreamOpened(777, "n2", disk_id("n2"), opening), world.now, world.clock())
    leader.step(events.AckArrived(earlier, ack(leader.log.tail.index)))

    assert [action.stream_id for action in told if isinstance(action, actions.CloseStream)] == [earlier]
    assert earlier not in leader.leading.downstreams.streams
    assert leader.state.commit_index == commit


def test_an_ack_of_a_voter_with_another_disk_does_not_count() -> None:
    world = uncommitted()
    leader = world["n1"]
    commit, end = leader.state.commit_index, leader.log.tail.index

    opening = Open(leader.state.promise, tuple(leader.log.epochs), end, end)
    leader.step(events.StreamOpened(777, "n2", b"another disk id.", opening))
    leader.step(events.AckArrived(777, ack(end)))

    assert leader.leading.downstreams.streams[777].match_index == end
    assert leader.state.commit_index == commit


def test_records_of_an_older_epoch_are_not_committed_by_counting_them() -> None:
    # Raft 5.4.2, figure 8: a majority holds the old record, and the leader alone its own first one.
    world = serving()
    before = world["n1"].state.commit_index
    world["n1"].hold_flush = True
    world["n1"].write("old")
    world.run_until(lambda: all(world[node].log.durable_index > before for node in ("n2", "n3")))
    world["n1"].crash()
    world["n3"].hold_flush = True
    world["n2"].nominate()
    world.run_until(lambda: world["n2"].leads)

    world.run_until(lambda: world["n3"].log.tail.index == world["n2"].log.durable_index)
    world.run_for(0.1)
    leader = world["n2"]
    matched = leader.leading.downstreams.streams[stream_of(leader, "n3")].match_index
    assert matched == leader.start_index == before + 1
    assert leader.state.commit_index == before

    world["n3"].release()
    world.run_until(lambda: leader.state.commit_index == leader.log.tail.index)
    assert values(leader) == ["old"]


def test_a_follower_acknowledges_nothing_while_its_stream_is_being_opened() -> None:
    world = uncommitted()
    follower = world["n2"]
    follower.step(events.StreamClosed(follower.upstream.stream_id))
    world.run_until(lambda: follower.has_stream and follower.upstream.step is Step.OPENING)
    acked = list(follower.acked)

    follower.release()

    assert follower.upstream.step is Step.OPENING
    assert follower.acked == acked
    world.run_until(lambda: follower.acked != acked)
    assert follower.acked[len(acked)] == (follower.upstream.stream_id, follower.log.tail.index)


# Truncations and frames


def test_a_truncation_for_an_earlier_stream_is_dropped_at_the_head_of_the_queue() -> None:
    # Rule 9: the first opening's delayed truncation would remove what the second one acknowledged.
    world = uncommitted()
    follower = world["n2"]
    follower.release()
    assert follower.core is not None
    tail = follower.log.tail

    follower.core.writer.submit(TruncateLog(follower.upstream.stream_id - 1, tail.index - 1))
    follower.step(events.Tick())

    assert (follower.truncations, follower.log.tail) == ([], tail)


def test_a_truncation_for_a_stream_that_has_matched_is_dropped_too() -> None:
    world = uncommitted()
    follower = world["n2"]
    follower.release()
    assert follower.core is not None

    follower.core.writer.submit(TruncateLog(follower.upstream.stream_id, follower.log.tail.index - 1))
    follower.step(events.Tick())

    assert follower.truncations == []


def test_a_truncation_that_reaches_the_head_of_the_queue_below_commit_index_halts_the_node() -> None:
    world = serving()
    follower = world["n2"]
    follower.upstream.step = Step.TRUNCATING
    assert follower.core is not None

    follower.core.writer.submit(TruncateLog(follower.upstream.stream_id, follower.state.commit_index - 1))
    follower.step(events.Tick())

    assert follower.truncations == []
    assert "below commit_index" in (follower.halted or "")


@pytest.mark.parametrize("step", [Step.DIALLING, Step.OPENING])
def test_an_answer_to_an_earlier_opening_says_nothing_about_a_later_one(step: Step) -> None:
    world = uncommitted()
    follower = world["n2"]
    follower.release()
    follower.upstream.step = step
    tail = follower.log.tail

    told = OpenAnswer(OpenVerb.TRUNCATE, tail.index - 1, follower.running.crc32c_before(tail.index - 1), "")
    follower.step(events.OpenAnswered(follower.upstream.stream_id - 1, told))
    world.run_for(0.01)

    assert (follower.upstream.step, follower.truncations, follower.halted) == (step, [], None)


def test_a_second_answer_to_an_opening_says_nothing() -> None:
    world = uncommitted()
    follower = world["n2"]
    follower.release()
    tail = follower.log.tail

    told = OpenAnswer(OpenVerb.TRUNCATE, tail.index - 1, follower.running.crc32c_before(tail.index - 1), "")
    follower.step(events.OpenAnswered(follower.upstream.stream_id, told))

    assert (follower.truncations, follower.halted) == ([], None)


def test_frames_that_follow_but_come_on_another_stream_are_not_appended() -> None:
    world = serving()
    follower = world["n2"]
    tail, raw = follower.log.tail, next_frame(follower)

    for stream_id in (follower.upstream.stream_id - 1, follower.upstream.stream_id + 1):
        follower.step(events.FramesArrived(stream_id, raw, tail.epoch, 0, 0))

    assert follower.log.tail == tail


def test_frames_of_an_earlier_stream_that_still_wait_are_not_appended() -> None:
    world = serving()
    follower = world["n2"]
    tail = follower.log.tail
    assert follower.core is not None

    follower.core.writer.submit(WriteFrames(follower.upstream.stream_id - 1, next_frame(follower)))
    follower.step(events.Tick())

    assert follower.log.tail == tail


def test_frames_that_come_before_the_opening_is_answered_are_not_appended() -> None:
    world = serving()
    follower = world["n2"]
    tail = follower.log.tail
    follower.upstream.step = Step.OPENING

    follower.step(events.FramesArrived(follower.upstream.stream_id, next_frame(follower), tail.epoch, 0, 0))

    assert follower.log.tail == tail


def test_a_frame_of_an_epoch_above_the_leaders_ends_the_stream() -> None:
    world = serving()
    follower = world["n2"]
    tail, stream_id = follower.log.tail, follower.upstream.stream_id
    raw = next_frame(follower, epoch=tail.epoch + 1)

    follower.step(events.FramesArrived(stream_id, raw, tail.epoch + 1, 0, 0))

    assert follower.log.tail == tail
    assert not follower.has_stream


# Openings and echoes


def test_an_opening_under_another_promise_is_refused() -> None:
    world = serving()
    leader = world["n1"]
    held, end = leader.state.promise, leader.log.tail.index
    others = [
        Promise(held.epoch - 1, held.candidate, held.incarnation),
        Promise(held.epoch, held.candidate, held.incarnation + 1),
        Promise(held.epoch, "n2", held.incarnation),
        Promise(held.epoch + 1, "n2", 1),
    ]
    assert leader.core is not None

    for place, promise in enumerate(others):
        opening = Open(promise, tuple(leader.log.epochs), end, end)
        opened = events.StreamOpened(770 + place, "n2", disk_id("n2"), opening)
        told = leader.core.handle(opened, world.now, world.clock())
        answers = [action.answer.verb for action in told if isinstance(action, actions.AnswerOpen)]
        assert answers == [OpenVerb.REFUSE]
        assert 770 + place not in leader.leading.downstreams.streams


def test_an_opening_that_parts_at_no_boundary_of_the_leaders_log_is_refused() -> None:
    world = serving()
    leader = world["n1"]
    leader.write("a", "b", "c")
    world.run_until(lambda: leader.state.commit_index == leader.log.tail.index)
    end = leader.log.tail.index
    epochs = tuple(leader.log.epochs)
    assert leader.core is not None

    for place, (theirs, highest) in enumerate(
        [(epochs, end - 1), (((10**6, 10**6),), 10**6 + 1), (((10**6, end - 2),), end), (((10**6, 0),), 5)]
    ):
        opened = events.StreamOpened(780 + place, "n2", disk_id("n2"), Open(leader.state.promise, theirs, highest, end))
        told = leader.core.handle(opened, world.now, world.clock())
        verbs = [action.answer.verb for action in told if isinstance(action, actions.AnswerOpen)]
        assert verbs == [OpenVerb.REFUSE], theirs
        assert 780 + place not in leader.leading.downstreams.streams
    assert leader.leads


def test_positions_that_come_on_another_stream_commit_nothing() -> None:
    world = uncommitted()
    follower = world["n2"]
    follower.release()
    commit, end = follower.state.commit_index, follower.log.tail.index
    assert commit < follower.upstream.matched == end

    for stream_id in (follower.upstream.stream_id - 1, follower.upstream.stream_id + 1):
        follower.step(events.FramesArrived(stream_id, b"", 0, end, end))

    assert follower.state.commit_index == commit
    assert follower.upstream.leader_commit == commit


# What several rules prevent, each checked by itself


def test_an_ack_names_no_more_than_its_stream_has_matched_whatever_is_durable() -> None:
    # Rule 8: the plain durable_index has a field of its own.
    world = uncommitted()
    follower = world["n2"]
    matched = follower.upstream.matched - 1
    follower.upstream.matched = matched

    follower.release()

    assert follower.log.durable_index == matched + 1
    assert follower.acked[-1] == (follower.upstream.stream_id, matched)


def test_a_flush_that_ends_under_another_stored_promise_is_not_acknowledged() -> None:
    # Rule 2: the promise is checked before a write and again after its flush.
    world = uncommitted()
    follower = world["n2"]
    acked = list(follower.acked)
    held = follower.state.stored_promise
    follower.checked = False
    follower.state.stored_promise = Promise(held.epoch, "n3", 1)

    follower.release()

    assert follower.acked == acked


def test_promises_to_a_node_that_promised_another_since_make_no_leader() -> None:
    world = World("n1", "n2", "n3")
    world.start()
    world.isolate("n1")
    node = world["n1"]
    node.nominate()
    assert node.core is not None
    candidate = node.core.candidate
    world.run_until(lambda: candidate.phase is Phase.PRE_VOTE)
    node.step(
        events.Received("n2", disk_id("n2"), PreVoteAnswer(candidate.attempt, True, 0, Last(0, 1), world.clock()))
    )
    world.run_until(lambda: candidate.phase is Phase.REQUESTING)
    asked = node.state.promise
    node.checked = False
    node.state.promise = Promise(asked.epoch + 1, "n3", 1)

    node.step(events.Received("n2", disk_id("n2"), VoteAnswer(asked, True, 0, world.clock())))

    assert not node.leads


@pytest.mark.parametrize("answer", ["pre-vote", "promise"])
def test_a_higher_epoch_in_a_late_answer_to_an_attempt_ends_the_leadership_that_it_brought(answer: str) -> None:
    world = serving()
    leader = world["n1"]
    led = leader.state.promise
    late: CoreMessage = VoteAnswer(led, False, led.epoch + 1, world.clock())
    if answer == "pre-vote":
        late = PreVoteAnswer(1, False, led.epoch + 1, Last(0, 1), world.clock())

    leader.step(events.Received("n3", disk_id("n3"), late))

    assert not leader.leads


def test_a_disk_that_lost_what_it_acknowledged_halts_and_votes_no_more() -> None:
    world = World("n1", "n2", "n3")
    world.start()
    leader, node = world.elect("n1"), world["n3"]
    leader.write("before")
    world.run_for(0.3)
    image = node.storage.fork()
    leader.write("acknowledged")
    world.run_until(
        lambda: leader.leading.downstreams.streams != {} and node.log.durable_index == leader.log.durable_index
    )
    world.run_for(0.3)
    had = node.log.durable_index

    node.crash()
    node.storage = image  # A machine's image of yesterday, with the same disk_id.
    node.directory = image.directory()
    node.start()
    world.run_until(lambda: node.halted is not None)

    assert f"this disk acknowledged {had} to n1, and has {had - 1}" in str(node.halted)
    assert "n3" not in [stream.node_id for stream in leader.leading.downstreams.streams.values()]


def test_a_disk_that_has_what_it_acknowledged_is_taken_up_again_however_it_stopped() -> None:
    world = World("n1", "n2", "n3")
    world.start()
    leader, node = world.elect("n1"), world["n3"]
    for keep in Keep:
        leader.write(f"before {keep}")
        world.run_for(0.3)
        node.crash(keep)
        leader.write(f"meanwhile {keep}")
        node.start()
        world.run_until(lambda: node.log.durable_index == leader.log.durable_index)
    assert node.halted is None
