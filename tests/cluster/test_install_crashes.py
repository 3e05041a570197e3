"""The power goes at each step of an install: it ends whole, or starts again, and nothing goes back (rule 16)."""

from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from random import Random

import pytest

from quire.cluster.config.serve import ServeConfig
from quire.cluster.data_dir.data_dir import DataDir
from quire.cluster.data_dir.genesis import make_genesis
from quire.cluster.data_dir.identity import DataDirRefused
from quire.log import Kind, Log, LogOptions, ResourcesExhausted, Tail, encode_records
from quire.log.simulated import Disk, Keep, PowerLoss
from quire.replication import Disk as NodeDisk
from quire.replication import Member, Members, Role
from quire.replication.core.messages import Snapshot
from quire.replication.witnesses import WITNESS_FILES
from quire.sm import (
    Applier,
    ArithmeticMachine,
    Boundary,
    Manifest,
    Owner,
    Sessions,
    SnapshotPart,
    SnapshotStore,
    snapshot_name,
    write_snapshot,
)
from quire.sm.snapshots.store import chunk_name

OPTIONS = LogOptions(segment_bytes=4096, max_frame_bytes=2048)
S = 500
EPOCH = 7


class Leader:
    """Where a snapshot comes from."""

    def __init__(self, cluster_id: bytes) -> None:
        machine = ArithmeticMachine()
        machine.apply(["add", 1000], None)  # type: ignore[arg-type]
        boundary = Boundary(
            Tail(S, EPOCH, 1_800_000_000_000_000, 0xABCD), 0, [], ((0, 0), (1, 1), (EPOCH, 90)), bytes(16)
        )
        self.store = SnapshotStore.open(Disk().directory(), Owner(cluster_id, ("arithmetic", 1)))
        write_snapshot(self.store.begin(S), self.store.owner, boundary, Applier(machine).content(), chunk_bytes=2)
        self.manifest: Manifest = self.store.complete(S)


def new_applier(data_dir: DataDir) -> Applier:
    return data_dir.restore(ArithmeticMachine, Sessions)


def opened(disk: Disk) -> tuple[DataDir, Applier]:
    data_dir = DataDir.open_directory(disk.directory(), "n1", OPTIONS)
    return data_dir, new_applier(data_dir)


def follower(*, snapshots: int) -> tuple[Disk, bytes, int]:
    """A node with a log of some segments, and snapshots of its own: its disk, its cluster, its durable_index."""
    disk = Disk()
    data_dir = DataDir.open_directory(disk.directory(), "n1", OPTIONS)
    members = Members((Member("n1", data_dir.promises.disk_id, "h:1", Role.VOTER),))
    config = ServeConfig(node="n1", listen="127.0.0.1:1", members={"n1": "127.0.0.1:1"}, data_dir=Path("n1"))
    genesis = data_dir.format("n1", make_genesis(members, ("arithmetic", 1), 42, config))
    applier, log = new_applier(data_dir), data_dir.log
    assert log is not None
    for number in range(30):
        log.append_payload(encode_records([["add", number], ["sub", 1]] * 5), count=10, kind=Kind.RECORDS, epoch=1)
    log.flush()
    for frame in log.reader.stream(0, log.durable_index):
        applier.apply(frame)
        if snapshots and frame.header.index in (101, 201):
            index = applier.applied_index
            write_snapshot(
                data_dir.snapshots.begin(index), data_dir.snapshots.owner, applier.boundary, applier.content()
            )
            data_dir.snapshots.complete(index)
    log.mark.commit_index = log.durable_index
    durable = log.durable_index
    data_dir.close()
    return disk, genesis.cluster_id, durable


def install(data_dir: DataDir, leader: Leader) -> Applier:
    """What a node does, step by step, from its fetch to its new machine."""
    assert data_dir.log is not None
    store, manifest = data_dir.snapshots, leader.manifest
    part = SnapshotPart.begin(store, manifest.encode())
    for number in part.missing():
        part.put(number, leader.store.chunk(manifest, number))
    applier = part.restore(ArithmeticMachine, Sessions)
    part.complete()
    boundary = manifest.boundary
    disk = NodeDisk(data_dir.log, data_dir.promises, snapshots=store)
    disk.install(Snapshot(*boundary.tail, boundary.members_index, boundary.epochs))
    store.remove_all([index for index in store.indices if index < S])
    return applier


@pytest.mark.parametrize("snapshots", [0, 2])
@pytest.mark.parametrize("keep", list(Keep))
@pytest.mark.slow
def test_an_install_that_is_stopped_at_any_operation_ends_whole_or_starts_again(keep: Keep, snapshots: int) -> None:
    before, cluster_id, durable = follower(snapshots=snapshots)
    leader = Leader(cluster_id)
    stop, stopped = 1, True
    while stopped:
        disk = before.fork()
        disk.random = Random(stop)
        data_dir, _ = opened(disk)
        disk.stop_before, disk.on_power_loss = disk.operations + stop, keep
        stopped = lost_power(partial(install, data_dir, leader))
        disk.stop_before = None
        disk.lose_power(keep)
        check_reopened(disk.fork(), durable, Random(stop))
        data_dir, applier = opened(disk)
        log = data_dir.log
        assert log is not None
        if applier.applied_index < S:
            # It starts again: whatever of the old log is there, and all that was fetched, is used.
            assert (log.durable_index, log.bounds.lowest_index) == (durable, 0), stop
            applier = install(data_dir, leader)
        assert applier.state() == "1042"
        assert (log.bounds, log.tail.epoch, log.durable_index) == ((S, S), EPOCH, S)
        data_dir.close()
        data_dir, applier = opened(disk)
        assert (applier.state(), data_dir.snapshots.indices[-1]) == ("1042", S)
        stop += 1
    assert stop > 25 + len(leader.manifest.chunks)


def killed(disk: Disk, operations: int, steps: Callable[[], object]) -> Disk | None:
    """What a process leaves that is killed before so many of its operations, page cache included; None: it was done."""
    left: list[Disk] = []

    def reached(_operation: str, _name: str) -> bool:
        nonlocal operations
        operations -= 1
        if operations == 0:
            left.append(disk.fork())
        return False

    disk.failing = reached
    steps()
    disk.failing = None
    return left[0] if left else None


def test_what_a_killed_install_left_in_the_page_cache_is_not_counted_upon() -> None:
    before, cluster_id, _ = follower(snapshots=2)
    leader = Leader(cluster_id)
    stop = 0
    while True:
        stop += 1
        first = before.fork()
        data_dir, _ = opened(first)
        disk = killed(first, stop, partial(install, data_dir, leader))
        if disk is None:
            break
        data_dir, applier = opened(disk)
        if applier.applied_index < S:
            install(data_dir, leader)
        disk.lose_power(Keep.NOTHING)
        _, applier = opened(disk)
        assert applier.state() == "1042", stop
    assert stop > 25 + len(leader.manifest.chunks)


def test_a_chunk_whose_sync_failed_is_fetched_again() -> None:
    disk, cluster_id, _ = follower(snapshots=2)
    leader = Leader(cluster_id)
    data_dir, _ = opened(disk)
    part = SnapshotPart.begin(data_dir.snapshots, leader.manifest.encode())
    disk.failing = lambda operation, _: operation == "sync"
    with pytest.raises(OSError, match="injected"):
        part.put(2, leader.store.chunk(leader.manifest, 2))
    disk.failing = None
    assert 2 in SnapshotPart.begin(data_dir.snapshots, leader.manifest.encode()).missing()
    install(data_dir, leader)
    disk.lose_power(Keep.NOTHING)
    assert opened(disk)[1].state() == "1042"


def reason_of_refusal(disk: Disk) -> str | None:
    try:
        opened(disk)
    except DataDirRefused as refusal:
        return str(refusal)
    return None


def opened_log(disk: Disk) -> Log:
    log = opened(disk)[0].log
    assert log is not None
    return log


def stopped_after_placing(stop: int, keep: Keep) -> tuple[Disk, int] | None:
    """A disk that lost power so many operations after its snapshot was placed, and its durable_index; None: whole."""
    disk, cluster_id, durable = follower(snapshots=2)
    data_dir, _ = opened(disk)

    def count_from_here(operation: str, name: str) -> bool:
        if operation == "rename" and name.endswith(".part"):
            disk.stop_before, disk.on_power_loss = disk.operations + stop, keep
        return False

    disk.failing = count_from_here
    stopped = lost_power(lambda: install(data_dir, Leader(cluster_id)))
    disk.failing = disk.stop_before = None
    return (disk, durable) if stopped else None


def test_an_install_that_is_stopped_and_whose_snapshot_is_then_damaged_goes_back_to_no_older_one() -> None:
    refused = 0
    for keep in (Keep.EVERYTHING, Keep.NOTHING):
        for stop in count(1):
            if (left := stopped_after_placing(stop, keep)) is None:
                break
            disk, durable = left
            if snapshot_name(S) not in disk.names("snapshots"):
                continue
            disk.replace(f"snapshots/{snapshot_name(S)}/{chunk_name(0)}", b"damaged")
            for witness in WITNESS_FILES:  # They would notice it, by its commit_index.
                disk.delete(witness)
            for _ in range(2):
                reason = reason_of_refusal(disk)
                if reason is None:  # The old log is still there.
                    assert opened_log(disk).durable_index >= durable
                else:
                    assert f"its log begins at {S}, and no whole snapshot reaches it" in reason
                    refused += 1
    assert refused > 4


@pytest.mark.parametrize("renamed", [False, True])
def test_a_snapshot_that_finds_no_descriptor_while_it_is_placed_counts_once_there_is_one(renamed: bool) -> None:
    disk, cluster_id, _ = follower(snapshots=2)
    leader = Leader(cluster_id)
    data_dir, _ = opened(disk)
    store, manifest = data_dir.snapshots, leader.manifest
    part = SnapshotPart.begin(store, manifest.encode())
    for number in part.missing():
        part.put(number, leader.store.chunk(manifest, number))
    part.restore(ArithmeticMachine, Sessions)
    held = store.indices

    def exhaust(operation: str, _: str) -> bool:
        disk.exhausted |= operation == "rename"
        return False

    disk.exhausted, disk.failing = not renamed, exhaust
    for _ in range(2):
        with pytest.raises(ResourcesExhausted):
            part.complete()
        assert store.indices == held
    disk.exhausted, disk.failing = False, None
    part.complete()
    assert store.indices == [*held, manifest.index]
    disk.lose_power(Keep.NOTHING)
    assert opened(disk)[1].applied_index == manifest.index


def lost_power(steps: Callable[[], object]) -> bool:
    try:
        steps()
    except PowerLoss:
        return True
    return False


def check_reopened(disk: Disk, durable: int, random: Random) -> None:
    """What is left starts, also where the start itself is stopped, and neither index has gone back."""
    disk.random, disk.stop_before, disk.on_power_loss = random, disk.operations + random.randint(1, 25), Keep.SOME
    lost_power(lambda: opened(disk))
    disk.stop_before = None
    data_dir, applier = opened(disk)
    assert data_dir.log is not None
    known = NodeDisk(data_dir.log, data_dir.promises, snapshots=data_dir.snapshots).commit_index
    assert data_dir.log.durable_index in (durable, S)
    assert known in (durable, S)
    assert applier.applied_index >= data_dir.log.bounds.lowest_index
    assert applier.applied_index <= data_dir.log.durable_index


def test_what_was_fetched_is_used_again_after_a_restart_and_only_the_torn_chunk_is_not() -> None:
    disk, cluster_id, _ = follower(snapshots=0)
    leader = Leader(cluster_id)
    data_dir, _ = opened(disk)
    part = SnapshotPart.begin(data_dir.snapshots, leader.manifest.encode())
    for number in range(3):
        part.put(number, leader.store.chunk(leader.manifest, number))
    disk.lose_power(Keep.EVERYTHING)
    disk.flip_bit(f"snapshots/{snapshot_name(S)}.part/{chunk_name(1)}", 0)
    data_dir, _ = opened(disk)
    assert data_dir.snapshots.fetching == S
    part = SnapshotPart.begin(data_dir.snapshots, leader.manifest.encode())
    assert part.missing() == [1, *range(3, len(leader.manifest.chunks))]


def test_another_snapshot_takes_the_place_of_what_was_fetched() -> None:
    disk, cluster_id, _ = follower(snapshots=0)
    leader = Leader(cluster_id)
    data_dir, _ = opened(disk)
    SnapshotPart.begin(data_dir.snapshots, leader.manifest.encode())
    other = leader.manifest._replace(boundary=leader.manifest.boundary._replace(tail=Tail(600, EPOCH, 1, 2)))
    SnapshotPart.begin(data_dir.snapshots, other.encode())
    assert disk.names("snapshots") == [f"{snapshot_name(600)}.part"]
    assert data_dir.snapshots.fetching == 600


def test_an_opening_names_no_part_of_a_snapshot_that_was_installed_or_given_up() -> None:
    disk, cluster_id, _ = follower(snapshots=0)
    leader = Leader(cluster_id)
    data_dir, _ = opened(disk)
    SnapshotPart.begin(data_dir.snapshots, leader.manifest.encode())
    SnapshotPart.forget(data_dir.snapshots)
    assert data_dir.snapshots.fetching == 0

    install(data_dir, leader)

    assert (data_dir.snapshots.fetching, data_dir.snapshots.indices) == (0, [S])


def test_a_log_that_begins_above_every_whole_snapshot_is_refused_and_not_touched() -> None:
    disk, cluster_id, _ = follower(snapshots=0)
    leader = Leader(cluster_id)
    data_dir, _ = opened(disk)
    install(data_dir, leader)
    data_dir.close()
    disk.flip_bit(f"snapshots/{snapshot_name(S)}/{chunk_name(0)}", 0)
    before = disk.names("log")
    data_dir = DataDir.open_directory(disk.directory(), "n1", OPTIONS)
    with pytest.raises(Exception, match="its log begins at 500, and no whole snapshot reaches it"):
        new_applier(data_dir)
    assert disk.names("log") == before
