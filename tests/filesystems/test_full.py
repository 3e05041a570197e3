"""Full volumes and small ones, on the real file systems."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from quire.cluster.data_dir.data_dir import DataDir
from quire.log import DiskFull, FileDirectory, Log, LogOptions, wall_clock
from quire.replication import Promise
from tests.data_dir.voters import format_voter

from .mounts import MAKE, MIB, as_root, mounted

pytestmark = pytest.mark.full

ID = bytes(16)
OPTIONS = LogOptions(segment_bytes=1 << 20)
SIZE = {"ext4": 128, "xfs": 320, "btrfs": 256}


@pytest.fixture(params=MAKE)
def volume(request: pytest.FixtureRequest) -> Iterator[Path]:
    with mounted(request.param, SIZE[request.param] * MIB) as path:
        yield path


def free_bytes(path: Path) -> int:
    room = os.statvfs(path)
    return room.f_bavail * room.f_frsize


def open_log(path: Path, options: LogOptions | None = None) -> Log:
    directory = FileDirectory(path)
    return Log.open(directory, options or LogOptions(), cluster_id=ID, clock=wall_clock, standalone=True)


def fill(path: Path) -> None:
    """Fill the volume to its last block."""
    with (path / "filler").open("wb", buffering=0) as file:
        for size in (MIB, 4096):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                os.fsync(file.fileno())


def append_until_refused(log: Log, size: int = 1_000) -> None:
    with suppress(DiskFull):
        for _ in range(100_000):
            log.append(["x" * size])
            log.flush()
        raise AssertionError("the disk never was full")


def test_an_allocation_that_fails_gives_back_what_it_got(volume: Path) -> None:
    file = FileDirectory(volume / "d").create("file")
    file.write_at(0, b"written")
    file.sync()
    before = free_bytes(volume)
    with pytest.raises(DiskFull):
        file.allocate(before + MIB)
    assert file.size == len(b"written")
    assert free_bytes(volume) >= before - MIB
    file.close()


def test_a_log_begins_on_a_volume_that_has_less_room_than_a_segment() -> None:
    with mounted("ext4", 48 * MIB) as path:
        assert free_bytes(path) < 64 * MIB
        log = open_log(path / "d")
        assert log.room.left >= 16 * MIB
        assert free_bytes(path) > MIB
        log.append(["first"])
        log.flush()
        log.close()
        log = open_log(path / "d")
        assert log.read(0).value == "first"
        append_until_refused(log, 200_000)
        assert log.failure is None
        log.close()


def is_flagged(path: Path) -> bool:
    """Whether the file is overwritten in place though its file system copies on write."""
    return "C" in as_root("lsattr", "-d", path).split()[0]


def copies_on_write(path: Path) -> bool:
    return as_root("stat", "--file-system", "--format=%T", path).strip() == "btrfs"


def test_all_files_of_a_new_log_are_overwritten_in_place(volume: Path) -> None:
    log = open_log(volume / "d", OPTIONS)
    for _ in range(20):
        log.append(["x" * 200_000])
    log.close()
    files = [path for path in (volume / "d").rglob("*") if path.is_file()]
    assert len(files) > 5
    assert {is_flagged(path) for path in files} == {copies_on_write(volume)}


@pytest.mark.parametrize("flagged", [True, False])
def test_a_full_volume_refuses_appends_and_no_more(volume: Path, flagged: bool) -> None:
    """Without the flag, btrfs finds no room for an overwrite; the log is as refusing, and opens when there is room."""
    folder = volume / "d"
    if not flagged:
        folder.mkdir()
        (folder / "older").touch()
    log = open_log(folder, OPTIONS)
    for _ in range(10):
        log.append(["x" * 1_000])
        log.flush()
    fill(volume)
    append_until_refused(log)
    assert log.failure is None
    assert (log.room.left == 0) == (copies_on_write(volume) and not flagged)
    assert log.read(0).value == "x" * 1_000
    durable = log.durable_index
    sync = log.mark_sync.begin()
    if sync is not None:
        sync.run()
        log.mark_sync.end(sync)
    if flagged:
        log.close()
        log = open_log(folder, OPTIONS)
        assert log.durable_index >= durable
        append_until_refused(log)
    (volume / "filler").unlink()
    os.sync()
    assert log.room.probe()
    log.append(["again"])
    log.flush()
    log.close()
    log = open_log(folder, OPTIONS)
    assert log.read(log.durable_index - 1).value == "again"
    log.close()


def test_a_node_starts_and_promises_on_a_full_volume(volume: Path) -> None:
    data_dir = DataDir.open(volume / "d", "n1", OPTIONS)
    format_voter(data_dir)
    data_dir.close()
    fill(volume)
    for epoch in (5, 6):
        data_dir = DataDir.open(volume / "d", "n1", OPTIONS)
        data_dir.promises.write(Promise(epoch, "n1", 1))
        data_dir.close()
    assert data_dir.promises.promise.epoch == 6


def test_a_quota_of_btrfs_is_a_full_disk() -> None:
    with mounted("btrfs", SIZE["btrfs"] * MIB) as path:
        of_quota = path / "of_quota"
        as_root("btrfs", "quota", "enable", path)
        as_root("btrfs", "subvolume", "create", of_quota)
        as_root("chown", f"{os.geteuid()}:{os.getegid()}", of_quota)
        as_root("btrfs", "qgroup", "limit", str(8 * MIB), of_quota)
        log = open_log(of_quota / "d", OPTIONS)
        append_until_refused(log, 100_000)
        assert log.failure is None
        as_root("btrfs", "qgroup", "limit", str(32 * MIB), of_quota)
        assert log.room.probe()
        log.append(["again"])
        log.close()


def test_a_copy_of_xfs_that_shares_its_blocks_refuses_appends_and_no_more() -> None:
    with mounted("xfs", SIZE["xfs"] * MIB) as path:
        log = open_log(path / "d", OPTIONS)
        log.append(["first"])
        log.close()
        log = open_log(path / "d", OPTIONS)
        as_root("cp", "--archive", "--reflink=always", path / "d", path / "copy")
        fill(path)
        append_until_refused(log)
        assert (log.failure, log.durable_index, log.room.left) == (None, 1, 0)
        (path / "filler").unlink()
        assert log.room.probe()
        log.append(["again"])
        log.close()
