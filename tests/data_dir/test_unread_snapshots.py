"""A start whose class does not read the newest snapshot: from an older one if the log joins both; no log is lost."""

from collections.abc import Iterable

import pytest

from quire.log import Tail
from quire.log.simulated import Disk
from quire.sm import ApplyFailed, ArithmeticMachine, Sessions, snapshot_name, write_snapshot

from .voters import EPOCH, lose, opened, voter

INDICES = (111, 211)
CODE = bytes(range(32))


class Reading(ArithmeticMachine):
    """A class that reads so many of the snapshots that it gets, the last ones."""

    fails = 1

    def restore(self, chunks: Iterable[bytes]) -> None:
        type(self).fails -= 1
        if self.fails >= 0:
            raise ValueError("not enough values to unpack")
        super().restore(chunks)


def reading_after(fails: int) -> type[Reading]:
    """A class whose `restore` raises so many times."""
    return type("Reading", (Reading,), {"fails": fails})


@pytest.mark.parametrize(("fails", "from_index"), [(1, INDICES[0]), (2, 0)])
def test_a_log_that_joins_an_older_snapshot_or_begins_at_0_is_applied_from_there(fails: int, from_index: int) -> None:
    disk = voter(snapshots=True)
    expected = opened(disk.fork()).restore(ArithmeticMachine, Sessions)
    data_dir = opened(disk)
    applier = data_dir.restore(reading_after(fails), Sessions, CODE)
    assert data_dir.log is not None
    assert (applier.applied_index, applier.failure, data_dir.snapshots.indices) == (from_index, None, list(INDICES))
    assert applier.unproven is not None
    assert (applier.unproven.index, applier.unproven.digest) == (INDICES[1], expected.digest)
    for frame in data_dir.log.reader.stream(from_index, data_dir.log.durable_index):
        applier.apply(frame)
    for frame in data_dir.log.reader.stream(INDICES[1], data_dir.log.durable_index):
        expected.apply(frame)
    assert applier.boundary == expected.boundary
    with pytest.raises(ApplyFailed, match="unproven"):
        applier.state()


def test_the_snapshots_of_a_start_name_its_code_to_the_next_one_that_does_not_read_them() -> None:
    disk = voter()
    data_dir = opened(disk)
    applier = data_dir.restore(ArithmeticMachine, Sessions, CODE)
    assert data_dir.log is not None
    for frame in data_dir.log.reader.stream(0, data_dir.log.durable_index):
        applier.apply(frame)
    store, index = data_dir.snapshots, applier.applied_index
    write_snapshot(store.begin(index), store.owner, applier.boundary, applier.content())
    store.complete(index)
    data_dir.close()

    told = opened(disk).restore(reading_after(1), Sessions, bytes(32)).unproven

    assert f"which arithmetic version 1 wrote with code {CODE.hex()[:12]}, raised ValueError: not enough" in str(told)


def test_a_snapshot_that_an_interrupted_install_left_begins_the_log_though_the_class_does_not_read_it() -> None:
    """An older one, which the log that was to be replaced joins, must not be used: its log is not the leader's."""
    disk = voter(snapshots=True)
    data_dir = opened(disk)
    applier = data_dir.restore(ArithmeticMachine, Sessions)
    store, tail = data_dir.snapshots, Tail(500, EPOCH, applier.boundary.tail.timestamp, 7)
    write_snapshot(store.begin(500), store.owner, applier.boundary._replace(tail=tail), applier.content())
    store.complete(500)
    data_dir.close()

    data_dir = opened(disk)
    applier = data_dir.restore(reading_after(1), Sessions)

    assert data_dir.log is not None
    assert (applier.applied_index, data_dir.log.bounds) == (500, (500, 500))
    with pytest.raises(ApplyFailed, match="applying stopped at index 500: restore of the snapshot there, which arith"):
        applier.state()


def test_an_older_snapshot_that_is_damaged_is_quarantined_and_the_log_is_applied_from_its_beginning() -> None:
    disk: Disk = voter(snapshots=True)
    older = f"snapshots/{snapshot_name(INDICES[0])}/00000000.chunk"
    lose(disk, older)
    data_dir = opened(disk)
    applier = data_dir.restore(reading_after(1), Sessions)
    assert (applier.applied_index, applier.unproven is None) == (0, False)
    assert data_dir.snapshots.indices == [INDICES[1]]
