"""A restored directory is a node of a new history with just the records; one that was interrupted is none."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from quire.cluster.config.serve import ServeConfig
from quire.cluster.data_dir import restoration
from quire.cluster.data_dir.genesis import GenesisInvalid, make_genesis
from quire.cluster.data_dir.identity import DataDirRefused
from quire.cluster.data_dir.restoration import FLUSH_BYTES, RestorePlan, check_unused, read_restore_plan, restore
from quire.cluster.data_dir.survivor import RESTORE_AGAIN, RESTORING_FILE, inspect
from quire.log import FEATURES, HISTORY, MEMBERSHIP, Kind, Log, Tail, decode_system, encode_records, walk_frames
from quire.log.simulated import Disk, Keep, PowerLoss
from quire.replication import Member, Members, Role
from quire.sm import write_snapshot
from tests.data_dir.voters import EPOCH, OPTIONS, PROMISE, new_applier, opened

N2, N3 = (Member(f"n{number}", bytes([number]) * 16, f"h:{number}", Role.VOTER) for number in (2, 3))
DISK_ID, NEW_HISTORY = b"d" * 16, b"h" * 16
CHUNK_BYTES = 3


@dataclass
class Backup:
    """The content of a backup, cut at a boundary; implements `Restorable`."""

    genesis: bytes
    snapshot: bytes | None
    parts: list[bytes]
    raw: bytes
    end: Tail
    cluster_id: bytes

    def chunks(self, first: int) -> Iterator[bytes]:
        return iter(self.parts[first:])

    def frames(self, from_index: int) -> Iterator[bytes]:
        """Two frames at a time."""
        piece = b""
        offset = 0
        for number, frame in enumerate(walk_frames(self.raw)):
            size = frame.header.size
            if from_index <= frame.header.index < self.end.index:
                piece += self.raw[offset : offset + size]
                if number % 2:
                    yield piece
                    piece = b""
            offset += size
        if piece:
            yield piece


def backup(*, at: int = 301, from_snapshot: bool = False, features: frozenset[str] = FEATURES) -> Backup:
    """Of a node of three: 30 frames of ten records after the genesis, a snapshot at 101, cut at a boundary."""
    disk = Disk()
    data_dir = opened(disk)
    members = Members((Member("n1", data_dir.promises.disk_id, "h:1", Role.VOTER), N2, N3))
    config = ServeConfig(node="n1", listen="127.0.0.1:1", members={"n1": "127.0.0.1:1"}, data_dir=Path("n1"))
    genesis = data_dir.format("n1", make_genesis(members, ("arithmetic", 1), 42, config, features))
    data_dir.promises.write(PROMISE)
    log, applier = data_dir.log, new_applier(data_dir)
    assert log is not None
    for number in range(30):
        log.append_payload(encode_records([["add", number], ["sub", 1]] * 5), count=10, kind=Kind.RECORDS, epoch=EPOCH)
    log.flush()
    end, manifest, parts = Tail(0, 0, 0, 0), None, list[bytes]()
    for frame in log.reader.stream(0, log.durable_index):
        applier.apply(frame)
        if frame.header.next_index <= at:
            end = frame.header.tail
        if from_snapshot and applier.applied_index == 101:
            store = data_dir.snapshots
            manifest = write_snapshot(
                store.begin(101), store.owner, applier.boundary, applier.content(), chunk_bytes=CHUNK_BYTES
            )
            store.complete(101)
            parts = [store.chunk(manifest, number) for number in range(len(manifest.chunks))]
            assert len(parts) > 1
    raw = raw_of(log)
    first, _ = log.read_frames(0, 1)
    data_dir.close()
    return Backup(first, None if manifest is None else manifest.encode(), parts, raw, end, genesis.cluster_id)


def raw_of(log: Log) -> bytes:
    """All frames of a log."""
    raw, index = b"", log.bounds.lowest_index
    while index < log.durable_index:
        more, index = log.read_frames(index, 1 << 20)
        raw += more
    return raw


def plan_of(content: Backup) -> RestorePlan:
    return RestorePlan(
        "a backup", "n1", "h:9", "fork", content.end, content.cluster_id, EPOCH + 3, NEW_HISTORY, DISK_ID
    )


def run(disk: Disk, content: Backup) -> None:
    directory = disk.directory()
    restore(directory, read_restore_plan(directory) or plan_of(content), content, OPTIONS)


def check(disk: Disk, content: Backup) -> None:
    """The directory starts as a new disk of the new history, and holds the records of the backup and no others."""
    assert inspect(disk.fork().directory()).commit_index == content.end.index
    data_dir = opened(disk)
    log, identity, end = data_dir.log, data_dir.identity, content.end
    assert log is not None
    assert identity is not None
    assert (identity.history, identity.disk_id, identity.cluster_id) == (NEW_HISTORY, DISK_ID, content.cluster_id)
    assert data_dir.promises.promise.epoch == EPOCH + 3 + (1 << 20)
    assert log.durable_index == end.index + 2
    lowest = log.bounds.lowest_index
    assert lowest == (0 if content.snapshot is None else 101)
    held = b"".join(content.frames(lowest))
    assert raw_of(log).startswith(held)
    named, begun = (decode_system(log.reader.frame(end.index + offset).payload) for offset in (0, 1))
    assert named == {"type": "features", "names": sorted(FEATURES)}
    assert (begun["from"], begun["history"], begun["name"]) == ([content.cluster_id, end.index], NEW_HISTORY, "fork")
    members = Members.from_record(begun)
    assert [(row.node_id, row.disk_id, row.role) for row in members.members] == [("n1", DISK_ID, Role.VOTER)]
    assert [removed.node_id for removed in members.removed] == ["n1", "n2", "n3"]
    assert DISK_ID not in {removed.disk_id for removed in members.removed}
    applier = new_applier(data_dir)
    for frame in log.reader.stream(applier.applied_index, log.durable_index):
        applier.apply(frame)
    assert applier.machine.query(None) == replayed(content)
    data_dir.close()


def replayed(content: Backup) -> object:
    """The state that the backup's frames from the log's beginning give."""
    disk = Disk()
    run(disk, replace(content, snapshot=None, parts=[]))
    data_dir = opened(disk)
    applier, log = new_applier(data_dir), data_dir.log
    assert log is not None
    for frame in log.reader.stream(0, content.end.index):
        applier.apply(frame)
    data_dir.close()
    return applier.machine.query(None)


@pytest.mark.parametrize("from_snapshot", [False, True])
@pytest.mark.parametrize("at", [301, 155, 101])
def test_a_restored_directory_holds_the_records_up_to_a_boundary(at: int, from_snapshot: bool) -> None:
    content, disk = backup(at=at, from_snapshot=from_snapshot), Disk()

    run(disk, content)

    assert content.end.index == {301: 301, 155: 151, 101: 101}[at]
    check(disk, content)
    found = inspect(disk.directory())
    assert (found.commit_index, found.role) == (content.end.index, "voter")


def test_the_features_that_a_history_needs_are_named_even_if_the_backup_lacked_them() -> None:
    content, disk = backup(features=FEATURES - {MEMBERSHIP, HISTORY}), Disk()

    run(disk, content)

    assert inspect(disk.directory()).features == FEATURES


@pytest.mark.parametrize("keep", list(Keep))
@pytest.mark.parametrize("from_snapshot", [False, True], ids=["from the beginning", "from a snapshot"])
@pytest.mark.parametrize("flush_bytes", [1, FLUSH_BYTES], ids=["each piece flushed", "flushed once"])
def test_a_restore_that_is_stopped_at_any_operation_is_refused_at_a_start_and_finished_by_the_next_run(
    keep: Keep, from_snapshot: bool, flush_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restoration, "FLUSH_BYTES", flush_bytes)
    content = backup(at=155, from_snapshot=from_snapshot)
    stop, stopped = 1, True
    while stopped:
        disk = Disk()
        disk.stop_before, disk.on_power_loss = stop, keep
        try:
            run(disk, content)
            stopped = False
        except PowerLoss:
            pass
        disk.stop_before = None
        disk.lose_power(keep)
        names = disk.directory().list()
        if RESTORING_FILE in names:
            with pytest.raises(DataDirRefused, match=RESTORE_AGAIN):
                opened(disk.fork())
            with pytest.raises(DataDirRefused):
                inspect(disk.fork().directory())
            run(disk, content)
        elif stopped and "identity" not in names:
            assert not {name for name in names if not name.startswith(RESTORING_FILE)}
            check_unused(disk.directory())
            run(disk, content)
        check(disk, content)
        stop += 1
    assert stop > 40


@pytest.mark.parametrize("from_snapshot", [False, True], ids=["from the beginning", "from a snapshot"])
def test_a_restore_continues_at_the_end_of_what_an_earlier_run_flushed(
    from_snapshot: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restoration, "FLUSH_BYTES", 1)
    content, disk = backup(from_snapshot=from_snapshot), Disk()
    directory, plan = disk.directory(), plan_of(content)
    with pytest.raises(OSError, match="the store fails"):
        restore(directory, plan, Failing(**vars(content)), OPTIONS)
    disk.lose_power(Keep.NOTHING)
    asked = Asked(**vars(content))

    restore(disk.directory(), plan, asked, OPTIONS)

    assert asked.first_chunks == []
    assert asked.first_frames == [111 if from_snapshot else 11]
    check(disk, content)


@dataclass
class Failing(Backup):
    """A backup whose store fails after one piece of the frames."""

    def frames(self, from_index: int) -> Iterator[bytes]:
        yield next(super().frames(from_index))
        raise OSError("the store fails")


@dataclass
class Asked(Backup):
    """A backup that notes what was read of it."""

    first_chunks: list[int] = field(default_factory=list[int])
    first_frames: list[int] = field(default_factory=list[int])

    def chunks(self, first: int) -> Iterator[bytes]:
        self.first_chunks.append(first)
        return super().chunks(first)

    def frames(self, from_index: int) -> Iterator[bytes]:
        self.first_frames.append(from_index)
        return super().frames(from_index)


@pytest.mark.parametrize("keep", list(Keep))
def test_a_restore_that_returned_outlives_a_power_loss(keep: Keep) -> None:
    """A marker that came back would let a second run cut off what the node has acknowledged since."""
    content, disk = backup(), Disk()

    run(disk, content)
    disk.lose_power(keep)

    assert RESTORING_FILE not in disk.directory().list()
    check(disk, content)


def test_the_marker_of_another_plan_is_refused_and_stays() -> None:
    content, disk = backup(), Disk()
    plan = plan_of(content)
    with pytest.raises(OSError, match="the store fails"):
        restore(disk.directory(), plan, Failing(**vars(content)), OPTIONS)

    for other in (replace(plan, source="another"), replace(plan, history=b"o" * 16), replace(plan, disk_id=b"o" * 16)):
        with pytest.raises(DataDirRefused, match="a restore of a backup up to index 301 was interrupted here; run"):
            restore(disk.directory(), other, content, OPTIONS)

    assert read_restore_plan(disk.directory()) == plan
    run(disk, content)
    check(disk, content)


def test_a_snapshot_or_frames_of_another_cluster_than_the_genesis_are_refused() -> None:
    content, other = backup(from_snapshot=True), backup(from_snapshot=True)
    snapshot = replace(content, snapshot=other.snapshot, parts=other.parts)
    frames = replace(content, snapshot=None, genesis=other.genesis)

    with pytest.raises(DataDirRefused, match=f"is of cluster {other.cluster_id.hex()}, not {content.cluster_id.hex()}"):
        run(Disk(), snapshot)
    with pytest.raises(DataDirRefused, match="the first frame is not the genesis of the backup"):
        run(Disk(), frames)


def test_a_snapshot_that_lacks_a_chunk_is_refused() -> None:
    content = backup(from_snapshot=True)

    with pytest.raises(DataDirRefused, match="it lacks chunks"):
        run(Disk(), replace(content, parts=content.parts[:-1]))


def test_a_genesis_that_is_none_is_refused_before_anything_is_written() -> None:
    content, disk = backup(), Disk()

    with pytest.raises(GenesisInvalid):
        run(disk, replace(content, genesis=content.genesis[:-1]))

    assert disk.directory().list() == []


def test_an_epoch_that_cannot_be_is_refused_before_anything_is_written() -> None:
    content, disk = backup(), Disk()
    plan = replace(plan_of(content), greatest_epoch=1 << 63)

    with pytest.raises(DataDirRefused, match="the restore"):
        restore(disk.directory(), plan, content, OPTIONS)

    assert disk.directory().list() == []


@pytest.mark.parametrize("name", ["identity", "promise", "mark", "genesis", "log", "snapshots", "witness-1", "notes"])
def test_a_directory_that_is_in_use_is_refused_and_stays_as_it_is(name: str) -> None:
    disk, content = Disk(), backup()
    with_file = disk.directory()
    with_file.create(name).close()
    with_file.sync()

    with pytest.raises(DataDirRefused, match=f"it is not empty: it holds {name}; restore into an empty directory"):
        run(disk, content)

    assert disk.directory().list() == [name]


def test_damaged_frames_leave_a_directory_that_no_node_starts_with() -> None:
    content, disk = backup(), Disk()
    place = len(content.raw) // 2
    damaged = content.raw[:place] + bytes([content.raw[place] ^ 1]) + content.raw[place + 1 :]

    with pytest.raises(DataDirRefused, match="what is restored is damaged"):
        run(disk, replace(content, raw=damaged))

    with pytest.raises(DataDirRefused, match=RESTORE_AGAIN):
        opened(disk)


def test_frames_that_end_early_or_elsewhere_are_refused() -> None:
    content = backup()
    for end in (replace_tail(content.end, index=311), replace_tail(content.end, crc32c=7)):
        disk = Disk()
        plan = replace(plan_of(content), end=end)

        for _ in range(2):
            with pytest.raises(DataDirRefused, match="what is restored ends at index 301 of epoch 7, not as planned"):
                restore(disk.directory(), plan, content, OPTIONS)


def replace_tail(tail: Tail, **fields: int) -> Tail:
    return tail._replace(**fields)


def test_a_marker_that_is_damaged_is_refused() -> None:
    disk = Disk()
    with_file = disk.directory()
    storage = with_file.create(RESTORING_FILE)
    storage.write_at(0, b"12345678")
    storage.sync()
    storage.close()
    with_file.sync()

    with pytest.raises(DataDirRefused, match=r"its file restoring cannot be used \(its crc32c differs\)"):
        run(disk, backup())


def test_a_plan_is_read_as_it_was_written() -> None:
    plan = plan_of(backup())

    assert RestorePlan.from_bytes(plan.to_bytes()) == plan
