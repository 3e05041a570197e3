"""Snapshots on a disk that loses power: whole or not there, two kept, a damaged one set aside."""

import contextlib
import itertools
import random
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from crc32c import crc32c

from quire.log import (
    DiskFull,
    FileDirectory,
    Frame,
    MemoryDirectory,
    PayloadInvalid,
    ResourcesExhausted,
    UnknownVersion,
    check_containers,
)
from quire.log.simulated import Disk, Keep
from quire.sm import (
    Applier,
    ArithmeticMachine,
    Owner,
    Sessions,
    SnapshotDamaged,
    SnapshotForeign,
    SnapshotStore,
    restore_newest,
    snapshot_name,
    write_snapshot,
)
from quire.sm.snapshots import manifest as module
from quire.sm.snapshots.manifest import MAX_CHUNK_BYTES, Chunk, Manifest, decode_manifest
from quire.sm.snapshots.store import CODE_NAME
from tests.sm.frames import Frames

OWNER = Owner(bytes(range(16)), ("arithmetic", 1), bytes(range(32)))
CHUNK_BYTES = 40


class Machine:
    """An applier whose snapshots are a few chunks, and frames to feed it."""

    def __init__(self) -> None:
        self.frames = Frames()
        self.written: list[Frame] = []
        self.applier = Applier(ArithmeticMachine())
        self.states: dict[int, str] = {0: "42"}
        self.go_on(self.frames.system({"type": "epoch_start", "node_id": "n1"}))
        self.go_on(self.frames.system({"type": "open_session", "name": "a"}))
        self.sequence = 1

    def go_on(self, frame: Frame) -> None:
        self.written.append(frame)
        self.applier.apply(frame)
        self.states[self.applier.applied_index] = self.applier.state()

    def add(self, count: int = 10) -> None:
        self.go_on(self.frames.records([["add", 1]] * count, session=1, sequence=self.sequence))
        self.sequence += count

    def snapshot(self, store: SnapshotStore) -> int:
        """Take one, whole; return its index."""
        index = self.applier.applied_index
        write_snapshot(
            store.begin(index), store.owner, self.applier.boundary, self.applier.content(), chunk_bytes=CHUNK_BYTES
        )
        store.complete(index)
        store.retain()
        return index


def opened(disk: Disk) -> SnapshotStore:
    return SnapshotStore.open(disk.directory(), OWNER)


def restored(store: SnapshotStore) -> Applier:
    return restore_newest(store, ArithmeticMachine, Sessions)


def indices(store: SnapshotStore) -> list[int]:
    return [manifest.index for manifest in store.manifests]


def three_snapshots(disk: Disk) -> tuple[Machine, list[int]]:
    machine, store, taken = Machine(), opened(disk), []
    for _ in range(3):
        machine.add()
        taken.append(machine.snapshot(store))
    return machine, taken


def test_the_two_newest_snapshots_are_kept() -> None:
    disk = Disk()
    _, taken = three_snapshots(disk)
    disk.lose_power(Keep.NOTHING)
    assert indices(opened(disk)) == taken[1:]
    assert disk.names("snapshots") == [snapshot_name(index) for index in taken[1:]]


def test_a_snapshot_s_manifest_has_the_members_of_the_last_record_below_it() -> None:
    """Whose record has expired finds its members there; with those of genesis a removed disk would vote again."""
    disk, machine = Disk(), Machine()
    store = opened(disk)
    genesis = [["n1", bytes(16), "h:1", "voter"]]
    changed = [*genesis, ["n2", bytes(16), "h:2", "voter"]]
    machine.go_on(machine.frames.system({"type": "genesis", "members": genesis}))
    of_genesis = machine.snapshot(store)
    members_index = machine.applier.applied_index
    machine.go_on(machine.frames.system({"type": "members", "members": changed}))
    of_change = machine.snapshot(store)
    disk.lose_power(Keep.NOTHING)

    read = {manifest.index: manifest.boundary for manifest in opened(disk).manifests}
    assert (read[of_genesis].members_index, read[of_genesis].members) == (members_index - 1, genesis)
    assert (read[of_change].members_index, read[of_change].members) == (members_index, changed)
    assert opened(disk).members_of(members_index) == {"members": changed}
    assert restored(opened(disk)).boundary == read[of_change]


def test_a_pinned_snapshot_stays_until_it_is_not_pinned_any_more() -> None:
    disk = Disk()
    machine, store = Machine(), opened(disk)
    first = machine.snapshot(store)
    for _ in range(3):
        machine.add()
        index = machine.applier.applied_index
        write_snapshot(store.begin(index), OWNER, machine.applier.boundary, machine.applier.content())
        store.complete(index)
        store.retain([first])
    assert indices(store) == [first, *indices(store)[-2:]]
    store.retain()
    assert len(indices(store)) == 2


@pytest.mark.parametrize("keep", [Keep.NOTHING, Keep.SOME, Keep.EVERYTHING])
def test_a_snapshot_that_is_stopped_at_any_operation_is_whole_or_not_there(keep: Keep) -> None:
    """Write, rename, remove the oldest: the power fails at each operation, and again during the next start."""
    for seed in range(3 if keep is Keep.SOME else 1):
        stopped, stop = True, 0
        while stopped:
            disk = Disk(seed)
            machine, taken = three_snapshots(disk)
            store = opened(disk)
            machine.add()
            ends_before = disk.operations
            disk.stop_before, disk.on_power_loss = disk.operations + 1 + stop, keep
            stopped = ended_early(partial(machine.snapshot, store))
            disk.stop_before = None
            newest = machine.applier.applied_index
            if not stopped:
                assert disk.operations > ends_before + 10
            stop_again(disk.fork(), random.Random(stop), [*taken, newest])
            store = opened(disk)
            kept = indices(store)
            assert kept[-2:] in (taken[-2:], [taken[-1], newest]), (stop, kept)
            assert stopped or kept[-1] == newest
            applier = restored(store)
            assert applier.state() == machine.states[applier.applied_index]
            assert applier.applied_index == kept[-1]
            assert not store.damaged
            assert set(disk.names("snapshots")) == set(map(snapshot_name, kept))
            stop += 1


def ended_early(steps: Callable[[], object]) -> bool:
    try:
        steps()
    except Exception as error:
        if type(error).__name__ != "PowerLoss":
            raise
        return True
    return False


def stop_again(disk: Disk, chance: random.Random, possible: list[int]) -> None:
    """The start after a crash is stopped as well; the snapshots are still whole."""
    disk.stop_before, disk.on_power_loss = chance.randint(1, 6), Keep.SOME
    ended_early(lambda: opened(disk))
    disk.stop_before = None
    store = opened(disk)
    assert len(indices(store)) >= 2
    assert set(indices(store)) <= set(possible)
    assert not store.damaged


class Killed(Exception):
    """The process dies; the host keeps running, with its page cache."""


def test_what_counts_after_a_kill_counts_after_a_loss_of_power_too() -> None:
    for stop in itertools.count(1):
        disk = Disk()
        machine, _ = three_snapshots(disk)
        store = opened(disk)
        machine.add()
        ends = disk.operations + stop

        def killing(_operation: str, _name: str, disk: Disk = disk, ends: int = ends) -> bool:
            if disk.operations >= ends:
                raise Killed
            return False

        disk.failing = killing
        with contextlib.suppress(Killed):
            machine.snapshot(store)
        disk.failing = None
        counted = indices(opened(disk))

        disk.lose_power(Keep.NOTHING)

        assert indices(opened(disk)) == counted, f"killed at operation {stop}"
        if disk.operations < ends:
            assert stop > 10
            break


def test_every_rotten_byte_sets_the_newest_aside_and_the_older_one_is_used() -> None:
    disk = Disk()
    machine, taken = three_snapshots(disk)
    name = snapshot_name(taken[-1])
    for file in [file for file in disk.names(f"snapshots/{name}") if file != CODE_NAME]:
        for position in range(0, len(disk.content(f"snapshots/{name}/{file}")), 7):
            rotten = disk.fork()
            rotten.flip_bit(f"snapshots/{name}/{file}", position)
            store = opened(rotten)
            applier = restored(store)
            assert applier.applied_index == taken[-2], (file, position)
            assert applier.state() == machine.states[taken[-2]]
            assert [damage.snapshot for damage in store.damaged] == [name]
            # Set aside for good, with all its files, and never met again.
            aside = f"quarantine/snapshot-1-{name}"
            assert rotten.names(aside) == disk.names(f"snapshots/{name}")
            rotten.lose_power(Keep.NOTHING)
            again = opened(rotten)
            assert (indices(again), again.damaged) == ([taken[-2]], [])


@pytest.mark.parametrize("file", ["manifest", "00000000.chunk", "00000001.chunk"])
def test_a_snapshot_that_cannot_be_read_is_passed_over_until_the_next_start(file: str) -> None:
    disk = Disk()
    machine, taken = three_snapshots(disk)
    name = snapshot_name(taken[-1])
    disk.make_unreadable(f"snapshots/{name}/{file}", 3)

    store = opened(disk)

    assert restored(store).applied_index == taken[-2]
    [damage] = store.damaged
    assert damage.snapshot == name
    assert damage.reason.endswith(f"{file}: input/output error at byte 3")
    again = disk.fork()
    again.make_unreadable(f"snapshots/{name}/{file}", 0, 0)
    assert restored(opened(again)).applied_index == taken[-1]
    machine.snapshot(store)  # A new one in its place.
    assert indices(store) == taken[-2:]
    assert restored(opened(disk)).applied_index == taken[-1]
    assert file in disk.names(f"quarantine/snapshot-1-{name}")


@pytest.mark.parametrize("missing", ["manifest", "00000000.chunk", "00000001.chunk"])
def test_a_snapshot_that_lacks_a_file_is_set_aside(missing: str) -> None:
    disk = Disk()
    _, taken = three_snapshots(disk)
    disk.delete(f"snapshots/{snapshot_name(taken[-1])}/{missing}")
    store = opened(disk)
    assert restored(store).applied_index == taken[-2]
    assert [damage.snapshot for damage in store.damaged] == [snapshot_name(taken[-1])]


def test_a_read_of_a_snapshot_that_was_just_removed_makes_no_folder_and_sets_nothing_aside() -> None:
    disk = Disk()
    machine, store = Machine(), opened(disk)
    machine.snapshot(store)
    manifest = store.manifests[-1]
    store.remove_all([manifest.index])
    with pytest.raises(SnapshotDamaged, match="is missing") as raised:
        store.chunk(manifest, 0)
    assert disk.names("snapshots") == []
    store.quarantine(manifest.index, raised.value)
    assert store.damaged == []
    assert opened(disk).damaged == []


def test_without_a_whole_snapshot_the_machine_begins_anew() -> None:
    disk = Disk()
    _, taken = three_snapshots(disk)
    for index in taken[1:]:
        disk.flip_bit(f"snapshots/{snapshot_name(index)}/00000001.chunk", 3)
    store = opened(disk)
    applier = restored(store)
    assert (applier.applied_index, applier.state(), len(store.damaged)) == (0, "42", 2)


def test_two_snapshots_at_one_index_are_set_aside_one_beside_the_other() -> None:
    disk, machine, index = Disk(), Machine(), 2
    for _ in range(2):
        store = opened(disk)
        assert machine.snapshot(store) == index
        store.quarantine(index, SnapshotDamaged(snapshot=snapshot_name(index), reason="says the test"))
    assert disk.names("quarantine") == [f"snapshot-{number}-{snapshot_name(index)}" for number in (1, 2)]


@pytest.mark.parametrize(
    ("owner", "what"),
    [
        (OWNER._replace(cluster_id=bytes(16)), "is of cluster 0001"),
        (OWNER._replace(machine=("kv", 1)), "is of machine arithmetic version 1, not kv version 1"),
        (OWNER._replace(machine=("arithmetic", 2)), "is of machine arithmetic version 1, not arithmetic version 2"),
    ],
)
def test_a_snapshot_of_another_cluster_machine_or_version_is_refused_and_nothing_is_lost(
    owner: Owner, what: str
) -> None:
    disk = Disk()
    _, taken = three_snapshots(disk)
    before = disk.names("snapshots")
    with pytest.raises(SnapshotForeign, match=what):
        SnapshotStore.open(disk.directory(), owner)
    assert disk.names("snapshots") == before
    assert indices(opened(disk)) == taken[1:]


def test_a_snapshot_that_another_program_wrote_is_refused_by_name() -> None:
    disk = Disk()
    _, taken = three_snapshots(disk)
    path = f"snapshots/{snapshot_name(taken[-1])}/manifest"

    body = disk.content(path)[4:].replace(b"\xa7version\x01", b"\xa7version\x04")
    disk.replace(path, crc32c(body).to_bytes(4, "little") + body)
    with pytest.raises(UnknownVersion, match=f"snapshot {snapshot_name(taken[-1])} has format version 4"):
        opened(disk)


def test_a_state_that_the_machine_refuses_is_no_damage() -> None:
    """The bytes are undamaged, so the machine changed without its version: nothing is moved."""
    disk, machine = Disk(), Machine()
    store = opened(disk)
    index = machine.applier.applied_index
    pieces = [*list(machine.applier.content())[:-1], b"no number"]
    write_snapshot(store.begin(index), OWNER, machine.applier.boundary, pieces)
    store.complete(index)
    applier = restore_newest(opened(disk), ArithmeticMachine, Sessions, lambda _: False)
    assert (applier.failure is None, applier.applied_index) == (False, index)
    assert indices(opened(disk)) == [index]


def test_no_space_for_a_snapshot_is_an_error_of_its_own_and_nothing_is_lost() -> None:
    disk = Disk()
    machine, taken = three_snapshots(disk)
    machine.add()
    store = opened(disk)
    index = machine.applier.applied_index
    folder = store.begin(index)
    disk.full = True
    with pytest.raises(DiskFull):
        write_snapshot(folder, OWNER, machine.applier.boundary, machine.applier.content())
    disk.full = False
    store.abandon(index)
    assert indices(store) == taken[1:]
    assert disk.names("snapshots") == [snapshot_name(kept) for kept in taken[1:]]
    assert machine.snapshot(store) == index


def test_a_manifest_that_stands_elsewhere_does_not_count() -> None:
    store, machine = SnapshotStore.open(MemoryDirectory(), OWNER), Machine()
    write_snapshot(store.begin(9), OWNER, machine.applier.boundary, machine.applier.content())
    with pytest.raises(SnapshotDamaged, match="its manifest has index 2"):
        store.complete(9)
    assert indices(store) == []


def test_a_snapshot_is_the_same_however_it_is_cut_and_on_every_replica() -> None:
    sums = set()
    for chunk_bytes in (7, 40, 1 << 20):
        machine, folder = Machine(), MemoryDirectory()
        machine.add()
        applier = machine.applier
        manifest = write_snapshot(folder, OWNER, applier.boundary, applier.content(), chunk_bytes=chunk_bytes)
        file = folder.open("manifest")
        assert decode_manifest(file.read_at(0, file.size), "x") == manifest
        sums.add(manifest.sha256)
    assert len(sums) == 1


def test_a_chunk_may_be_as_large_as_the_limit_and_no_larger() -> None:
    def sized(size: int) -> bytes:
        return Manifest(
            OWNER.cluster_id, OWNER.machine, Machine().applier.boundary, (Chunk(size, 0),), bytes(32)
        ).encode()

    assert decode_manifest(sized(MAX_CHUNK_BYTES), "x").size == MAX_CHUNK_BYTES
    with pytest.raises(SnapshotDamaged, match="a chunk has an impossible size"):
        decode_manifest(sized(MAX_CHUNK_BYTES + 1), "x")


def test_a_manifest_may_hold_as_many_arrays_as_the_limit_and_not_one_more(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = Manifest(OWNER.cluster_id, OWNER.machine, Machine().applier.boundary, (Chunk(1, 0),) * 20, bytes(32)).encode()
    most = next(most for most in range(100) if _holds(raw[4:], most))
    monkeypatch.setattr(module, "MAX_MANIFEST_CONTAINERS", most)
    assert len(decode_manifest(raw, "x").chunks) == 20
    monkeypatch.setattr(module, "MAX_MANIFEST_CONTAINERS", most - 1)
    with pytest.raises(SnapshotDamaged, match=f"holds more than {most - 1} arrays and maps"):
        decode_manifest(raw, "x")


def _holds(packed: bytes, most: int) -> bool:
    try:
        check_containers(packed, most)
    except PayloadInvalid:
        return False
    return True


def test_a_damaged_snapshot_that_could_not_be_set_aside_is_not_taken_for_a_new_one_at_its_index() -> None:
    disk = Disk()
    machine, store = Machine(), opened(disk)
    machine.add()
    index = machine.snapshot(store)
    disk.failing = lambda operation, name: operation == "move"
    with pytest.raises(OSError, match="injected"):
        store.quarantine(index, SnapshotDamaged(snapshot=snapshot_name(index), reason="says the test"))
    disk.failing = None

    machine.snapshot(store)

    assert disk.names("snapshots") == [snapshot_name(index)], "the new one has the name, or both are there"


def remove(disk: Disk, path: str) -> None:
    disk.delete(path)


def truncate(disk: Disk, path: str) -> None:
    disk.replace(path, disk.content(path)[:-1])


def lengthen(disk: Disk, path: str) -> None:
    disk.replace(path, disk.content(path) + b"\0")


@pytest.mark.parametrize("harm", [remove, truncate, lengthen])
@pytest.mark.parametrize("file", ["manifest", "00000000.chunk", "00000001.chunk"])
@pytest.mark.parametrize("which", [0, 1])
def test_of_the_newest_one_that_lacks_a_file_or_has_another_size_is_set_aside(
    which: int, file: str, harm: Callable[[Disk, str], None]
) -> None:
    disk = Disk()
    _, taken = three_snapshots(disk)
    store, kept = opened(disk), taken[1:]
    name = snapshot_name(kept.pop(which))
    harm(disk, f"snapshots/{name}/{file}")
    for _ in range(2):
        store.check_newest()
        assert indices(store) == kept
        assert [(damage.snapshot, file in damage.reason) for damage in store.damaged] == [(name, True)]
    assert disk.names("snapshots") == [snapshot_name(index) for index in kept]
    assert disk.names("quarantine") == [f"snapshot-1-{name}"]


def test_newest_snapshots_that_are_whole_are_checked_without_a_change() -> None:
    disk = Disk()
    _, taken = three_snapshots(disk)
    store, operations = opened(disk), disk.operations
    store.check_newest()
    assert (indices(store), store.damaged) == (taken[1:], [])
    assert disk.operations == operations
    assert disk.open_files == 0


@pytest.mark.parametrize("harmed", [None, "00000001.chunk"])
def test_without_descriptors_nothing_is_said_of_the_newest(harmed: str | None) -> None:
    disk = Disk()
    _, taken = three_snapshots(disk)
    store = opened(disk)
    if harmed is not None:
        truncate(disk, f"snapshots/{snapshot_name(taken[-1])}/{harmed}")
    disk.exhausted = True
    with pytest.raises(ResourcesExhausted):
        store.check_newest()
    assert (indices(store), store.damaged) == (taken[1:], [])
    disk.exhausted = False
    store.check_newest()
    assert indices(store) == (taken[1:] if harmed is None else taken[1:-1])


@pytest.mark.parametrize("lost", [1, 2])
def test_an_older_snapshot_stays_while_one_of_the_two_newest_is_not_there(lost: int) -> None:
    disk = Disk()
    machine, store, taken = Machine(), opened(disk), list[int]()
    for _ in range(3):
        machine.add()
        taken.append(machine.applier.applied_index)
        write_snapshot(store.begin(taken[-1]), OWNER, machine.applier.boundary, machine.applier.content())
        store.complete(taken[-1])
    disk.delete(f"snapshots/{snapshot_name(taken.pop(lost))}")
    store.retain()
    assert indices(store) == taken
    assert disk.names("snapshots") == [snapshot_name(index) for index in taken]
    assert restored(opened(disk)).applied_index == taken[-1]


def test_a_snapshot_whose_folder_is_gone_is_forgotten_and_listed() -> None:
    disk = Disk()
    _, taken = three_snapshots(disk)
    store = opened(disk)
    disk.delete(f"snapshots/{snapshot_name(taken[-1])}")
    with pytest.raises(SnapshotDamaged, match="is missing") as raised:
        store.chunk(store.manifests[-1], 0)
    store.quarantine(taken[-1], raised.value)
    assert (indices(store), store.damaged) == ([taken[1]], [raised.value])
    assert "quarantine" not in disk.names()


def test_a_pinned_snapshot_that_somebody_removed_is_no_error_once_it_is_not_pinned_any_more() -> None:
    disk = Disk()
    machine, store = Machine(), opened(disk)
    first = machine.snapshot(store)
    for _ in range(2):
        machine.add()
        index = machine.applier.applied_index
        write_snapshot(store.begin(index), OWNER, machine.applier.boundary, machine.applier.content())
        store.complete(index)
    disk.delete(f"snapshots/{snapshot_name(first)}")
    store.retain()
    assert first not in indices(store)
    assert len(indices(store)) == 2


def test_the_removed_folder_of_snapshots_is_made_again_by_the_next_snapshot(tmp_path: Path) -> None:
    machine, store = Machine(), SnapshotStore.open(FileDirectory(tmp_path), OWNER)
    for _ in range(2):
        machine.add()
        machine.snapshot(store)
    shutil.rmtree(tmp_path / "snapshots")
    store.check_newest()
    assert (store.indices, len(store.damaged)) == ([], 2)
    machine.add()
    shutil.rmtree(tmp_path / "snapshots")
    index = machine.snapshot(store)
    assert store.indices == [index]
    assert restored(SnapshotStore.open(FileDirectory(tmp_path), OWNER)).applied_index == index


def test_a_removed_data_directory_is_not_made_again(tmp_path: Path) -> None:
    machine, store = Machine(), SnapshotStore.open(FileDirectory(tmp_path / "data"), OWNER)
    for _ in range(2):
        machine.add()
        machine.snapshot(store)
    shutil.rmtree(tmp_path / "data")
    with pytest.raises(FileNotFoundError):
        store.check_newest()
    with pytest.raises(FileNotFoundError):
        store.begin(machine.applier.applied_index + 1)
    assert not (tmp_path / "data").exists()


@pytest.mark.slow
def test_a_check_beside_snapshots_that_are_taken_and_removed_finds_nothing_lost(tmp_path: Path) -> None:
    machine, store = Machine(), SnapshotStore.open(FileDirectory(tmp_path), OWNER)
    ended = threading.Event()

    def check() -> int:
        checks = 0
        while not ended.is_set() or not checks:
            store.check_newest()
            checks += 1
        return checks

    with ThreadPoolExecutor(2) as threads:
        checking = [threads.submit(check) for _ in range(2)]
        try:
            for count in range(30):
                machine.add(1)
                machine.snapshot(store)
                if count % 10 == 9:
                    store.remove_all(store.indices[:-1])  # As behind an install.
        finally:
            ended.set()
        assert all(check.result() for check in checking)
    assert (len(store.indices), store.damaged) == (1, [])
