"""Values that arrive in chunks and are read in chunks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

import pytest

from quire.log import (
    DiskFull,
    FileDirectory,
    FileStorage,
    FrameCorrupt,
    IndexOutOfBounds,
    Kind,
    Log,
    LogClosed,
    LogOptions,
    LogReadOnly,
    NotYetFlushed,
    PayloadInvalid,
    Record,
    RecordTooLarge,
    UnexpectedIndex,
)
from quire.log.simulated import Disk
from tests.log.histories import SMALL, Clock, all_frames, open_log
from tests.log.streamed import append_stream

# The frame header and the length of the metadata precede a blob's value.
OVERHEAD = 64 + 4
TOP = Path(__file__).parents[2]


def spools(disk: Disk) -> list[str]:
    return [name for name in disk.names("log") if name.endswith(".spool")]


def chunks(length: int, size: int = 100) -> Iterator[bytes]:
    for start in range(0, length, size):
        yield bytes([start // size % 251]) * min(size, length - start)


@pytest.mark.parametrize("length", [0, 1, 699, 700, 701, 1400, 2900])
def test_a_value_that_comes_in_chunks_is_one_blob(length: int) -> None:
    disk = Disk()
    log = open_log(disk)
    log.append(["before"])
    assert append_stream(log, chunks(length), metadata={"name": "x"}) == 1
    assert log.append(["after"]) == 2
    log.flush()
    record = log.read(1)
    assert (record.kind, record.value, record.headers) == (Kind.BLOB, b"".join(chunks(length)), {"name": "x"})
    assert [log.read(0).value, log.read(2).value] == ["before", "after"]
    assert spools(disk) == []
    disk.lose_power()
    assert all_frames(open_log(disk))[1].header.kind == Kind.BLOB


@pytest.mark.parametrize("threshold", [OVERHEAD + 10, OVERHEAD + 700, OVERHEAD + 2000])
def test_exactly_the_threshold_passes_and_one_byte_more_is_refused_with_the_limit(threshold: int) -> None:
    disk = Disk()
    log = open_log(disk)
    log.append(["before"])
    assert append_stream(log, chunks(threshold - OVERHEAD), threshold) == 1
    size = log.size
    with pytest.raises(RecordTooLarge) as error:
        append_stream(log, chunks(threshold - OVERHEAD + 1), threshold)
    assert (error.value.size, error.value.limit) == (threshold + 1, threshold)
    assert (log.bounds, log.size, spools(disk)) == ((0, 2), size, [])


def test_the_log_s_own_limit_holds_for_streams_too() -> None:
    log = open_log(Disk())
    limit = 2048 + 1024 - 64
    log.append(["something in the way"])
    assert append_stream(log, chunks(limit - OVERHEAD)) == 1
    with pytest.raises(RecordTooLarge) as error:
        append_stream(log, chunks(limit - OVERHEAD + 1), 1 << 40)
    assert error.value.limit == limit
    with pytest.raises(RecordTooLarge):
        append_stream(log, [], OVERHEAD - 1)


def test_a_source_that_fails_leaves_nothing_behind() -> None:
    disk = Disk()
    log = open_log(disk)

    def failing() -> Iterator[bytes]:
        yield bytes(1500)
        assert spools(disk) == ["00000000000000000001.spool"]
        raise ConnectionResetError("the client went away")

    with pytest.raises(ConnectionResetError):
        append_stream(log, failing())
    assert (log.bounds, log.size, spools(disk)) == ((0, 0), 0, [])


def test_others_append_while_the_chunks_arrive() -> None:
    disk = Disk()
    log = open_log(disk)
    with log.spools.begin() as first, log.spools.begin() as second:
        for k in range(10):
            first.write(b"1" * 100)
            second.write(b"2" * 150)
            log.append([k])
            log.flush()
        assert len(spools(disk)) == 2
        assert log.spools.append(second) == 10
        assert log.spools.append(first, expected_index=11) == 11
        with pytest.raises(LogClosed):
            log.spools.append(first)
    log.flush()
    assert [log.read(k).value for k in range(10)] == list(range(10))
    assert [log.read(10).value, log.read(11).value] == [b"2" * 1500, b"1" * 1000]
    assert spools(disk) == []


def test_a_stream_with_another_expected_index_leaves_nothing_behind() -> None:
    disk = Disk()
    log = open_log(disk)
    with pytest.raises(UnexpectedIndex):
        append_stream(log, chunks(1500), expected_index=3)
    assert (log.bounds, spools(disk)) == ((0, 0), [])


def test_a_full_disk_refuses_a_stream_and_the_log_stays_usable() -> None:
    disk = Disk()
    log = open_log(disk)
    log.append(["a"])

    def filling() -> Iterator[bytes]:
        yield from chunks(900)
        disk.full = True
        yield from chunks(1500)

    with pytest.raises(DiskFull):
        append_stream(log, filling())
    assert (log.bounds, spools(disk)) == ((0, 1), [])
    disk.full = False
    assert append_stream(log, chunks(900)) == 1
    log.flush()


@pytest.mark.parametrize("stopped_at", ["create", "allocate", "write"])
def test_a_spool_abandoned_while_another_thread_writes_to_it_leaves_nothing_behind(
    tmp_path: Path, stopped_at: str
) -> None:
    class Slow(FileStorage):
        def allocate(self, length: int) -> None:
            give_up("allocate")
            super().allocate(length)

        def write_at(self, position: int, data: bytes | bytearray | memoryview) -> None:
            give_up("write")
            super().write_at(position, data)

    class SlowFolder(FileDirectory):
        def create(self, name: str) -> FileStorage:
            if not name.endswith(".spool"):
                return super().create(name)
            give_up("create")
            return Slow(f"{self.path}/{name}", os.O_CREAT | os.O_EXCL)

        def child(self, name: str) -> FileDirectory:
            return SlowFolder(f"{self.path}/{name}")

    def give_up(operation: str) -> None:
        # A close that does not wait would be done by now.
        if operation == stopped_at and closing.ident is None:
            closing.start()
            closing.join(0.2)

    log = Log.open(SlowFolder(tmp_path), SMALL, cluster_id=bytes(16), clock=Clock(), standalone=True)
    spool = log.spools.begin()
    closing = Thread(target=spool.close)
    writing = Thread(target=spool.write, args=[bytes(1000)])
    writing.start()
    writing.join()
    closing.join()
    assert spool.closed
    assert log.failure is None
    assert not list(tmp_path.glob("log/*.spool"))
    log.close()


def test_a_device_that_fails_while_spooling_ends_all_writing() -> None:
    disk = Disk()
    log = open_log(disk)
    disk.failing = lambda operation, name: operation == "write" and name.endswith(".spool")
    with pytest.raises(LogReadOnly):
        append_stream(log, chunks(1500))
    disk.failing = None
    with pytest.raises(LogReadOnly):
        log.append([1])


def test_a_spool_that_rots_before_it_is_appended_is_an_error_and_nothing_is_appended() -> None:
    disk = Disk()
    log = open_log(disk)
    log.append(["a"])
    spool = log.spools.begin()
    for chunk in chunks(1500):
        spool.write(chunk)
    disk.flip_bit("log/00000000000000000001.spool", 300)
    with pytest.raises(FrameCorrupt) as error:
        log.spools.append(spool)
    assert error.value.file == "00000000000000000001.spool"
    assert log.append(["b"]) == 1
    log.flush()
    assert [frame.header.index for frame in all_frames(log)] == [0, 1]
    disk.lose_power()
    assert open_log(disk).bounds == (0, 2)


def test_leftover_spools_of_a_crash_are_removed_at_open() -> None:
    disk = Disk()
    log = open_log(disk)
    spool = log.spools.begin()
    for chunk in chunks(1500):
        spool.write(chunk)
    assert len(spools(disk)) == 1
    open_log(disk)
    assert spools(disk) == []


def test_a_blob_is_read_back_in_chunks_and_every_one_is_verified() -> None:
    disk = Disk()
    log = open_log(disk, LogOptions())
    value = b"".join(chunks(3 << 20, 1000))
    log.append([b"small", "text", Record(b"with headers", {"a": "b"})])
    append_stream(log, chunks(3 << 20, 1000), metadata={"name": "x"})
    with pytest.raises(NotYetFlushed):
        log.reader.value_stream(3)
    log.flush()
    stream = log.reader.value_stream(3)
    stream.verify()
    assert (stream.length, stream.metadata, stream.header.kind) == (len(value), {"name": "x"}, Kind.BLOB)
    pieces = list(stream)
    assert max(map(len, pieces)) <= 1 << 20
    assert b"".join(pieces) == value
    stream.close()
    assert list(log.reader.value_stream(0)) == [b"small"]
    headed = log.reader.value_stream(2)
    assert (list(headed), headed.metadata, headed.length) == ([b"with headers"], {"a": "b"}, 12)
    with pytest.raises(PayloadInvalid):
        log.reader.value_stream(1)
    with pytest.raises(IndexOutOfBounds):
        log.reader.value_stream(4)
    disk.flip_bit("log/00000000000000000000.store", 2 << 20)
    with pytest.raises(FrameCorrupt) as error:
        next(iter(log.reader.value_stream(3)))
    assert error.value.file == "00000000000000000000.store"


def test_a_blob_is_not_closed_in_the_middle_of_a_read() -> None:
    disk = Disk()
    log = open_log(disk, LogOptions())
    append_stream(log, chunks(3 << 20, 1000))
    log.flush()
    stream = log.reader.value_stream(0)
    opened, reading, going_on, closed = disk.open_files, Event(), Event(), Event()

    def held(operation: str, _name: str) -> bool:
        if operation == "read":
            reading.set()
            assert going_on.wait(30)
        return False

    def close() -> None:
        stream.close()
        closed.set()

    disk.failing = held
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(stream.verify)
        assert reading.wait(30)
        threads.submit(close)
        assert not closed.wait(0.05)
        assert disk.open_files == opened
        going_on.set()
        with suppress(ValueError):  # It was closed before the last of the reads.
            first.result(30)
    assert disk.open_files == opened - 1


def test_a_blob_that_is_cut_off_while_it_is_read_is_out_of_bounds_and_no_rot() -> None:
    log = open_log(Disk(), LogOptions())
    log.append(["a"])
    append_stream(log, chunks(3 << 20, 1000))
    log.flush()
    stream = iter(log.reader.value_stream(1))
    assert len(next(stream)) > 0
    log.truncate(1)
    append_stream(log, chunks(3 << 20, 999))
    log.flush()
    with pytest.raises(IndexOutOfBounds):
        list(stream)


@pytest.mark.slow
def test_recovery_finds_a_blob_larger_than_any_chunk_and_cuts_one_that_is_torn() -> None:
    for torn in (False, True):
        disk = Disk()
        log = open_log(disk, LogOptions())
        append_stream(log, chunks(3 << 20, 1000))
        if torn:
            log.begin_flush()
            disk.flip_bit("log/00000000000000000000.store", 2 << 20)
        else:
            log.flush()
        assert open_log(disk, LogOptions()).bounds == ((0, 0) if torn else (0, 1))


FLAT = """
import sys
from quire.log import FileDirectory, Log, LogOptions
from tests.log.memory import peak_kib
from tests.log.streamed import append_stream

GIB = 1 << 30
options = LogOptions(segment_bytes=GIB, max_frame_bytes=GIB + 100)

def open_log():
    return Log.open(FileDirectory(sys.argv[1]), options, cluster_id=bytes(16), clock=lambda: 1, standalone=True)

def source():
    for k in range(GIB >> 20):
        yield bytes([k % 256]) * (1 << 20)

log = open_log()
before = peak_kib()
append_stream(log, source())
log.flush()
assert sum(map(len, log.reader.value_stream(0))) == GIB
# Not closed: the next open finds an unclean stop and verifies the frame.
log._directory.unlock()
assert open_log().bounds == (0, 1)
print((peak_kib() - before) >> 10)
"""


@pytest.mark.full
def test_memory_is_flat_for_a_record_of_a_gibibyte_appended_read_and_recovered(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    done = subprocess.run(
        [sys.executable, "-c", FLAT, str(folder)], capture_output=True, text=True, timeout=240, check=False, cwd=TOP
    )
    shutil.rmtree(folder)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 32, f"{done.stdout} MiB more than before"
