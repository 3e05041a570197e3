"""Opening: what is rot, what is torn, what is another cluster's, and what can be rebuilt."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quire.log import (
    ForeignStore,
    FrameCorrupt,
    IndexExpired,
    Kind,
    Log,
    LogOptions,
    LogReadOnly,
    LogRotten,
    Torn,
    UnknownVersion,
    encode_records,
    encode_system,
    verify,
)
from quire.log.simulated import Disk, Keep
from tests.log.histories import CLUSTER_ID, SMALL, Clock, all_frames, open_log

FIRST = "log/00000000000000000000.store"


def sealed_disk(*, clean: bool = True, standalone: bool = True) -> Disk:
    """Return a disk with a log of several read segments and frames in the write segment."""
    disk = Disk()
    log = open_log(disk, standalone=standalone)
    log.append_payload(encode_system({"type": "genesis"}), count=1, kind=Kind.SYSTEM, epoch=0)
    for k in range(60):
        log.append([str(k) * 60], epoch=k // 9)
    log.flush()
    if clean:
        log.close()
    return disk


def stores(disk: Disk) -> list[str]:
    return [f"log/{name}" for name in disk.names("log") if name.endswith(".store")]


def indexes(disk: Disk) -> list[str]:
    return [f"log/{name}" for name in disk.names("log") if name.endswith(".index")]


@pytest.mark.parametrize("clean", [True, False])
def test_a_stopped_log_opens_with_everything_it_held(clean: bool) -> None:
    disk = sealed_disk(clean=clean)
    assert len(stores(disk)) > 3
    log = open_log(disk)
    assert log.bounds == (0, 61)
    assert log.durable_index == 61
    assert [log.read(k).value for k in range(1, 61)] == [str(k) * 60 for k in range(60)]
    assert log.members_index == 0
    assert [epoch for epoch, _ in log.epochs] == list(range(7))
    all_frames(log)


def test_an_unclean_stop_does_not_read_sealed_segments_whole() -> None:
    disk = sealed_disk(clean=False)
    disk.flip_bit(FIRST, 200)
    log = open_log(disk)
    assert log.bounds == (0, 61)


@pytest.mark.parametrize("clean", [True, False])
def test_a_store_of_another_cluster_is_refused(clean: bool) -> None:
    disk = sealed_disk(clean=clean)
    with pytest.raises(ForeignStore) as error:
        Log.open(disk.directory(), SMALL, cluster_id=bytes(16), clock=Clock(), standalone=True)
    assert (error.value.found, error.value.expected) == (CLUSTER_ID, bytes(16))


def test_a_log_without_a_valid_mark_slot_is_rot() -> None:
    for content in (None, b"", bytes(4160)):
        disk = sealed_disk()
        if content is None:
            disk.delete("mark")
        else:
            disk.replace("mark", content)
        with pytest.raises(LogRotten) as error:
            open_log(disk)
        assert (error.value.file, error.value.position) == ("mark", 0)
        assert "quire log repair" in str(error.value)


def test_one_rotten_mark_slot_leaves_the_other_to_win() -> None:
    for slot in (0, 4096):
        disk = sealed_disk(clean=False)
        disk.flip_bit("mark", slot + 20)
        assert open_log(disk).bounds == (0, 61)


def test_a_mark_without_its_log_is_rot_but_that_of_an_empty_log_is_not() -> None:
    disk = sealed_disk()
    for name in stores(disk):
        disk.delete(name)
    with pytest.raises(LogRotten):
        open_log(disk)
    disk = Disk()
    open_log(disk)
    disk.delete(FIRST)
    assert open_log(disk).bounds == (0, 0)


def missing_first(disk: Disk) -> None:
    disk.delete(stores(disk)[0])
    disk.delete(indexes(disk)[0])


def missing_middle(disk: Disk) -> None:
    disk.delete(stores(disk)[1])
    disk.delete(indexes(disk)[1])


def missing_last(disk: Disk) -> None:
    disk.delete(stores(disk)[-1])


def empty_last(disk: Disk) -> None:
    disk.replace(stores(disk)[-1], b"")


def empty_middle(disk: Disk) -> None:
    disk.replace(stores(disk)[1], b"")


def overlapping(disk: Disk) -> None:
    name = stores(disk)[1]
    disk.replace("log/00000000000000000001.store", disk.content(name))


def cut_middle(disk: Disk) -> None:
    name = stores(disk)[1]
    disk.replace(name, disk.content(name)[:-1])


def grown_middle(disk: Disk) -> None:
    name = stores(disk)[1]
    disk.replace(name, disk.content(name) + bytes(100))


def swapped_middle(disk: Disk) -> None:
    first, second = stores(disk)[1:3]
    a, b = disk.content(first), disk.content(second)
    disk.replace(first, b)
    disk.replace(second, a)


def rotten_store_header(disk: Disk) -> None:
    disk.flip_bit(stores(disk)[2], 50)


def rotten_last_frame_of_a_sealed_segment(disk: Disk) -> None:
    name = stores(disk)[1]
    following = int(stores(disk)[2][4:24])
    content = disk.content(name)
    position = content.rindex(encode_records([str(following - 2) * 60])) - 60
    disk.flip_bit(name, position)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "spoil",
    [
        missing_middle,
        missing_last,
        empty_last,
        empty_middle,
        overlapping,
        cut_middle,
        grown_middle,
        swapped_middle,
        rotten_store_header,
        rotten_last_frame_of_a_sealed_segment,
    ],
    ids=lambda spoil: spoil.__name__,
)
def test_rot_is_refused_with_file_and_position_and_nothing_is_changed(
    spoil: Callable[[Disk], None], clean: bool
) -> None:
    disk = sealed_disk(clean=clean)
    spoil(disk)
    before = {name: disk.content(f"log/{name}") for name in disk.names("log") if name.endswith(".store")}
    with pytest.raises(LogRotten) as error:
        open_log(disk)
    assert error.value.file == "mark" or error.value.file.endswith(".store")
    assert {name: disk.content(f"log/{name}") for name in disk.names("log") if name.endswith(".store")} == before


def test_every_rotten_byte_below_the_mark_in_the_write_segment_is_rot_after_an_unclean_stop() -> None:
    disk = Disk()
    log = open_log(disk)
    sizes = [
        log.append_payload(encode_records([str(k) * 30]), count=1, kind=Kind.RECORDS, epoch=0).size for k in range(4)
    ]
    log.flush()
    for position in range(64, 64 + sum(sizes)):
        disk.flip_bit(FIRST, position)
        with pytest.raises(LogRotten) as error:
            open_log(disk)
        assert error.value.file == FIRST.removeprefix("log/")
        assert error.value.position <= position < error.value.position + sizes[0]
        disk.flip_bit(FIRST, position)
    assert open_log(disk).bounds == (0, 4)


def test_every_rotten_byte_above_the_mark_cuts_the_tail_there() -> None:
    for place in range(0, 200, 3):
        disk = Disk()
        log = open_log(disk)
        log.append(["durable"])
        log.flush()
        start = 64 + log.size
        sizes = [
            log.append_payload(encode_records([str(k) * 30]), count=1, kind=Kind.RECORDS, epoch=0).size
            for k in range(3)
        ]
        log.begin_flush()
        disk.flip_bit(FIRST, start + place)
        kept = sum(1 for k in range(3) if sum(sizes[: k + 1]) <= place)
        assert open_log(disk).bounds == (0, 1 + kept)


def test_a_torn_tail_below_what_the_mark_says_is_never_cut() -> None:
    disk = Disk()
    log = open_log(disk)
    log.append(["a" * 600])
    log.append(["b" * 600])
    log.flush()
    content = disk.content(FIRST)
    disk.replace(FIRST, content[:900] + bytes(len(content) - 900))
    with pytest.raises(LogRotten):
        open_log(disk)


def test_the_mark_of_a_clean_stop_must_fit_the_store() -> None:
    disk = sealed_disk()
    name = stores(disk)[-1]
    content = disk.content(name)
    disk.replace(name, content[:64] + bytes(len(content) - 64))
    with pytest.raises(LogRotten):
        open_log(disk)


def delete_index(disk: Disk, name: str) -> None:
    disk.delete(name)


def empty_index(disk: Disk, name: str) -> None:
    disk.replace(name, b"")


def short_index(disk: Disk, name: str) -> None:
    disk.replace(name, disk.content(name)[:-16])


def torn_index(disk: Disk, name: str) -> None:
    disk.replace(name, disk.content(name)[:-20] + bytes(20))


def cut_index(disk: Disk, name: str) -> None:
    disk.replace(name, disk.content(name)[:-5])


def other_index(disk: Disk, name: str) -> None:
    disk.replace(name, disk.content(next(other for other in indexes(disk) if other != name)))


def zero_index(disk: Disk, name: str) -> None:
    disk.replace(name, bytes(len(disk.content(name))))


def wrong_positions(disk: Disk, name: str) -> None:
    content = bytearray(disk.content(name))
    for place in range(16 + 12, len(content) - 16, 16):
        content[place] ^= 0x55
    disk.replace(name, bytes(content))


def wrong_relatives(disk: Disk, name: str) -> None:
    content = bytearray(disk.content(name))
    for place in range(16 + 4, len(content) - 16, 16):
        content[place] ^= 1
    disk.replace(name, bytes(content))


def damaged_version(disk: Disk, name: str) -> None:
    content = bytearray(disk.content(name))
    content[12] ^= 2
    disk.replace(name, bytes(content))


def earlier_version(disk: Disk, name: str) -> None:
    content = bytearray(disk.content(name))
    content[12] = 0
    disk.replace(name, bytes(content[:-16]))


@pytest.mark.parametrize(
    "spoil",
    [
        damaged_version,
        earlier_version,
        delete_index,
        empty_index,
        short_index,
        torn_index,
        cut_index,
        other_index,
        zero_index,
        wrong_positions,
        wrong_relatives,
    ],
    ids=lambda spoil: spoil.__name__,
)
@pytest.mark.parametrize("when_open", [False, True])
def test_a_wrong_index_file_is_rebuilt_and_every_record_found(
    spoil: Callable[[Disk, str], None], when_open: bool
) -> None:
    disk = sealed_disk()
    right = {name: disk.content(name) for name in indexes(disk)}
    log = open_log(disk)
    for name in right:
        spoil(disk, name)
    if not when_open:
        log = open_log(disk)
    assert [log.read(k).value for k in range(1, 61)] == [str(k) * 60 for k in range(60)]
    assert [epoch for epoch, _ in log.epochs] == list(range(7))
    if when_open:
        log.close()
        open_log(disk)
    assert {name: disk.content(name) for name in right} == right


def test_an_index_that_a_later_version_wrote_is_refused_by_name_and_left_as_it_is() -> None:
    disk = sealed_disk()
    name = indexes(disk)[1]
    later = bytearray(disk.content(name))
    later[12] = 2
    disk.replace(name, bytes(later) + bytes(range(16)))
    before = {name: disk.content(name) for name in indexes(disk)}
    with pytest.raises(UnknownVersion) as refusal:
        open_log(disk)
    assert (refusal.value.file, refusal.value.version) == (name.removeprefix("log/"), 2)
    assert {name: disk.content(name) for name in indexes(disk)} == before


def test_leftovers_of_a_crash_in_a_rotation_are_removed() -> None:
    disk = sealed_disk()
    disk.replace("log/00000000000000000061.store.new", b"half a header")
    disk.replace("log/00000000000000000077.index", b"an index alone")
    disk.replace("log/notes.txt", b"not ours")
    open_log(disk)
    names = disk.names("log")
    assert "00000000000000000061.store.new" not in names
    assert "00000000000000000077.index" not in names
    assert "notes.txt" in names


def test_stale_bytes_in_preallocated_space_do_not_come_back() -> None:
    disk = Disk()
    log = open_log(disk)
    for k in range(8):
        log.append([str(k) * 40])
    log.flush()
    raw, _ = log.read_frames(4, 1)
    log.truncate(4)
    # The same frame again: the frames that followed it were cut, and would join the chain.
    log.append_frames(raw)
    log.flush()
    disk.lose_power(Keep.EVERYTHING)
    assert open_log(disk).bounds == (0, 5)


@pytest.mark.parametrize("standalone", [True, False])
def test_the_mark_carries_a_commit_index_that_is_never_above_durable_index(standalone: bool) -> None:
    disk = Disk()
    log = open_log(disk, standalone=standalone)
    for k in range(5):
        log.append([k])
    log.mark.commit_index = 4
    log.flush()
    log.append([5])
    log.mark.commit_index = 6
    sync = log.mark_sync.begin()
    assert sync is not None
    sync.run()
    log.mark_sync.end(sync)
    assert log.mark_sync.begin() is None
    disk.lose_power(Keep.NOTHING)
    reopened = open_log(disk, standalone=standalone)
    assert reopened.mark_commit_index == 5
    reopened.truncate(3)
    assert open_log(disk, standalone=standalone).mark_commit_index == 3


def test_a_mark_sync_is_due_when_only_commit_index_moved() -> None:
    disk = Disk()
    log = open_log(disk, standalone=False)
    log.append([1])
    log.flush()
    sync = log.mark_sync.begin()
    assert sync is not None
    sync.run()
    log.mark_sync.end(sync)
    log.mark.commit_index = 1
    assert log.mark_sync.begin() is not None


def test_between_two_syncs_of_the_mark_only_one_slot_is_written() -> None:
    disk = Disk()
    log = open_log(disk)

    def slots() -> tuple[bytes, bytes]:
        content = disk.content("mark")
        return content[:64], content[4096:4160]

    changed: list[set[int]] = []
    for _ in range(4):
        sync = log.mark_sync.begin()
        if sync is not None:
            sync.run()
            log.mark_sync.end(sync)
        written: set[int] = set()
        for k in range(3):
            before = slots()
            log.append([k])
            log.flush()
            written |= {number for number in (0, 1) if slots()[number] != before[number]}
        changed.append(written)
    assert [len(written) for written in changed] == [1, 1, 1, 1]
    assert changed[0] == changed[2] != changed[1] == changed[3]


def test_a_log_with_many_segments_opens_without_reading_them_whole() -> None:
    disk = Disk()
    log = open_log(disk, LogOptions(segment_bytes=20_000, index_interval_bytes=1000))
    for k in range(400):
        log.append([bytes(900)], epoch=k // 150)
    log.close()
    read = 0
    original = type(disk.directory().child("log").open(stores(disk)[0].removeprefix("log/"))).read_at

    def counting(self: object, position: int, length: int) -> bytes:
        nonlocal read
        data = original(self, position, length)  # type: ignore[arg-type]
        read += len(data)
        return data

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("quire.log.simulated.faulty.FaultyStorage.read_at", counting)
        reopened = open_log(disk, LogOptions(segment_bytes=20_000, index_interval_bytes=1000))
    assert len(reopened.segments.bases) == 20
    assert read < 20 * 6000 + 30_000
    assert reopened.epochs == [(0, 0), (1, 150), (2, 300)]


def test_while_the_mark_is_synced_a_newer_one_waits_and_then_goes_to_the_other_slot() -> None:
    disk = Disk()
    log = open_log(disk)
    log.append([1])
    log.flush()
    sync = log.mark_sync.begin()
    assert sync is not None
    before = disk.content("mark")
    log.append([2])
    log.flush()
    assert disk.content("mark") == before
    assert log.mark_sync.begin() is None
    sync.run()
    log.mark_sync.end(sync)
    after = disk.content("mark")
    changed = {
        number for number, place in enumerate((0, 4096)) if before[place : place + 64] != after[place : place + 64]
    }
    winner = max((0, 4096), key=lambda place: before[place + 8 : place + 16][::-1])
    assert changed == {0 if winner == 4096 else 1}


@pytest.mark.parametrize("found_by", ["read", "stream", "read_frames"])
def test_a_log_that_found_rot_does_not_mark_a_clean_stop(found_by: str) -> None:
    disk = Disk()
    log = open_log(disk)
    log.append(["a" * 60])
    log.flush()
    disk.flip_bit("log/00000000000000000000.store", 64 + 70)
    reads: dict[str, Callable[[], object]] = {
        "read": lambda: log.read(0),
        "stream": lambda: list(log.reader.stream(0, 1)),
        "read_frames": lambda: log.read_frames(0, 100),
    }
    with pytest.raises(FrameCorrupt):
        reads[found_by]()
    log.close()
    # The next open checks the write segment frame by frame, and refuses.
    with pytest.raises(LogRotten) as error:
        open_log(disk)
    assert (error.value.file, error.value.position) == ("00000000000000000000.store", 64)


def test_a_first_segment_that_is_missing_has_expired_for_all_that_the_log_can_know() -> None:
    disk = sealed_disk()
    missing_first(disk)
    log = open_log(disk)
    with pytest.raises(IndexExpired):
        log.read(0)


def torn_disk() -> tuple[Disk, list[int]]:
    """Return a disk with five frames above the mark, and where they begin in the first store."""
    disk = Disk()
    log = open_log(disk)
    starts: list[int] = []
    for k in range(5):
        starts.append(64 + log.size)
        log.append([k] * 20)
    starts.append(64 + log.size)
    flush = log.begin_flush()
    assert flush is not None
    disk.lose_power(Keep.EVERYTHING)
    return disk, starts


def test_opening_says_how_many_bytes_it_cut_off() -> None:
    disk, starts = torn_disk()
    disk.flip_bit(FIRST, starts[4] + 70)
    faults = verify(disk.directory()).faults
    log = open_log(disk)
    assert log.torn == Torn(FIRST.removeprefix("log/"), starts[4], starts[5] - starts[4], None)
    assert [(fault.kind, fault.reason.split(":")[0]) for fault in faults] == [
        ("torn", f"{starts[5] - starts[4]} bytes above the mark are not frames")
    ]
    log.close()
    assert open_log(disk).torn is None


@pytest.mark.parametrize("flipped", [0, 30, 57, 70])
def test_opening_says_so_if_valid_frames_follow_the_cut(flipped: int) -> None:
    disk, starts = torn_disk()
    disk.flip_bit(FIRST, starts[1] + flipped, 3)
    faults = verify(disk.directory()).faults
    log = open_log(disk)
    assert log.bounds == (0, 20)
    assert log.torn == Torn(FIRST.removeprefix("log/"), starts[1], starts[5] - starts[1], 40)
    assert "a valid frame of index 40 follows" in faults[0].reason


def test_a_log_whose_end_is_zeros_alone_has_lost_nothing_to_opening() -> None:
    disk = sealed_disk(clean=False)
    assert open_log(disk).torn is None


def test_what_is_kept_in_segments_after_the_mark_s_is_written_again_and_synced() -> None:
    disk = sealed_disk(clean=False)
    kept = stores(disk)
    log = open_log(disk)
    frames = all_frames(log)
    # A truncation is interrupted once its mark is durable: the mark is in the second segment, all others are there.
    disk.failing = lambda operation, _: operation == "remove"
    with pytest.raises(LogReadOnly):
        log.truncate(log.segments.bases[1] + 1)
    disk.failing, disk.journal = None, []
    log = open_log(disk)
    assert all_frames(log) == frames
    for store in kept[1:]:
        name = store.removeprefix("log/")
        steps = [operation for operation, file in disk.journal if file == name]
        assert steps.index("write") < steps.index("sync"), name
    assert ("write", kept[0].removeprefix("log/")) not in disk.journal
