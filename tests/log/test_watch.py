"""Files that somebody removes, moves or replaces under an open log: nothing is acknowledged into them."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from quire.log import DiskFull, FileDirectory, FileUnlinked, Log, LogOptions, LogReadOnly, Tail
from quire.log.options import FLUSH_ALWAYS
from quire.replication import PromiseFile, Witnesses
from quire.replication.core.messages import Promise
from tests.log.streamed import append_stream

DISK = b"d" * 16
SMALL = LogOptions(segment_bytes=4096, flush_policy=FLUSH_ALWAYS)
Damage = Callable[[Path], None]


def opened(path: Path) -> Log:
    return Log.open(FileDirectory(path), SMALL, cluster_id=b"c" * 16, clock=lambda: 1, standalone=True)


def write(log: Log, records: int = 1) -> None:
    for _ in range(records):
        log.append([b"x" * 500])
        log.flush()


def newest_store(path: Path) -> Path:
    return max((path / "log").glob("*.store"))


def oldest_store(path: Path) -> Path:
    return min((path / "log").glob("*.store"))


def replace(file: Path) -> None:
    copy = file.with_name("copy")
    shutil.copy(file, copy)
    copy.rename(file)


def moved(path: Path) -> None:
    path.rename(path.with_name("moved"))


def another_folder(path: Path) -> None:
    copy = path.with_name("copied")
    shutil.copytree(path, copy)
    moved(path)
    copy.rename(path)


DAMAGES: dict[str, tuple[Damage, str]] = {
    "the_directory_is_removed": (shutil.rmtree, "d was removed"),
    "the_directory_is_moved": (moved, "d is now"),
    "another_directory_is_at_its_path": (another_folder, "d is now"),
    "the_folder_log_is_removed": (lambda path: shutil.rmtree(path / "log"), "d/log was removed"),
    "another_folder_log_is_at_its_path": (lambda path: another_folder(path / "log"), "d/log is now"),
    "the_lock_is_removed": (lambda path: (path / "lock").unlink(), "d/lock was removed"),
    "the_lock_is_replaced": (lambda path: replace(path / "lock"), "d/lock was replaced"),
    "the_mark_is_removed": (lambda path: (path / "mark").unlink(), "d/mark was removed"),
    "the_mark_is_replaced": (lambda path: replace(path / "mark"), "d/mark was replaced"),
    "the_write_segment_is_removed": (lambda path: newest_store(path).unlink(), ".store was removed"),
    "the_write_segment_is_replaced": (lambda path: replace(newest_store(path)), ".store was replaced"),
    "a_sealed_segment_is_removed": (lambda path: oldest_store(path).unlink(), ".store was removed"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_two_looks_that_accuse_the_same_file_end_the_log(tmp_path: Path, damage: str) -> None:
    cause, said = DAMAGES[damage]
    with closing(opened(tmp_path / "d")) as log:
        write(log, 20)
        log.watch.look()
        log.watch.judge()
        cause(tmp_path / "d")
        log.watch.look()
        log.watch.judge()  # One look proves nothing.
        log.watch.look()
        with pytest.raises(LogReadOnly, match=said):
            log.watch.judge()
        assert f"not stop process {os.getpid()}" in log.watch.lost
        with pytest.raises(LogReadOnly):
            log.append([b"x"])


def test_a_log_that_waits_for_room_ends_when_its_files_are_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with closing(opened(tmp_path / "d")) as log:
        write(log)
        log.append([b"x"])
        with monkeypatch.context() as stuck:
            stuck.setattr(os, "pwrite", full)
            with pytest.raises(DiskFull):
                log.begin_flush()
            (tmp_path / "d").rename(tmp_path / "moved")
            log.watch.look()
            log.watch.judge()
            log.watch.look()
            with pytest.raises(LogReadOnly, match="d is now"):
                log.watch.judge()
        with pytest.raises(LogReadOnly):  # There is room again.
            log.begin_flush()


@pytest.mark.parametrize("damage", ["the_directory_is_removed", "the_write_segment_is_removed"])
def test_a_flush_into_a_removed_file_fails_at_once(tmp_path: Path, damage: str) -> None:
    with closing(opened(tmp_path / "d")) as log:
        write(log)
        DAMAGES[damage][0](tmp_path / "d")
        log.append([b"x"])
        durable, flush = log.durable_index, log.begin_flush()
        assert flush is not None
        with pytest.raises(FileUnlinked) as removed:
            flush.run()
        log.end_flush(flush, removed.value)
        assert log.durable_index == durable
        assert "was removed" in (log.failure or "")
        assert "was removed" in log.watch.judge_failure()  # The first look after a failure is enough.


def test_a_sync_of_a_removed_mark_fails(tmp_path: Path) -> None:
    with closing(opened(tmp_path / "d")) as log:
        write(log)
        (tmp_path / "d" / "mark").unlink()
        sync = log.mark_sync.begin()
        assert sync is not None
        with pytest.raises(FileUnlinked) as removed:
            sync.run()
        log.mark_sync.end(sync, removed.value)
        assert "d/mark was removed" in (log.failure or "")


@pytest.mark.parametrize("name", ["promise", "witness-1", "witness-2"])
def test_no_promise_is_answered_that_is_in_a_removed_file(tmp_path: Path, name: str) -> None:
    directory = FileDirectory(tmp_path / "d")
    with closing(PromiseFile.create(directory, DISK)) as promises, closing(Witnesses(directory, DISK)) as witnesses:
        witnesses.settle(0, None)
        promises.witnesses = witnesses
        promises.write(Promise(1, "n1", 1))
        (tmp_path / "d" / name).unlink()
        with pytest.raises(FileUnlinked):
            promises.write(Promise(2, "n2", 1))
        assert promises.promise.epoch == 1


@pytest.mark.parametrize("name", ["promise", "witness-1"])
def test_a_removed_or_replaced_promise_or_witness_ends_the_log(tmp_path: Path, name: str) -> None:
    directory = FileDirectory(tmp_path / "d")
    directory.lock()
    with closing(PromiseFile.create(directory, DISK)), closing(Witnesses(directory, DISK)) as witnesses:
        witnesses.settle(0, None)
        with closing(Log.open(directory, SMALL, cluster_id=b"c" * 16, clock=lambda: 1, standalone=False)) as log:
            replace(tmp_path / "d" / name)
            log.watch.look()
            log.watch.judge()
            log.watch.look()
            with pytest.raises(LogReadOnly, match=f"d/{name} was replaced"):
                log.watch.judge()


def test_a_file_that_is_accused_once_is_forgiven(tmp_path: Path) -> None:
    with closing(opened(tmp_path / "d")) as log:
        write(log)
        for _ in range(3):
            (tmp_path / "d").rename(tmp_path / "away")
            log.watch.look()
            log.watch.judge()
            (tmp_path / "away").rename(tmp_path / "d")
            log.watch.look()
            log.watch.judge()
        write(log)
        assert not log.watch.lost


def test_no_change_of_the_log_itself_is_accused(tmp_path: Path) -> None:
    """Looks while another thread may be in the middle of a change, and after each change: these find nothing at all."""
    path = tmp_path / "d"
    with closing(opened(path)) as log:

        def settled() -> None:
            log.watch.look()
            log.watch.judge()
            log.watch.look()
            log.watch.judge()
            assert not log.watch.judge_failure()

        settled()
        write(log, 30)  # Rotations.
        settled()
        append_stream(log, [b"y" * 2000])
        settled()
        expiry = log.expiry.begin(max_bytes=0)
        assert expiry is not None
        log.watch.look()  # Its files are still there, or half gone.
        log.watch.judge()
        expiry.run()
        log.expiry.end(expiry)
        settled()
        log.append([b"z"])
        flush = log.begin_flush()
        assert flush is not None
        log.truncate(log.bounds.highest_index - 20)  # The file that the flush syncs is removed meanwhile.
        flush.run()
        log.end_flush(flush)
        settled()
        log.reset(Tail(1000, 0, 1, 7))
        settled()
        write(log, 30)
        log.expiry.remove(max_bytes=0)
        settled()
    assert not log.watch.judge_failure()


def test_a_log_on_a_folder_that_was_moved_before_it_was_opened_is_in_place(tmp_path: Path) -> None:
    with closing(opened(tmp_path / "d")) as log:
        write(log)
    (tmp_path / "d").rename(tmp_path / "e")
    with closing(opened(tmp_path / "e")) as log:
        log.watch.look()
        log.watch.judge()
        log.watch.look()
        log.watch.judge()


def test_a_closed_log_keeps_no_folder_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    opened(tmp_path / "d").close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_look_for_which_there_is_no_descriptor_accuses_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(_: object) -> list[str]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with closing(opened(tmp_path / "d")) as log:
        write(log, 20)
        with monkeypatch.context() as few:
            few.setattr(os, "listdir", exhausted)
            for _ in range(2):
                log.watch.look()
                log.watch.judge()
            assert not log.watch.judge_failure()
        write(log)


def test_without_proc_a_folder_that_was_moved_is_accused_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hidden(path: str) -> str:
        raise FileNotFoundError(path)

    with closing(opened(tmp_path / "d")) as log:
        write(log)
        monkeypatch.setattr(os, "readlink", hidden)
        moved(tmp_path / "d")
        assert "d is no longer the folder that was opened" in log.watch.judge_failure()


def test_a_removed_folder_is_not_made_again(tmp_path: Path) -> None:
    directory = FileDirectory(tmp_path / "d")
    shutil.rmtree(tmp_path / "d")
    with pytest.raises(FileNotFoundError):
        directory.child("snapshots")
    assert not (tmp_path / "d").exists()


def test_whatever_failed_first_a_log_whose_files_are_gone_writes_nothing_when_it_is_closed(tmp_path: Path) -> None:
    log = opened(tmp_path / "d")
    write(log)
    log.append([b"x"])
    (tmp_path / "d" / "lock").unlink()
    assert "d/lock was removed" in log.watch.judge_failure()
    mark = (tmp_path / "d" / "mark").read_bytes()
    log.close()  # Another process may own the files by now.
    assert (tmp_path / "d" / "mark").read_bytes() == mark


@pytest.mark.parametrize("change", ["removed", "replaced", "moved"])
def test_a_file_that_this_program_gave_up_may_lose_its_name_while_it_is_open(tmp_path: Path, change: str) -> None:
    """A flush may still sync a segment that was truncated away meanwhile."""
    directory, other = FileDirectory(tmp_path / "d"), FileDirectory(tmp_path / "other")
    directory.keep()
    with closing(directory.create("file")) as file, closing(directory.create("new")) as new:
        file.sync()
        new.sync()
        match change:
            case "removed":
                directory.remove("file")
            case "replaced":
                directory.rename("new", "file")
            case _:
                directory.move("file", other, "file")
        file.sync()
        new.sync()
        assert directory.misplaced() == []
    directory.release()


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.EACCES])
def test_a_device_that_fails_is_no_file_that_was_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Then the process must end and be restarted; and callers get an answer, not the error."""

    def failing(*_: object, **__: object) -> os.stat_result:
        raise OSError(number, os.strerror(number))

    with closing(opened(tmp_path / "d")) as log:
        write(log, 20)
        for name in "stat", "fstat":
            with monkeypatch.context() as broken:
                broken.setattr(os, name, failing)
                for _ in range(2):
                    log.watch.look()
                    log.watch.judge()
                assert not log.watch.judge_failure()
        write(log)


def test_looks_of_two_threads_do_not_disturb_each_other(tmp_path: Path) -> None:
    with closing(opened(tmp_path / "d")) as log:
        write(log, 60)
        with ThreadPoolExecutor(2) as threads:
            looks = list(threads.map(lambda _: log.watch.judge_failure(), range(2_000)))
        assert set(looks) == {""}


def test_a_file_system_that_counts_no_links_loses_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fstat = os.fstat

    def without_links(descriptor: int) -> os.stat_result:
        fields = list(fstat(descriptor))
        fields[3] = 0
        return os.stat_result(fields)

    with closing(opened(tmp_path / "d")) as log:
        monkeypatch.setattr(os, "fstat", without_links)
        write(log)
        assert log.failure is None
        monkeypatch.undo()
