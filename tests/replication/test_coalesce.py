"""Which writes share a frame, and which get the index that they expected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.log import Kind, Log, LogOptions, decode_runs, decode_values, encode_blob, encode_records, frame_values
from quire.log.simulated import faulty
from quire.replication import Disk, PromiseFile, Reason, Write
from quire.replication.core import CoreOptions
from quire.replication.disk import DraftFrame, coalesce
from tests.replication.world import CLUSTER_ID, World


def records(*values: object, at: int | None = None) -> Write[None]:
    return Write(encode_records(list(values)), len(values), expected_index=at, owner=None)


def blob(data: bytes, at: int | None = None) -> Write[None]:
    return Write(encode_blob(data), 1, Kind.BLOB, expected_index=at, owner=None)


def drafts(writes: list[Write[None]], next_index: int = 10) -> tuple[list[DraftFrame[None]], list[Write[None]]]:
    rejected: list[Write[None]] = []
    return list(coalesce(writes, next_index, rejected)), rejected


def test_consecutive_writes_share_a_frame_in_their_order() -> None:
    writes = [records("a", "b"), records("c"), records("d", "e", "f")]

    (draft,), rejected = drafts(writes)

    assert rejected == []
    assert (draft.kind, draft.count) == (Kind.RECORDS, 6)
    assert decode_values(draft.payload, 6) == ["a", "b", "c", "d", "e", "f"]
    assert [(share.write, share.offset) for share in draft.shares] == list(zip(writes, [0, 2, 3], strict=True))


def test_a_write_alone_keeps_its_bytes() -> None:
    write = records("a", {"b": 1})
    (draft,), _ = drafts([write])
    assert draft.payload is write.payload


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_any_counts_join_to_one_array_with_the_smallest_head(counts: list[int]) -> None:
    values = [[(place, number) for number in range(count)] for place, count in enumerate(counts)]
    (draft,), _ = drafts([records(*each) for each in values])

    assert draft.payload == encode_records([value for each in values for value in each])
    assert draft.count == sum(counts)


def test_a_blob_stands_alone_between_frames_of_records() -> None:
    writes = [records("a"), records("b"), blob(b"raw"), blob(b"more"), records("c")]

    made, _ = drafts(writes)

    assert [(draft.kind, draft.count) for draft in made] == [
        (Kind.RECORDS, 2),
        (Kind.BLOB, 1),
        (Kind.BLOB, 1),
        (Kind.RECORDS, 1),
    ]
    assert [[share.write for share in draft.shares] for draft in made] == [
        writes[:2],
        [writes[2]],
        [writes[3]],
        writes[4:],
    ]
    assert all(draft.shares[0].offset == 0 for draft in made)


def test_an_expected_index_counts_the_writes_before_it_in_the_same_frame() -> None:
    right = [
        records("a", "b", at=10),
        records("c", at=12),
        blob(b"raw", at=13),
        records("d", at=14),
        records("e", at=15),
    ]

    made, rejected = drafts(right)

    assert rejected == []
    assert sum(draft.count for draft in made) == 6


def test_a_write_that_expected_another_index_is_left_out_and_shifts_no_other() -> None:
    wrong = [records("a", at=9), records("b", at=11), records("x", at=12), blob(b"raw", at=12), blob(b"raw", at=14)]

    made, rejected = drafts([wrong[0], records("c"), wrong[2], records("d", at=11), blob(b"raw", at=99)])

    assert [write.expected_index for write in rejected] == [9, 12, 99]
    (draft,) = made
    assert decode_values(draft.payload, draft.count) == ["c", "d"]


def test_rejected_writes_alone_make_no_frame() -> None:
    assert drafts([records("a", at=1), blob(b"b", at=2)])[0] == []
    assert drafts([])[0] == []


# What waits, and the limits of a frame


def appended_counts(options: CoreOptions, *sizes: int) -> list[int]:
    """The counts of the frames that writes of so many bytes become when all of them waited for one flush."""
    world = World("n1", options=options)
    world.start()
    leader = world.elect("n1")
    leader.hold_flush = True
    leader.write("in the flush")
    world.run_for(0)
    first = leader.log.tail.index
    for size in sizes:
        leader.write("x" * size)
    leader.release()
    world.run_until(lambda: leader.state.commit_index == leader.log.tail.index)
    return [frame.header.count for frame in leader.log.reader.stream(first, leader.log.tail.index)]


def size_of(characters: int) -> int:
    return records("x" * characters).size


def test_as_many_requests_as_the_limit_share_a_frame_and_one_more_begins_another() -> None:
    options = CoreOptions(frame_requests=3)
    assert appended_counts(options, 1, 1, 1) == [3]
    assert appended_counts(options, 1, 1, 1, 1) == [3, 1]


def test_as_many_records_as_the_limit_share_a_frame_and_one_more_begins_another() -> None:
    options = CoreOptions(frame_records=3)
    assert appended_counts(options, 1, 1, 1, 1) == [3, 1]


def test_as_many_bytes_as_the_limit_share_a_frame_and_one_more_begins_another() -> None:
    options = CoreOptions(frame_bytes=3 * size_of(20))
    assert appended_counts(options, 20, 20, 20) == [3]
    assert appended_counts(options, 20, 20, 21) == [2, 1]


def test_a_request_above_the_limit_of_a_shared_frame_gets_a_frame_of_its_own() -> None:
    options = CoreOptions(frame_bytes=200)
    assert appended_counts(options, 10, 500, 10, 10) == [1, 1, 2]


# On a disk that has no room, or a log that takes no such frame


def small_log(disk: faulty.Disk) -> Disk:
    directory = disk.directory()
    options = LogOptions(segment_bytes=4_096, max_frame_bytes=2_048)
    log = Log.open(directory, options, cluster_id=CLUSTER_ID, clock=lambda: 1, standalone=False)
    return Disk(log, PromiseFile.create(directory, bytes(16)))


def stored(disk: Disk) -> list[object]:
    disk.log.flush()
    return [value for frame in disk.log.reader.stream(0, disk.log.tail.index) for value in frame_values(frame)]


def test_a_write_is_in_the_log_exactly_if_it_was_placed() -> None:
    device = faulty.Disk()
    disk = small_log(device)
    disk.append_writes(1, 0, [blob(bytes(1_800)), blob(bytes(1_500))])
    device.full = True
    tail = disk.log.tail.index
    writes = [records("fits"), blob(bytes(1_900)), records("behind"), records("misplaced", at=99)]

    appended = disk.append_writes(1, 0, writes)

    placed = [share.write for placed in appended.placed for share in placed.shares]
    assert len(placed) + len(appended.rejected) == len(writes)
    assert placed == [writes[0]]
    assert stored(disk)[tail:] == ["fits"]
    assert appended.rejected[-1] == (writes[3], Reason.WRONG_INDEX)


def test_a_write_after_one_for_which_the_disk_is_full_gets_its_expected_index_or_none() -> None:
    device = faulty.Disk()
    disk = small_log(device)
    disk.append_writes(1, 0, [blob(bytes(1_800)), blob(bytes(1_500))])
    device.full = True
    tail = disk.log.tail.index
    behind, without = records("behind", at=tail + 1), records("without", at=tail)

    appended = disk.append_writes(1, 0, [blob(bytes(1_900), at=tail), behind, without])

    placed = {share.write: placed.index + share.offset for placed in appended.placed for share in placed.shares}
    assert behind not in placed
    assert all(write.expected_index == index for write, index in placed.items())
    assert disk.log.tail.index == tail + len(placed)


# Sessions


def of_session(session: int, sequence: int, *values: object) -> Write[None]:
    return Write(encode_records(list(values)), len(values), session=session, sequence=sequence, owner=None)


def test_one_sessions_consecutive_sequences_share_a_frame_whose_header_says_so() -> None:
    (draft,), _ = drafts([of_session(7, 11, "a", "b"), of_session(7, 13, "c")])

    assert (draft.kind, draft.session, draft.sequence, draft.count) == (Kind.RECORDS, 7, 11, 3)
    assert decode_values(draft.payload, 3) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "writes",
    [
        [of_session(7, 11, "a", "b"), of_session(7, 14, "c")],
        [of_session(7, 11, "a", "b"), of_session(8, 13, "c")],
        [of_session(7, 11, "a", "b"), records("c")],
        [records("a", "b"), of_session(7, 11, "c")],
        [of_session(7, 1, "a", "b"), of_session(7, 1, "c")],
    ],
)
def test_writes_of_several_sessions_or_with_a_gap_share_a_frame_with_a_run_for_each(writes: list[Write[None]]) -> None:
    (draft,), _ = drafts(writes)

    assert (draft.kind, draft.session, draft.sequence, draft.count) == (Kind.RUNS, 0, 0, 3)
    runs, values = decode_runs(draft.payload, 3)
    assert runs == [(write.session, write.sequence, write.count) for write in writes]
    assert values == ["a", "b", "c"]


def test_a_write_alone_has_its_session_in_the_header() -> None:
    (draft,), _ = drafts([of_session(7, 11, "a", "b")])
    assert (draft.kind, draft.session, draft.sequence) == (Kind.RECORDS, 7, 11)


@given(
    st.lists(
        st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(1, 20)), min_size=1, max_size=20
    )
)
def test_a_frame_is_never_larger_than_its_writes_say(rows: list[tuple[int, int, int]]) -> None:
    writes = [of_session(session, sequence, *range(count)) for session, sequence, count in rows]

    (draft,), _ = drafts(writes)

    assert len(draft.payload) <= sum(write.size for write in writes)


def test_waiting_writes_are_not_appended_while_too_much_is_uncommitted() -> None:
    options = CoreOptions(uncommitted_bytes=3 * size_of(100), frame_requests=1)
    world = World("n1", "n2", "n3", options=options)
    world.start()
    leader = world.elect("n1")
    world.run_for(0.3)
    committed = leader.state.commit_index
    for follower in ("n2", "n3"):
        world[follower].hold_flush = True

    for number in range(10):
        leader.write(f"{number:0100}")
        world.run_for(0.001)
    world.run_for(0.5)

    assert (leader.log.tail.index, leader.state.commit_index) == (committed + 3, committed)
    assert leader.rejected == []
    for follower in ("n2", "n3"):
        world[follower].release()
    world.run_until(lambda: leader.state.commit_index == committed + 10)
