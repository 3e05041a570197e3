"""The promise file: two slots, both durable before a promise is answered, and what a crash or rot leaves of them."""

import errno
import struct
from pathlib import Path

import pytest
from crc32c import crc32c

from quire.log import DiskFull, MemoryDirectory, UnknownVersion
from quire.log.simulated import faulty
from quire.replication import Promise, PromiseFile, PromiseLost, Witnesses
from quire.replication.core.messages import NO_PROMISE
from tests.golden.make_promise import DISK_ID, GOLDEN, PROMISE, write_promise

FIRST, SECOND = Promise(4, "n1", 11), Promise(7, "n2", 2**64 - 1)
LONGEST = Promise(2**63 - 1, "a" * 24, 2**64 - 1)
SLOTS = (0, 4096)
SLOT_BYTES = 64


def created(disk: faulty.Disk) -> PromiseFile:
    return PromiseFile.create(disk.directory(), DISK_ID)


def reopened(disk: faulty.Disk) -> Promise | None:
    """What a restart reads; None where no slot is valid."""
    try:
        return PromiseFile.open(disk.directory(), DISK_ID).promise
    except PromiseLost:
        return None


def spoil(disk: faulty.Disk, *slots: int) -> None:
    for slot in slots:
        disk.flip_bit("promise", SLOTS[slot] + 20)


def test_a_new_disk_has_promised_nothing_and_has_an_id() -> None:
    disk = faulty.Disk()
    created(disk)
    disk.lose_power(faulty.Keep.NOTHING)

    promises = PromiseFile.open(disk.directory())

    assert (promises.promise, promises.disk_id) == (NO_PROMISE, DISK_ID)


@pytest.mark.parametrize("promise", [FIRST, SECOND, LONGEST])
def test_a_written_promise_survives_the_loss_of_power_in_both_slots(promise: Promise) -> None:
    disk = faulty.Disk()
    created(disk).write(promise)
    disk.lose_power(faulty.Keep.NOTHING)

    for rotten in (0, 1):
        again = faulty.Disk()
        again.replace("promise", disk.content("promise"))
        spoil(again, rotten)
        assert reopened(again) == promise


def test_both_slots_are_synced_one_after_the_other() -> None:
    disk = faulty.Disk()
    promises = created(disk)
    disk.journal.clear()

    promises.write(FIRST)

    assert disk.journal == [("write", "promise"), ("sync", "promise")] * 2


@pytest.mark.parametrize("keep", list(faulty.Keep))
@pytest.mark.parametrize("step", range(4))
def test_a_write_stopped_at_any_step_leaves_the_old_promise_or_the_new_one(step: int, keep: faulty.Keep) -> None:
    for seed in range(8):
        disk = faulty.Disk(seed)
        promises = created(disk)
        promises.write(FIRST)
        disk.on_power_loss = keep
        disk.stop_before = disk.operations + 1 + step

        with pytest.raises(faulty.PowerLoss):
            promises.write(SECOND)

        held = reopened(disk)
        assert held in (FIRST, SECOND)
        if step >= 2:
            assert held == SECOND  # the first slot was synced


@pytest.mark.parametrize("step", range(4))
def test_a_slot_torn_at_any_step_leaves_the_other_one(step: int) -> None:
    # A sector is old or new; a rotten one is neither. While one slot is being written the other is whole.
    disk = faulty.Disk()
    promises = created(disk)
    promises.write(FIRST)
    disk.on_power_loss = faulty.Keep.EVERYTHING
    disk.stop_before = disk.operations + 1 + step
    with pytest.raises(faulty.PowerLoss):
        promises.write(SECOND)

    spoil(disk, 0 if step < 2 else 1)

    assert reopened(disk) == (FIRST if step < 2 else SECOND)


@pytest.mark.parametrize("step", range(6))
def test_a_creation_stopped_at_any_step_leaves_no_promise_or_the_empty_one(step: int) -> None:
    for seed in range(8):
        disk = faulty.Disk(seed)
        directory = disk.directory()
        disk.stop_before = disk.operations + 1 + step
        with pytest.raises(faulty.PowerLoss):
            PromiseFile.create(directory, DISK_ID)

        if "promise" in disk.names():
            assert reopened(disk) in (None, NO_PROMISE)


def test_the_last_promise_is_durable_again_before_a_restarted_node_answers() -> None:
    # A killed process leaves what it wrote in the page cache, and nobody knows whether it was synced.
    disk = faulty.Disk()
    promises = created(disk)
    disk.stop_before = None
    disk.failing = lambda operation, name: operation == "sync"
    with pytest.raises(OSError, match="injected"):
        promises.write(SECOND)
    disk.failing = None

    held = reopened(disk)
    disk.lose_power(faulty.Keep.NOTHING)

    assert reopened(disk) == held


def test_the_name_of_a_new_file_is_durable_before_a_restarted_node_tells_its_disk_id() -> None:
    # Killed between the slots' syncs and the folder's: the file is whole, but a loss of power would take its name.
    disk = faulty.Disk()
    directory = disk.directory()
    storage = directory.create("promise")
    storage.write_at(0, golden())
    storage.sync()

    told = PromiseFile.open(disk.directory()).disk_id
    disk.lose_power(faulty.Keep.NOTHING)

    assert disk.names() == ["promise"]
    assert PromiseFile.open(disk.directory()).disk_id == told


def test_the_highest_epoch_wins_and_of_equals_the_first_slot() -> None:
    def slots(first: Promise, second: Promise) -> bytes:
        contents = [faulty.Disk(), faulty.Disk()]
        for disk, promise in zip(contents, (first, second), strict=True):
            created(disk).write(promise)
        return contents[0].content("promise")[:4096] + contents[1].content("promise")[4096:]

    for first, second, winner in (
        (FIRST, SECOND, SECOND),
        (SECOND, FIRST, SECOND),
        (Promise(7, "n1", 3), SECOND, Promise(7, "n1", 3)),
    ):
        disk = faulty.Disk()
        disk.replace("promise", slots(first, second))
        assert reopened(disk) == winner


def test_without_a_valid_slot_nothing_is_known_of_what_was_promised() -> None:
    disk = faulty.Disk()
    created(disk).write(FIRST)
    spoil(disk, 0, 1)
    rotten = disk.content("promise")

    assert reopened(disk) is None
    assert disk.content("promise") == rotten


def test_a_promise_file_of_another_disk_is_refused() -> None:
    disk = faulty.Disk()
    created(disk)

    with pytest.raises(PromiseLost, match=DISK_ID.hex()):
        PromiseFile.open(disk.directory(), bytes(16))


@pytest.mark.parametrize("epoch", [2**63, 2**64 - 1])
def test_a_promise_of_an_epoch_that_cannot_be_is_refused_and_nothing_is_written(epoch: int) -> None:
    disk = faulty.Disk()
    created(disk).write(Promise(epoch, "n1", 1))
    before = disk.content("promise")

    with pytest.raises(PromiseLost, match=f"holds epoch {epoch}, and none is at or above 2\\^63"):
        PromiseFile.open(disk.directory(), DISK_ID)
    with pytest.raises(PromiseLost, match=f"holds epoch {epoch}"):
        PromiseFile.read(disk.directory())
    assert disk.content("promise") == before


# Golden bytes


def golden() -> bytes:
    return Path(GOLDEN).read_bytes()


def with_golden(content: bytes) -> MemoryDirectory:
    directory = MemoryDirectory()
    directory.create("promise").write_at(0, content)
    return directory


def test_the_promise_file_has_the_golden_bytes() -> None:
    assert write_promise() == golden()


def test_the_golden_promise_file_opens() -> None:
    promises = PromiseFile.open(with_golden(golden()))
    assert (promises.promise, promises.disk_id) == (PROMISE, DISK_ID)


def test_a_promise_slot_has_its_fields_where_the_design_says() -> None:
    for position in SLOTS:
        slot = golden()[position : position + SLOT_BYTES]
        crc, version, epoch = struct.unpack_from("<IIQ", slot)
        assert (crc, version, epoch) == (crc32c(slot[4:]), 1, PROMISE.epoch)
        assert slot[16:40] == PROMISE.candidate.encode().ljust(24, b"\0")
        assert struct.unpack_from("<Q", slot, 40) == (PROMISE.incarnation,)
        assert slot[48:] == DISK_ID


@pytest.mark.parametrize("position", SLOTS)
def test_an_unknown_version_of_the_promise_is_refused_by_name(position: int) -> None:
    content = bytearray(golden())
    content[position + 4 : position + 8] = struct.pack("<I", 2)
    checked = crc32c(bytes(content[position + 4 : position + SLOT_BYTES]))
    content[position : position + 4] = struct.pack("<I", checked)

    with pytest.raises(UnknownVersion) as refusal:
        PromiseFile.open(with_golden(bytes(content)))

    assert (refusal.value.file, refusal.value.version) == ("promise", 2)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT], ids=errno.errorcode.get)
@pytest.mark.parametrize("stop", [1, 2, 3, 4])
def test_a_promise_that_an_overwrite_finds_no_room_for_is_not_made_and_can_be_made_later(stop: int, error: int) -> None:
    """The third and fourth write are the witnesses'."""
    disk = faulty.Disk(seed=stop)
    directory = disk.directory()
    promises = PromiseFile.create(directory, DISK_ID)
    promises.witnesses = Witnesses(directory, DISK_ID)
    promises.write(FIRST)
    promises.witnesses.settle(FIRST.epoch, None)
    done = 0

    def failing(operation: str, _: str) -> int:
        nonlocal done
        done += operation == "write"
        return error if operation == "write" and done == stop else 0

    disk.failing = failing
    with pytest.raises(DiskFull):
        promises.write(SECOND)
    disk.failing = None
    assert promises.promise == FIRST
    crashed = disk.fork()
    crashed.lose_power(faulty.Keep.SOME)
    assert reopened(crashed) in (FIRST, SECOND)

    promises.write(SECOND)

    disk.lose_power(faulty.Keep.NOTHING)
    assert reopened(disk) == SECOND
    assert Witnesses(disk.directory(), DISK_ID).known.promised_epoch == SECOND.epoch
