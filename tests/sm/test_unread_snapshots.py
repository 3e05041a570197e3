"""A whole snapshot that the class does not read: who wrote it is told, and an older one is used if it proves itself."""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

import pytest

from quire.log.simulated import Disk
from quire.sm import (
    Applier,
    ApplyFailed,
    ArithmeticMachine,
    Context,
    Sessions,
    SnapshotDamaged,
    restore_newest,
    snapshot_name,
    write_snapshot,
)
from quire.sm.errors import GIVE_CODE, RESTART, StateUnproven
from quire.sm.snapshots.store import CODE_NAME
from tests.sm.test_snapshot_store import CHUNK_BYTES, OWNER, Machine, indices, opened, three_snapshots


class Later(ArithmeticMachine):
    """Whose snapshots have another shape than an earlier class reads."""

    def snapshot(self) -> Iterator[bytes]:
        yield b"later,"
        yield from super().snapshot()


class Earlier(ArithmeticMachine):
    """Which does not read that shape."""

    def restore(self, chunks: Iterable[bytes]) -> None:
        state = b"".join(chunks)
        if state.startswith(b"later,"):
            _, *_ = state[:0]  # "not enough values to unpack"
        super().restore([state])


class Both(ArithmeticMachine):
    """Which reads both shapes."""

    def restore(self, chunks: Iterable[bytes]) -> None:
        super().restore([b"".join(chunks).removeprefix(b"later,")])


def taken_by_both(disk: Disk) -> tuple[Machine, list[int]]:
    """A snapshot of the earlier shape, then one of the later."""
    machine = Machine()
    machine.add()
    taken = [machine.snapshot(opened(disk))]
    machine.add()
    machine.applier.machine = Later(machine.applier.state())
    return machine, [*taken, machine.snapshot(opened(disk))]


def replayed(applier: Applier, machine: Machine, to: int) -> None:
    """Apply what the machine's log has up to an index."""
    for frame in machine.written:
        if applier.applied_index <= frame.header.index < to:
            applier.apply(frame)


def test_a_restore_that_raises_is_told_with_its_line_and_who_wrote_the_snapshot() -> None:
    disk = Disk()
    _, taken = taken_by_both(disk)

    applier = restore_newest(opened(disk), Earlier, Sessions, lambda tail: tail.index > taken[0])

    wrote = f"which arithmetic version 1 wrote with code {OWNER.code.hex()[:12]}"
    raised = "raised ValueError: not enough values to unpack (expected at least 1, got 0)"
    at = re.escape(__file__)
    assert re.fullmatch(
        rf"applying stopped at index {taken[1]}: restore of the snapshot there, {wrote}, {re.escape(raised)} at"
        rf" {at}:\d+; {re.escape(GIVE_CODE)}",
        str(applier.failure),
    )
    # It holds what others must hear of: where it is, the digest there; and the tables, which are no machine's.
    manifest = opened(disk).manifests[-1]
    assert (applier.boundary, list(applier.sessions.replies)) == (manifest.boundary, [1])
    with pytest.raises(ApplyFailed):
        applier.query(None)
    # And nothing was moved: a class that reads both goes on from there.
    assert restore_newest(opened(disk), Both, Sessions).state() == "62"


def test_where_the_log_joins_an_older_snapshot_its_state_is_unproven_up_to_the_digest_of_the_one_not_read() -> None:
    disk = Disk()
    machine, taken = taken_by_both(disk)
    for from_index in (taken[0], 0):
        store = opened(disk)
        if from_index == 0:
            store.remove(taken[0])
        applier = restore_newest(store, Earlier, Sessions)
        assert (applier.applied_index, applier.failure) == (from_index, None)
        assert f"the log is applied from index {from_index} instead" in str(applier.unproven)
        with pytest.raises(StateUnproven, match=f"the state is unproven since index {taken[1]}: restore of the snap"):
            applier.state()
        replayed(applier, machine, taken[1])
        assert (applier.digest, applier.failure) == (machine.applier.digest, None)
        with pytest.raises(StateUnproven):  # Until a majority of the voters has it, too.
            applier.content()


def test_a_log_that_gives_another_digest_than_the_snapshot_that_is_not_read_stops_there() -> None:
    class Other(Earlier):
        def apply_batch(self, commands: Sequence[object], contexts: Sequence[Context]) -> list[object]:
            return ["other" for _ in super().apply_batch(commands, contexts)]

    disk = Disk()
    machine, taken = taken_by_both(disk)
    applier = restore_newest(opened(disk), Other, Sessions)
    with pytest.raises(ApplyFailed, match=rf"applying stopped at index {taken[1]}: applied from index {taken[0]}, the"):
        replayed(applier, machine, taken[1])
    with pytest.raises(ApplyFailed, match="applying stopped"):
        applier.state()


def test_a_log_that_does_not_join_the_snapshot_that_is_not_read_begins_anew_there() -> None:
    """An install was interrupted before the log's reset: what an older snapshot needs is still there, and stale."""
    disk = Disk()
    _, taken = taken_by_both(disk)
    applier = restore_newest(opened(disk), Earlier, Sessions, lambda tail: tail.index <= taken[0])
    assert (applier.applied_index, applier.failure is None) == (taken[1], False)


def test_without_memory_no_older_snapshot_is_tried_and_a_restart_is_advised() -> None:
    class Large(ArithmeticMachine):
        def restore(self, chunks: Iterable[bytes]) -> None:
            raise MemoryError

    disk = Disk()
    _, taken = three_snapshots(disk)
    applier = restore_newest(opened(disk), Large, Sessions)
    assert applier.applied_index == taken[-1]
    assert str(applier.failure).endswith(RESTART)


@pytest.mark.parametrize("damaged", [1, 2])
@pytest.mark.parametrize("own_error", [False, True])
def test_damage_is_found_whatever_a_restore_makes_of_it(damaged: int, own_error: bool) -> None:
    """One that stops early, or that raises its own error instead of what the chunks raised."""

    class Careless(ArithmeticMachine):
        def restore(self, chunks: Iterable[bytes]) -> None:
            try:
                for _ in itertools.islice(chunks, 2):
                    pass
            except SnapshotDamaged:
                raise ValueError("not a snapshot") from None
            if own_error:
                raise ValueError("not a snapshot")

    disk, machine = Disk(), Machine()
    store = opened(disk)
    index = machine.applier.applied_index
    pieces = [*list(machine.applier.content())[:-1], b"9" * 3 * CHUNK_BYTES]
    write_snapshot(store.begin(index), OWNER, machine.applier.boundary, pieces, chunk_bytes=CHUNK_BYTES)
    name = snapshot_name(store.complete(index).index)
    path = f"snapshots/{name}/{len(store.manifests[0].chunks) - damaged:08d}.chunk"
    disk.replace(path, b"\xff" + disk.content(path)[1:])

    store = opened(disk)
    assert restore_newest(store, Careless, Sessions).applied_index == 0
    assert [damage.snapshot for damage in store.damaged] == [name]


def test_a_damaged_file_of_the_code_leaves_the_snapshot_whole_and_its_code_unknown() -> None:
    disk = Disk()
    _, taken = taken_by_both(disk)
    path = f"snapshots/{snapshot_name(taken[1])}/{CODE_NAME}"
    whole = disk.content(path)
    for data in (b"", whole[:-1], whole[:-1] + b"\xff"):
        disk.replace(path, data)
        store = opened(disk)
        store.check_newest()
        assert "wrote with unknown code, raised" in str(restore_newest(store, Earlier, Sessions).unproven)
        assert (indices(store), store.damaged) == (taken, [])
