"""Where to cut a range of the log into parts of so many bytes: the boundaries are those of the frames themselves."""

from __future__ import annotations

import random
import struct
from dataclasses import replace

import pytest

from quire.log import IndexCachePolicy, IndexExpired, Log, LogOptions, MemoryDirectory
from tests.log.histories import CLUSTER_ID, SMALL, Clock

LARGE = LogOptions(segment_bytes=1 << 20, index_bytes=1 << 20, index_interval_bytes=512)
OPTIONS = {
    "one frame an entry": replace(SMALL, index_interval_bytes=0),
    "many segments, the indexes in files": replace(SMALL, cached_indexes=0),
    "many segments, the indexes in memory": replace(SMALL, cached_indexes=100, index_cache_policy=IndexCachePolicy.LRU),
    "many frames an entry": LARGE,
}


def filled(files: MemoryDirectory, options: LogOptions, seed: int = 1) -> tuple[Log, list[int], list[int]]:
    """A log with frames of many sizes; the boundaries, and the bytes of the frames before each."""
    log = Log.open(files, options, cluster_id=CLUSTER_ID, clock=Clock(), standalone=True)
    chance = random.Random(seed)
    boundaries, sizes = [0], [0]
    for _ in range(120):
        values = [b"x" * chance.choice((1, 1, 1, 30, 300)) for _ in range(chance.choice((1, 1, 2, 5)))]
        log.append(values)
        log.flush()
        boundaries.append(log.bounds.highest_index)
        sizes.append(log.lookup.bytes_between(0, boundaries[-1]))
    return log, boundaries, sizes


def expected(boundaries: list[int], sizes: list[int], place: int, to_place: int, max_bytes: int) -> tuple[int, int]:
    """The same, found by going over all frames."""
    held = [each for each in range(place + 1, to_place + 1) if sizes[each] - sizes[place] <= max_bytes]
    last = held[-1] if held else place + 1
    return boundaries[last], sizes[last] - sizes[place]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_frames_up_to_a_boundary_have_at_most_the_bytes_and_another_would_exceed_them(options: LogOptions) -> None:
    log, boundaries, sizes = filled(MemoryDirectory(), options)
    frames = len(boundaries) - 1
    for place in range(0, frames, 7):
        for to_place in (place + 1, min(place + 9, frames), frames):
            exact = {sizes[each] - sizes[place] for each in range(place + 1, min(place + 30, frames))}
            for max_bytes in {0, 1, 700, sizes[-1], *exact, *(size - 1 for size in exact)}:
                found = log.lookup.boundary_within(boundaries[place], boundaries[to_place], max_bytes)
                assert found == expected(boundaries, sizes, place, to_place, max_bytes), (place, to_place, max_bytes)


BEYOND = [struct.pack("<IIII", 0, relative, 0, 0) for relative in (30, 1 << 31)]
"""Records of a later segment, and of none."""


@pytest.mark.parametrize("entry", [b"", b"\0" * 16, b"\xff" * 16, *BEYOND, None])
def test_a_boundary_is_that_of_a_frame_though_the_index_file_names_another(entry: bytes | None) -> None:
    """`entry` stands in place of each one of each index file; with None, there is no file."""
    files = MemoryDirectory()
    options = replace(SMALL, cached_indexes=0)
    log, boundaries, sizes = filled(files, options)
    folder = files.child("log")
    names = [name for name in folder.list() if name.endswith(".index")]
    assert len(names) > 5
    for name in names:
        if entry is None:
            folder.remove(name)
            continue
        file = folder.open(name)
        entries = file.read_at(16, file.size - 16)
        file.write_at(16, entry * (len(entries) // 16) if entry else entries[16:] + entries[:16])
    for place, max_bytes in ((0, 700), (0, 5000), (40, 1500), (90, 3000)):
        found = log.lookup.boundary_within(boundaries[place], boundaries[-1], max_bytes)
        assert found == expected(boundaries, sizes, place, len(boundaries) - 1, max_bytes)


def test_the_boundaries_of_expired_frames_are_not_told() -> None:
    log, boundaries, sizes = filled(MemoryDirectory(), SMALL)
    log.expiry.remove(max_bytes=sizes[-1] // 2)
    lowest = log.bounds.lowest_index
    with pytest.raises(IndexExpired):
        log.lookup.boundary_within(0, boundaries[-1], 1000)
    place, frames = boundaries.index(lowest), len(boundaries) - 1
    for max_bytes in (1, 1000, 3000, sizes[-1]):
        found = log.lookup.boundary_within(lowest, boundaries[-1], max_bytes)
        assert found == expected(boundaries, sizes, place, frames, max_bytes)
