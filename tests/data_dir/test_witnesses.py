"""The witnesses notice that a file of a data directory is older than another, and never refuse a healthy node."""

from collections.abc import Callable

import pytest

from quire.cluster.data_dir.data_dir import DataDir
from quire.cluster.data_dir.identity import DataDirRefused
from quire.log import SLOT_POSITIONS, Kind, Log, encode_records
from quire.log.simulated import Disk, Keep, PowerLoss
from quire.replication import Disk as NodeDisk
from quire.replication.core.messages import NO_PROMISE, Promise, Snapshot
from quire.replication.witnesses import WITNESS_FILES
from quire.sm import Applier, write_snapshot

from .voters import EPOCH, PROMISE, content, files_of, formatted, lose, new_applier, opened, voter

END = 301


def log_of(data_dir: DataDir) -> Log:
    assert data_dir.log is not None
    return data_dir.log


def append(log: Log, frames: int, epoch: int = EPOCH) -> None:
    for number in range(frames):
        payload = encode_records([["add", number], ["sub", 1]] * 5)
        log.append_payload(payload, count=10, kind=Kind.RECORDS, epoch=epoch, timestamp=1)
    log.flush()


def sync_mark(node: NodeDisk) -> None:
    """As the driver does it each second."""
    sync = node.log.mark_sync.begin()
    if sync is not None:
        node.marked(sync)()
        node.log.mark_sync.end(sync)


def put_back(disk: Disk, older: Disk, *names: str) -> None:
    """Replace files, and folders with all that is in them, by their state on an older image of the disk."""
    lose(disk, *names)
    for name in names:
        for path in files_of(older, name) if name == "log" else [name]:
            disk.replace(path, older.content(path))


def grown() -> tuple[Disk, Disk]:
    """The disk of a voter, and a later one: it promised more, acknowledged more, and stopped cleanly."""
    older = voter()
    disk = older.fork()
    data_dir = opened(disk)
    data_dir.promises.write(Promise(EPOCH + 1, "n3", 1))
    append(log_of(data_dir), 20)
    data_dir.close()
    return older, disk


def killed() -> tuple[Disk, Disk]:
    """The same; the node was killed after the mark was synced twice."""
    older = voter()
    disk = older.fork()
    data_dir = opened(disk)
    node = NodeDisk(log_of(data_dir), data_dir.promises)
    node.store_promise(Promise(EPOCH + 1, "n3", 1))
    for _ in range(2):
        append(node.log, 10)
        sync_mark(node)
    disk.lose_power(Keep.EVERYTHING)
    return older, disk


def reopens(disk: Disk, end: int) -> DataDir:
    """The directory, which is accepted, and holds everything."""
    data_dir = opened(disk)
    new_applier(data_dir)
    assert log_of(data_dir).durable_index == end
    return data_dir


@pytest.mark.parametrize("run", [grown, killed])
@pytest.mark.parametrize("witness", ["", *WITNESS_FILES])
def test_an_older_promise_is_refused_and_nothing_is_changed(run: Callable[[], tuple[Disk, Disk]], witness: str) -> None:
    older, disk = run()
    put_back(disk, older, "promise", *filter(None, [witness]))
    before = content(disk)

    with pytest.raises(DataDirRefused, match=r"its promise file is an older copy: it holds epoch 7, and epoch 8"):
        opened(disk)

    assert content(disk) == before


@pytest.mark.parametrize("run", [grown, killed])
@pytest.mark.parametrize("witness", ["", *WITNESS_FILES])
@pytest.mark.parametrize("names", [("mark",), ("mark", "log")], ids="+".join)
def test_an_older_mark_is_refused_with_and_without_its_log(
    run: Callable[[], tuple[Disk, Disk]], witness: str, names: tuple[str, ...]
) -> None:
    older, disk = run()
    put_back(disk, older, *names, *filter(None, [witness]))
    before = content(disk)

    with pytest.raises(DataDirRefused, match=r"its mark file is an older copy, perhaps with its log"):
        opened(disk)

    assert content(disk) == before


def test_a_promise_is_in_both_witnesses_before_it_may_be_answered() -> None:
    disk = voter()
    data_dir = opened(disk)

    disk.journal.clear()
    data_dir.promises.write(Promise(EPOCH + 5, "n2", 3))

    synced = [name for operation, name in disk.journal if operation == "sync"]
    assert synced == ["promise", "promise", *WITNESS_FILES]


def test_another_node_s_log_and_mark_that_end_earlier_are_refused() -> None:
    theirs = formatted()
    disk = theirs.fork()
    for image, frames in ((disk, 30), (theirs, 8)):
        for _ in range(1 if image is disk else 9):  # Their mark has the higher generation.
            data_dir = opened(image)
            append(log_of(data_dir), frames if log_of(data_dir).durable_index == 1 else 0)
            data_dir.close()
    put_back(disk, theirs, "mark", "log")

    with pytest.raises(DataDirRefused, match=r"its log is an older copy, or another node's: it ends at index 81"):
        opened(disk)


def test_a_witness_of_another_disk_is_refused() -> None:
    disk, other = voter(), voter()
    disk.replace("witness-2", other.content("witness-2"))

    with pytest.raises(DataDirRefused, match="its witness-2 file is of disk"):
        opened(disk)


@pytest.mark.parametrize("names", [("witness-1",), ("witness-2",), WITNESS_FILES], ids="+".join)
@pytest.mark.parametrize("damage", ["lost", "empty", "rotten"])
def test_witnesses_that_are_lost_or_damaged_are_made_anew(names: tuple[str, ...], damage: str) -> None:
    older, disk = grown()
    for name in names:
        if damage == "lost":
            lose(disk, name)
        else:
            disk.replace(name, b"" if damage == "empty" else b"\1" * 8192)

    reopens(disk, END + 200).close()

    put_back(disk, older, "promise")
    for name in set(WITNESS_FILES) - {names[0]}:
        lose(disk, name)
    with pytest.raises(DataDirRefused, match="its promise file is an older copy"):
        opened(disk)


@pytest.mark.parametrize("slot", SLOT_POSITIONS)
@pytest.mark.parametrize("run", [grown, killed])
def test_a_damaged_slot_of_the_mark_is_no_older_mark(run: Callable[[], tuple[Disk, Disk]], slot: int) -> None:
    _, disk = run()
    disk.flip_bit("mark", slot + 20)

    for _ in range(2):
        reopens(disk, END + 200)
        disk.lose_power(Keep.EVERYTHING)
    reopens(disk, END + 200).close()
    reopens(disk, END + 200)


def test_a_damaged_slot_of_the_mark_does_not_bring_back_the_clean_stop_before() -> None:
    """Its log would be cut at the end of that stop."""
    disk = formatted()
    data_dir = opened(disk)
    cleared = log_of(data_dir).mark.synced
    append(log_of(data_dir), 1)
    assert cleared is not None
    assert log_of(data_dir).mark.synced == cleared
    disk.lose_power(Keep.NOTHING)  # The other slot holds the clean mark again.
    for slot in SLOT_POSITIONS:
        if int.from_bytes(disk.content("mark")[slot + 8 : slot + 16], "little") == cleared.generation:
            disk.flip_bit("mark", slot + 20)

    with pytest.raises(DataDirRefused, match="its mark file is an older copy"):
        opened(disk)


def test_a_truncated_log_is_no_older_log() -> None:
    disk = voter()
    data_dir = opened(disk)
    node = NodeDisk(log_of(data_dir), data_dir.promises)

    node.truncate(101)
    sync_mark(node)
    disk.lose_power(Keep.EVERYTHING)

    reopens(disk, 101)


def test_a_sync_of_the_mark_that_began_before_a_truncation_does_not_restore_the_end() -> None:
    disk = voter()
    data_dir = opened(disk)
    node = NodeDisk(log_of(data_dir), data_dir.promises)
    append(node.log, 3)
    sync = node.log.mark_sync.begin()
    assert sync is not None
    block = node.marked(sync)

    node.truncate(101)
    block()
    disk.lose_power(Keep.EVERYTHING)

    reopens(disk, 101)


def test_a_snapshot_that_does_not_join_a_committed_log_is_refused() -> None:
    disk = voter()
    data_dir, theirs = opened(disk), opened(disk.fork())
    new_applier(data_dir)
    log_of(theirs).truncate(51)
    append(log_of(theirs), 5, epoch=EPOCH + 1)
    snapshot(data_dir, applied(theirs))
    data_dir.close()

    with pytest.raises(DataDirRefused, match="its snapshot at 101 does not join its log, which was committed"):
        reopens(disk, END)


def applied(data_dir: DataDir) -> Applier:
    applier, log = new_applier(data_dir), log_of(data_dir)
    for frame in log.reader.stream(0, log.durable_index):
        applier.apply(frame)
    return applier


def snapshot(data_dir: DataDir, applier: Applier) -> None:
    store, index = data_dir.snapshots, applier.applied_index
    write_snapshot(store.begin(index), store.owner, applier.boundary, applier.content())
    store.complete(index)


class Life:
    """What a follower's disk sees: votes, records, syncs of the mark, truncations, an install, stops."""

    def __init__(self, disk: Disk, leader: Applier) -> None:
        self.disk = disk
        self.leader = leader
        self.answered = NO_PROMISE

    def run(self) -> None:
        data_dir, node = self.start()
        self.promise(node, Promise(3, "n2", 1))
        append(node.log, 4, epoch=3)
        sync_mark(node)
        append(node.log, 4, epoch=3)
        sync_mark(node)
        self.promise(node, Promise(4, "n3", 2))
        node.truncate(51)
        append(node.log, 2, epoch=4)
        sync_mark(node)
        node.truncate(61)  # The same epoch's, so that the end is lower until another frame comes.
        data_dir.close()
        data_dir, node = self.start()
        append(node.log, 60, epoch=4)  # It will not be in the leader's log.
        sync_mark(node)
        snapshot(data_dir, self.leader)
        tail, boundary = self.leader.boundary.tail, self.leader.boundary
        node.install(
            Snapshot(tail.index, tail.epoch, tail.timestamp, tail.crc32c, boundary.members_index, boundary.epochs)
        )
        sync_mark(node)
        append(node.log, 2, epoch=6)
        sync_mark(node)
        data_dir.close()

    def start(self) -> tuple[DataDir, NodeDisk]:
        data_dir = opened(self.disk)
        assert data_dir.promises.promise.epoch >= self.answered.epoch
        new_applier(data_dir)
        return data_dir, NodeDisk(log_of(data_dir), data_dir.promises, snapshots=data_dir.snapshots)

    def promise(self, node: NodeDisk, promise: Promise) -> None:
        node.store_promise(promise)
        self.answered = promise


@pytest.mark.parametrize(
    "keep", [pytest.param(keep, marks=() if keep is Keep.NOTHING else pytest.mark.full) for keep in Keep]
)
def test_no_crash_at_any_operation_makes_a_healthy_node_refuse_its_directory(keep: Keep) -> None:
    before = formatted()
    theirs = opened(before.fork())
    append(log_of(theirs), 30, epoch=2)
    leader = applied(theirs)
    stop, stopped = 1, True
    while stopped:
        life = Life(before.fork(), leader)
        disk = life.disk
        disk.stop_before, disk.on_power_loss = disk.operations + stop, keep
        try:
            life.run()
            stopped = False
        except PowerLoss:
            pass
        disk.stop_before = None
        disk.lose_power(keep)
        life.start()
        disk.lose_power(keep)
        life.start()[0].close()
        life.start()
        stop += 1
    assert stop > 150


@pytest.mark.parametrize("keep", list(Keep))
def test_no_crash_at_any_operation_of_the_first_start_makes_the_next_one_refuse(keep: Keep) -> None:
    whole = formatted()
    frame = whole.content("genesis")
    stop, stopped = 1, True
    while stopped:
        disk = Disk()
        disk.stop_before, disk.on_power_loss = stop, keep
        try:
            data_dir = opened(disk)
            data_dir.format("n1", frame)
            data_dir.promises.write(PROMISE)
            stopped = False
        except PowerLoss:
            pass
        disk.stop_before = None
        disk.lose_power(keep)
        data_dir = opened(disk)
        if data_dir.identity is None:
            data_dir.format("n1", frame)
        data_dir.close()
        assert set(WITNESS_FILES) < set(files_of(disk))
        stop += 1
    assert stop > 30


def test_a_full_disk_keeps_no_node_without_witnesses_from_starting() -> None:
    disk = voter()
    lose(disk, *WITNESS_FILES)
    disk.full = True

    reopens(disk, END)


IMPOSSIBLE = 2**63


def holds_an_impossible_promise(data_dir: DataDir) -> None:
    data_dir.promises.write(Promise(IMPOSSIBLE, "n2", 1))


def holds_an_impossible_witness(data_dir: DataDir) -> None:
    assert data_dir.witnesses is not None
    data_dir.witnesses.promise(IMPOSSIBLE)


def holds_an_impossible_frame(data_dir: DataDir) -> None:
    append(log_of(data_dir), 1, epoch=IMPOSSIBLE)


def holds_an_impossible_snapshot(data_dir: DataDir) -> None:
    applier, store = new_applier(data_dir), data_dir.snapshots
    boundary = applier.boundary
    boundary = boundary._replace(tail=boundary.tail._replace(index=END, epoch=IMPOSSIBLE))
    write_snapshot(store.begin(END), store.owner, boundary, applier.content())
    store.complete(END)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (holds_an_impossible_promise, "the promise file"),
        (holds_an_impossible_witness, "a witness"),
        (holds_an_impossible_frame, "its log"),
        (holds_an_impossible_snapshot, "its snapshot"),
    ],
)
def test_a_file_that_holds_an_epoch_that_cannot_be_is_a_refusal_with_a_sentence(
    make: Callable[[DataDir], None], what: str
) -> None:
    disk = voter()
    data_dir = opened(disk)
    make(data_dir)
    data_dir.close()
    if what in ("the promise file", "its log"):  # Otherwise the witnesses say so first.
        lose(disk, *WITNESS_FILES)

    with pytest.raises(DataDirRefused, match=rf"{what} holds epoch {IMPOSSIBLE}, and none is at or above 2\^63; move"):
        new_applier(opened(disk))
