"""Rules 8 and 9: openings, divergence, truncation, and what an ack may say."""

from hypothesis import given
from hypothesis import strategies as st

from quire.log import Kind, encode_frame, encode_records
from quire.replication.core import CoreOptions, Promise, actions, events
from quire.replication.core.belief import Refusal
from quire.replication.core.downstreams import match_boundary
from quire.replication.core.following import Step
from quire.replication.core.messages import Ack, CrcMismatch, Open, OpenAnswer, OpenVerb
from tests.replication.installing import behind
from tests.replication.world import SimNode, World, values


def serving(*node_ids: str, observers: tuple[str, ...] = ()) -> World:
    world = World(*node_ids, observers=observers)
    world.start()
    world.elect(node_ids[0])
    return world


def diverged() -> World:
    """n1 was cut off as the leader: it holds a suffix that the cluster, now led by n2, does not have."""
    world = serving("n1", "n2", "n3")
    world["n1"].write("shared")
    world.run_until(lambda: all(node.apply_to == world["n1"].log.tail.index for node in world.nodes.values()))
    world.isolate("n1")
    world["n1"].write("lost", "lost, too")
    world["n1"].write("and this")
    world.run_for(0.1)
    world["n1"].nominated = False
    world["n1"].step(events.Nominated(False))
    world.run_for(2)
    leader = world.elect("n2")
    leader.write("kept")
    world.run_until(lambda: leader.state.commit_index == leader.log.tail.index)
    return world


def test_a_follower_truncates_exactly_to_the_match_boundary_and_continues() -> None:
    world = diverged()
    boundary = world["n2"].start_index
    assert world["n1"].log.tail.index == boundary + 3

    world.heal()
    world.run_until(lambda: world["n1"].apply_to == world["n2"].log.tail.index)

    assert world["n1"].truncations == [boundary]
    assert values(world["n1"]) == values(world["n2"]) == ["shared", "kept"]


def test_a_divergent_suffix_is_never_acknowledged() -> None:
    # Rule 8: a divergent suffix would be counted as acknowledged.
    world = diverged()
    boundary = world["n2"].start_index
    first = len(world["n1"].acked)

    world.heal()
    world.run_until(lambda: world["n1"].apply_to == world["n2"].log.tail.index)

    acked = [index for _, index in world["n1"].acked[first:]]
    assert acked[0] == boundary
    assert acked == sorted(acked)


def test_a_follower_raises_no_commit_index_before_its_truncation_is_done() -> None:
    # Rule 7: this stream has matched nothing yet, however high the leader's commit_index is.
    world = diverged()
    follower, boundary = world["n1"], world["n2"].start_index
    world.heal()
    world.run_until(lambda: follower.has_stream and follower.upstream.step is Step.OPENING)
    follower.upstream.step = Step.TRUNCATING  # the truncation waits for a flush
    end = follower.log.tail.index
    assert end > boundary

    follower.step(events.FramesArrived(follower.upstream.stream_id, b"", 0, end, end))

    assert follower.state.commit_index <= boundary
    assert follower.upstream.leader_commit == end, "it is noted for when the truncation is done"


def test_a_follower_that_was_away_is_sent_only_what_it_lacks() -> None:
    world = serving("n1", "n2", "n3")
    world["n1"].write("before")
    world.run_until(lambda: world["n3"].apply_to == world["n1"].log.tail.index)
    world["n3"].crash()
    match = world["n1"].log.tail.index
    for number in range(20):
        world["n1"].write(number)
        world.run_for(0.01)
    world.run_until(lambda: world["n1"].state.commit_index == world["n1"].log.tail.index)
    lacking = world["n1"].log.lookup.bytes_between(match, world["n1"].log.tail.index)
    shipped = world["n1"].shipped_bytes

    world["n3"].start()
    world.run_until(lambda: world["n3"].apply_to == world["n1"].log.tail.index)

    assert world["n1"].shipped_bytes - shipped == lacking


def test_a_truncation_below_commit_index_halts_the_node() -> None:
    world = serving("n1", "n2", "n3")
    world["n1"].write("committed")
    world.run_until(lambda: world["n2"].apply_to == world["n1"].log.tail.index)
    stream = world["n2"].upstream
    stream.step = Step.OPENING

    told = OpenAnswer(OpenVerb.TRUNCATE, 1, 0, "")
    world["n2"].step(events.OpenAnswered(stream.stream_id, told))

    assert "below commit_index" in (world["n2"].halted or "")


def test_a_stream_to_a_log_that_grew_while_it_opened_does_not_match() -> None:
    world = serving("n1", "n2", "n3")
    world.run_until(lambda: world["n2"].apply_to == world["n1"].log.tail.index)
    for follower in ("n2", "n3"):
        world[follower].hold_flush = True
    node, asked_at = world["n2"], world["n2"].log.tail
    world["n1"].write("while it opened")
    world.run_until(lambda: node.log.tail.index > asked_at.index)
    stream = node.upstream
    stream.step = Step.OPENING

    told = OpenAnswer(OpenVerb.RESUME, asked_at.index, asked_at.crc32c, "")
    node.step(events.OpenAnswered(stream.stream_id, told))

    assert not (node.has_stream and node.upstream is stream)


def contradicting(node_id: str = "n2", observers: tuple[str, ...] = ()) -> World:
    """n2 holds another frame than n1 and n3 at the same index and epoch, and both verify; n1 still leads."""
    world = serving("n1", "n2", "n3", observers=observers)
    world.run_for(0.2)
    world.isolate(node_id)
    world["n1"].write("this")
    world.run_for(0.2)
    tail = world[node_id].log.tail
    frame = encode_frame(
        index=tail.index,
        epoch=tail.epoch,
        timestamp=tail.timestamp,
        count=1,
        prev_crc32c=tail.crc32c,
        kind=Kind.RECORDS,
        payload=encode_records(["that"]),
    )
    world[node_id].log.append_frames(frame)
    world[node_id].log.flush()
    return world


def rot_last_frame(node: SimNode) -> None:
    """Flip a bit of the last frame on the disk."""
    store = "log/00000000000000000000.store"
    content = node.storage.content(store)
    place = max(content.rfind(b"this"), content.rfind(b"that"))
    assert place > 0
    node.storage.flip_bit(store, place)


def test_equal_indices_with_unequal_crcs_halt_both_and_name_the_values() -> None:
    # Rule 8: if both verify, both halt with the values.
    world = contradicting()
    crcs = [f"{world[node].log.tail.crc32c:#x}" for node in ("n1", "n2")]

    world.heal()
    world.run_until(lambda: bool(world["n1"].halted and world["n2"].halted))

    for node in ("n1", "n2"):
        assert all(crc in (world[node].halted or "") for crc in crcs)
        assert "rot" not in (world[node].halted or "").removesuffix("the leader found no rot in its own")


def test_a_follower_that_reported_a_contradiction_acknowledges_nothing_on_that_stream() -> None:
    """It has matched nothing there. And an ack replaces what is queued before it, which may be the report."""
    world = contradicting()
    node = world["n2"]
    world.heal()
    world.run_until(lambda: node.has_stream and node.upstream.step is Step.MISMATCHED)
    assert node.core is not None
    stream = node.upstream.stream_id

    taken = [
        action
        for event in (events.Flushed(), events.FramesArrived(stream, b"", 0, 0, 0), events.Tick())
        for action in node.core.handle(event, world.now, world.clock())
    ]

    assert node.upstream.step is Step.MISMATCHED
    assert not [action for action in taken if isinstance(action, actions.SendAck)]


def test_nobody_halts_for_a_frame_before_the_first() -> None:
    world = serving("n1", "n2", "n3")
    world.run_until(lambda: len(world["n1"].leading.downstreams.streams) == 2)
    stream_id = next(iter(world["n1"].leading.downstreams.streams))

    world["n1"].step(events.CrcMismatchArrived(stream_id, CrcMismatch(0, 5)))

    assert world["n1"].halted is None
    assert world["n1"].leads


def test_the_frame_before_a_log_that_begins_above_it_is_not_read() -> None:
    world = behind()
    leader = world["n1"]
    lowest = leader.log.bounds.lowest_index

    assert leader.running.verifies_before(lowest)
    assert leader.running.crc32c_before(lowest) == leader.log.origin.crc32c


def test_an_observer_whose_frame_differs_halts_alone() -> None:
    # Nothing that its disk holds was counted: anybody who knows the secret could end a leader by a word.
    world = contradicting("n4", observers=("n4",))

    world.heal()
    world.run_until(lambda: world["n4"].halted is not None)
    world.run_for(0.2)

    assert "the one here verifies" in (world["n4"].halted or "")
    assert world["n1"].halted is None
    assert world["n1"].leads


def test_a_follower_is_not_told_that_it_lost_what_its_disk_holds() -> None:
    world = serving("n1", "n2", "n3")
    world.run_until(lambda: world["n2"].has_stream)
    node = world["n2"]
    stream, durable = node.upstream, node.log.durable_index
    stream.step = Step.OPENING

    node.step(events.OpenAnswered(stream.stream_id, OpenAnswer(OpenVerb.LOST_DATA, durable, 0, "it lost that")))

    assert node.halted is None
    assert not (node.has_stream and node.upstream is stream)
    world.run_until(lambda: node.has_stream and node.upstream.step is Step.MATCHED)
    node.upstream.step = Step.OPENING
    lost = OpenAnswer(OpenVerb.LOST_DATA, node.log.durable_index + 1, 0, "it lost that")
    node.step(events.OpenAnswered(node.upstream.stream_id, lost))
    assert "it lost that" in (node.halted or "")


def test_a_follower_whose_own_frame_fails_its_crc_does_not_accuse_its_leader() -> None:
    # Rule 8: the side whose own frame fails its crc halts, and the leader continues.
    world = contradicting()
    rot_last_frame(world["n2"])

    world.heal()
    world.run_until(lambda: world["n2"].halted is not None)
    world.run_for(2)

    assert "rot" in (world["n2"].halted or "")
    assert world["n1"].halted is None
    assert world["n1"].leads


def test_a_leader_whose_own_frame_fails_its_crc_halts_and_its_follower_continues() -> None:
    world = contradicting()
    rot_last_frame(world["n1"])

    world.heal()
    world.run_until(lambda: world["n1"].halted is not None)
    world.run_for(0.1)

    assert "rot" in (world["n1"].halted or "")
    assert world["n2"].halted is None


def test_an_earlier_streams_truncation_is_not_carried_out() -> None:
    # Rule 9: the first opening's delayed truncation would remove what the second one acknowledged.
    world = diverged()
    node = world["n1"]
    node.hold_flush = True
    world.heal()
    world.run_until(lambda: node.has_stream)
    stream_id = node.upstream.stream_id
    node.step(events.StreamClosed(stream_id))

    node.step(events.OpenAnswered(stream_id, OpenAnswer(OpenVerb.TRUNCATE, 2, 0, "")))

    assert node.truncations == []


def test_frames_of_a_stream_that_is_gone_are_not_appended() -> None:
    world = serving("n1", "n2", "n3")
    world.run_until(lambda: world["n2"].has_stream)
    world.run_for(0.2)
    raw, _ = world["n1"].log.read_frames(0, 1)
    tail = world["n2"].log.tail

    world["n2"].step(events.FramesArrived(999_999, raw, 0, 0, 0))

    assert world["n2"].log.tail == tail


def test_an_ack_inside_a_frame_closes_the_stream_and_commits_nothing() -> None:
    world = World("n1", "n2", "n3")
    world.start()
    world.isolate("n3")
    leader = world.elect("n1")
    world.run_until(lambda: leader.state.commit_index == leader.log.tail.index)
    committed = leader.state.commit_index
    world.stream_cut.add(("n2", "n1"))
    leader.write("a", "b", "c")
    (stream_id, stream), *_ = leader.leading.downstreams.streams.items()
    world.run_until(lambda: stream.next_index == leader.log.durable_index == committed + 3)

    leader.step(events.AckArrived(stream_id, Ack(committed + 1, committed + 1, 0, bytes(16))))

    assert (leader.state.commit_index, leader.halted) == (committed, None)
    assert stream_id not in leader.leading.downstreams.streams
    assert leader.state.refused[Refusal.NO_BOUNDARY] == 1
    world.stream_cut.clear()
    world.run_until(lambda: leader.state.commit_index == committed + 3)


def test_an_ack_beyond_what_was_shipped_closes_the_stream() -> None:
    world = serving("n1", "n2", "n3")
    world.run_for(0.2)
    stream_id = next(iter(world["n1"].leading.downstreams.streams))
    commit = world["n1"].state.commit_index

    world["n1"].step(events.AckArrived(stream_id, Ack(10**6, 10**6, 0, bytes(16))))

    assert stream_id not in world["n1"].leading.downstreams.streams
    assert world["n1"].state.commit_index == commit


def test_shipping_stops_at_the_window_and_continues_with_the_acks() -> None:
    world = World("n1", "n2", "n3", options=CoreOptions(window_bytes=1_000, shipment_bytes=400))
    world.start()
    world.elect("n1")
    world.run_for(0.2)
    world["n2"].hold_flush = True
    shipped = world["n1"].shipped_bytes
    for number in range(50):
        world["n1"].write(f"{number:0100}")
        world.run_for(0.002)
    n2 = next(s for s in world["n1"].leading.downstreams.streams.values() if s.node_id == "n2")
    assert n2.in_flight_bytes <= 1_000 + 400
    assert shipped < world["n1"].shipped_bytes

    world["n2"].release()
    world.run_until(lambda: world["n2"].apply_to == world["n1"].log.tail.index)


def test_a_refused_opening_gets_the_reason() -> None:
    world = World("n1", "n2", "n3")
    world.start()
    opened = events.StreamOpened(5, "n2", b"n2".ljust(16, b"\0"), Open(Promise(3, "n1", 1), (), 0, 0))
    core = world["n1"].core
    told = core.handle(opened, world.now, world.clock()) if core else []

    assert next(action for action in told if isinstance(action, actions.AnswerOpen)).answer.verb is OpenVerb.REFUSE


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[tuple[int, int]], int, list[tuple[int, int]], int, int]:
    """Two logs that share a prefix: their (epoch, first index) pairs, their ends, and where they part."""
    shared = draw(st.integers(1, 6))
    sizes = draw(st.lists(st.integers(1, 5), min_size=shared, max_size=shared))
    epochs, index = [], 0
    for epoch, size in enumerate(sizes):
        epochs.append((epoch * 3, index))
        index += size
    boundary = index
    ours, theirs = list(epochs), list(epochs)
    ends = []
    for log, first in ((ours, shared * 3), (theirs, shared * 3 + 1)):
        end = boundary
        for place in range(draw(st.integers(0, 3))):
            log.append((first + place * 3, end))
            end += draw(st.integers(1, 5))
        ends.append(end)
    return ours, ends[0], theirs, ends[1], boundary


@given(histories())
def test_the_boundary_is_where_the_logs_part(
    history: tuple[list[tuple[int, int]], int, list[tuple[int, int]], int, int],
) -> None:
    leader, leader_highest, follower, follower_highest, boundary = history

    assert match_boundary(leader, leader_highest, follower, follower_highest) == boundary


def test_an_epoch_that_one_side_has_longer_ends_the_match_where_the_shorter_ends() -> None:
    assert match_boundary([(1, 0)], 10, [(1, 0)], 7) == 7
    assert match_boundary([(1, 0)], 7, [(1, 0)], 10) == 7
    assert match_boundary([(1, 0), (3, 7)], 12, [(1, 0)], 10) == 7


def test_without_a_shared_epoch_there_is_no_boundary() -> None:
    assert match_boundary([(1, 0), (9, 50)], 60, [(5, 40), (7, 45)], 48) is None


def test_an_empty_log_begins_at_the_beginning() -> None:
    assert match_boundary([(0, 0), (9, 1)], 60, [], 0) == 0


def test_an_opening_that_names_no_boundary_of_the_leaders_log_is_refused() -> None:
    world = serving("n1", "n2", "n3")
    world["n1"].write("a", "b", "c")
    world.run_until(lambda: world["n2"].apply_to == world["n1"].log.tail.index)
    promise = world["n1"].state.promise
    inside = world["n1"].log.tail.index - 1

    opening = Open(promise, tuple(world["n1"].log.epochs), inside, inside)
    world["n1"].step(events.StreamOpened(77, "n2", b"n2".ljust(16, b"\0"), opening))

    assert world["n1"].halted is None
    assert 77 not in world["n1"].leading.downstreams.streams
