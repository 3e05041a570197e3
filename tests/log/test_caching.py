"""Indexes in memory: of all read segments, of none, or of at most n; and how many files are open."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from quire.log import FileDirectory, IndexCachePolicy, IndexOutOfBounds, Log, LogOptions, MemoryDirectory
from quire.log.memory import MemoryStorage
from quire.log.segment.index import FrameIndex, LoadedIndex, StoredIndex
from quire.log.simulated import Disk
from tests.log.histories import CLUSTER_ID, Clock


def log_with(options: LogOptions, frames: int = 100, disk: Disk | None = None) -> Log:
    directory = MemoryDirectory() if disk is None else disk.directory()
    log = Log.open(directory, options, cluster_id=CLUSTER_ID, clock=Clock(), standalone=True)
    for k in range(frames):
        log.append([str(k) * 60])
    log.flush()
    return log


def options(cached: int | None, policy: IndexCachePolicy = IndexCachePolicy.LRU) -> LogOptions:
    return LogOptions(segment_bytes=2048, index_interval_bytes=256, cached_indexes=cached, index_cache_policy=policy)


def reopened(options: LogOptions) -> Log:
    """A log of many segments, just opened: nothing of it was read yet."""
    disk = Disk()
    log_with(options, disk=disk).close()
    return log_with(options, 0, disk)


def cached(log: Log) -> list[int]:
    return list(log.segments.cached_indexes)


def test_every_index_is_cached_from_opening_on() -> None:
    disk = Disk()
    log = log_with(options(None), disk=disk)
    assert len(log.segments.bases) > 5
    assert cached(log) == list(log.segments.bases)[:-1]
    log.close()
    log = log_with(options(None), 0, disk)
    assert cached(log) == list(log.segments.bases)[:-1]
    assert [log.read(k).value for k in range(100)] == [str(k) * 60 for k in range(100)]


@pytest.mark.parametrize("policy", IndexCachePolicy)
def test_no_index_is_cached_but_that_of_the_write_segment(policy: IndexCachePolicy) -> None:
    for log in (log_with(options(0, policy)), reopened(options(0, policy))):
        assert [log.read(k).value for k in range(100)] == [str(k) * 60 for k in range(100)]
        assert cached(log) == []


@pytest.mark.parametrize("policy", [IndexCachePolicy.LRU, IndexCachePolicy.LFU])
@pytest.mark.parametrize("limit", [1, 3])
def test_reads_fill_a_cache_of_n_indexes_and_no_more(limit: int, policy: IndexCachePolicy) -> None:
    log = reopened(options(limit, policy))
    assert cached(log) == []
    for k in range(100):
        assert log.read(k).value == str(k) * 60
        assert len(cached(log)) <= limit
        assert log.segments.bases[-1] <= k or max(base for base in log.segments.bases if base <= k) in cached(log)
    assert len(cached(log)) == limit


def test_every_way_of_reading_uses_and_fills_the_cache() -> None:
    log = reopened(options(2))
    bases = log.segments.bases
    log.read(bases[0] + 1)
    log.reader.header(bases[1] + 1)
    log.reader.frame(bases[0] + 1)
    log.read_frames(bases[2] + 1, 1)
    assert cached(log) == [bases[0], bases[2]]


@pytest.mark.parametrize(
    ("policy", "kept"), [(IndexCachePolicy.LRU, [1, 2]), (IndexCachePolicy.LFU, [0, 2])], ids=["lru", "lfu"]
)
def test_lru_keeps_what_was_used_last_and_lfu_what_was_used_most(policy: IndexCachePolicy, kept: list[int]) -> None:
    log = reopened(options(2, policy))
    bases = log.segments.bases
    for place in (0, 0, 0, 1, 2):
        log.read(bases[place])
    assert cached(log) == [bases[place] for place in kept]


def test_the_newest_indexes_stay_whatever_is_read() -> None:
    log = log_with(options(2, IndexCachePolicy.NEWEST))
    newest = list(log.segments.bases)[-3:-1]
    assert cached(log) == newest
    for k in range(100):
        assert log.read(k).value == str(k) * 60
    assert cached(log) == newest
    assert cached(reopened(options(2, IndexCachePolicy.NEWEST))) == []


def test_a_cached_index_is_searched_without_its_file() -> None:
    disk = Disk()
    log_with(options(3), disk=disk).close()
    log = log_with(options(3), 0, disk)
    log.read(0)
    reads: list[str] = []

    def noted(operation: str, name: str) -> bool:
        reads.extend([name] if operation == "read" else [])
        return False

    disk.failing = noted
    log.read(1)
    assert [name for name in reads if name.endswith(".index")] == []
    log.read(log.segments.bases[1])
    assert [name for name in reads if name.endswith(".index")] != []


@pytest.mark.parametrize(
    ("policy", "is_loaded"), [(IndexCachePolicy.LRU, True), (IndexCachePolicy.NEWEST, False)], ids=["lru", "newest"]
)
def test_a_missing_index_file_is_made_again_by_a_read(policy: IndexCachePolicy, is_loaded: bool) -> None:
    disk = Disk()
    log_with(options(3, policy), disk=disk).close()
    log = log_with(options(3, policy), 0, disk)
    name = next(name for name in disk.names("log") if name.endswith(".index"))
    disk.delete(f"log/{name}")
    assert log.read(1).value == "1" * 60
    assert name in disk.names("log")
    assert cached(log) == ([0] if is_loaded else [])


def test_an_index_leaves_the_cache_with_its_segment() -> None:
    log = log_with(options(None))
    bases = list(log.segments.bases)
    log.expiry.remove(max_bytes=log.lookup.bytes_between(bases[2], 100))
    assert cached(log) == bases[2:-1]
    log.truncate(bases[4] - 1)
    assert cached(log) == [bases[2]]


def test_a_wrong_index_in_the_cache_is_rebuilt() -> None:
    disk = Disk()
    log_with(options(None), disk=disk).close()
    name = next(name for name in disk.names("log") if name.endswith(".index"))
    right = disk.content(f"log/{name}")
    log_with(options(None), 0, disk).close()
    # The last entry stays right, because the open checks that one.
    disk.replace(f"log/{name}", right[:28] + bytes([right[28] ^ 1]) + right[29:])
    log = log_with(options(None), 0, disk)
    assert log.read(0).value == "0" * 60
    assert disk.content(f"log/{name}") == right
    assert cached(log) == list(log.segments.bases)[:-1]


def test_a_negative_number_of_indexes_is_refused() -> None:
    with pytest.raises(ValueError, match="cached"):
        LogOptions(cached_indexes=-1)


def test_no_more_files_are_open_than_allowed(tmp_path: Path) -> None:
    directory = FileDirectory(tmp_path)
    few = LogOptions(segment_bytes=2048, open_segments=4, cached_indexes=0)
    log = Log.open(directory, few, cluster_id=CLUSTER_ID, clock=Clock(), standalone=True)
    for k in range(400):
        log.append([str(k) * 60])
    log.flush()
    before = len(os.listdir("/proc/self/fd"))
    assert len(log.segments.bases) > 20
    for k in [*range(400), *range(0, 400, 7)]:
        assert log.read(k).value == str(k) * 60
    assert len(os.listdir("/proc/self/fd")) <= before + 2 * 4
    log.close()


@pytest.mark.parametrize("records", [0, 1000, 5000])
def test_an_index_file_search_finds_the_same_entry_whatever_the_first_guess(records: int) -> None:
    index = FrameIndex(0, 0)
    relatives = [k if k < 300 else 300 + 7 * (k - 300) for k in range(700)]
    for place, relative in enumerate(relatives):
        index.add(place, relative, 10, 64 + 74 * place)
    storage = MemoryStorage()
    storage.write_at(0, index.encode())
    stored = StoredIndex(storage, records)
    loaded = stored.load()
    for relative in range(3200):
        right = index.entry_at(relative)
        assert stored.entry_at(relative) == right
        assert loaded.entry_at(relative) == right


def test_an_index_file_cut_inside_its_first_entry_finds_nothing() -> None:
    storage = MemoryStorage()
    storage.write_at(0, FrameIndex(0, 0).encode() + bytes(7))
    assert StoredIndex(storage, 10).entry_at(3) is None
    assert LoadedIndex(bytes(7)).entry_at(3) is None


TERABYTE = """
import os, random, struct, sys
from quire.log import FileDirectory, Log, LogOptions, encode_frame, encode_records
from quire.log.segment.index import FrameIndex
from quire.log.segment.mark import MarkFile, Mark
from quire.log.segment.store import StoreHeader, encode_store_header, index_name, store_name
from tests.log.memory import peak_kib

GB, SEGMENTS, TAIL = 1 << 30, 1024, 64
directory = FileDirectory(sys.argv[1])
files = directory.child("log")
size = GB - 64
# Each segment: a frame at its beginning, a hole of nearly 1 GB that belongs to it, and a small frame at its end.
crc, epoch, index = 0, 0, 0
for place in range(SEGMENTS):
    base = index
    store = files.create(store_name(base))
    store.write_at(0, encode_store_header(StoreHeader(base, 0, 1 if place else 0, crc, None, bytes(16))))
    entries = FrameIndex(base, 1 << 14)
    payload = encode_records([f"first of {place}"])
    position = 64
    for k in range(2):
        raw = encode_frame(index=index, epoch=0, timestamp=1, count=1, prev_crc32c=crc, kind=0, payload=payload)
        store.write_at(position, raw)
        crc = struct.unpack_from("<I", raw)[0]
        entries.add(crc, index, len(payload), position)
        position += len(raw)
        index += 1
    # A blob whose payload is a hole: only its header is looked at, for its bytes are never read.
    hole = GB - position - 64 - 64
    from quire.log.frames import seal_header
    header, head = seal_header(hole, 0, index, 0, 1, 1, crc, 0, 0, 1)
    store.write_at(position, head)
    entries.add(header.crc32c, index, hole, position)
    crc, index, position = header.crc32c, index + 1, position + header.size
    store.truncate(position)
    # The index of a real segment of this size has 65,536 entries.
    for k in range(65_000):
        entries._entries += entries._entries[-16:]
    if place < SEGMENTS - 1:
        file = files.create(index_name(base))
        file.write_at(0, entries.encode())
        file.close()
    store.close()
mark = MarkFile(directory.create("mark"))
mark.write_synced(Mark(0, index, base, position, 0, index, crc, True))
mark.close()
options = LogOptions(segment_bytes=GB, index_interval_bytes=1 << 14)
log = Log.open(directory, options, cluster_id=bytes(16), clock=lambda: 1, standalone=True)
assert log.size > 1023 * GB
chosen = random.Random(1)
for _ in range(20_000):
    place = chosen.randrange(SEGMENTS)
    assert log.read(3 * place + chosen.randrange(2)).value == f"first of {place}"
print(peak_kib() >> 10)
"""


@pytest.mark.full
def test_a_terabyte_in_segments_of_a_gigabyte_is_served_within_150_mb(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    done = subprocess.run(
        [sys.executable, "-c", TERABYTE, str(folder)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    shutil.rmtree(folder)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 150, f"{done.stdout} MiB resident"


def test_a_read_beyond_the_end_is_refused_and_loads_nothing() -> None:
    log = reopened(options(3))
    with pytest.raises(IndexOutOfBounds):
        log.read(100)
    assert cached(log) == []


def test_a_folder_in_memory_can_be_removed_once() -> None:
    directory = MemoryDirectory()
    directory.child("log")
    directory.remove_child("log")
    with pytest.raises(FileNotFoundError):
        directory.existing("log")
    with pytest.raises(FileNotFoundError):
        directory.remove_child("log")
