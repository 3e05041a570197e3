"""Scrubbing data_dirs, archives and nodes, and comparing them: what is wrong is found at its exact place."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from crc32c import crc32c

from quire.log import HEADER_BYTES, LogOptions
from quire.log.frames import walk_headers
from quire.log.options import STORE_HEADER_BYTES
from quire.pipeline.errors import ForeignLog, NoLog
from quire.pipeline.jobs import Finding, ScrubSummary, archive, scrub
from quire.pipeline.scrub.segment import MAX_BYTES, FlippedBit, flipped_bit, scrub_segment
from quire.pipeline.scrub.walk import BOUNDARY_RECORDS
from quire.pipeline.source.options import SourceOptions
from tests.pipeline.logs import append_and_flush, every_kind, writing
from tests.pipeline.test_archive import expire

RECORDS = 600


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RECORDS numbered records, three a frame, in several segments."""
    path = tmp_path_factory.mktemp("log") / "n1"
    write(path)
    return path


def write(path: Path, changed: int | None = None, records: int = RECORDS) -> None:
    with writing(path, LogOptions(segment_bytes=4096, index_bytes=1 << 20, index_interval_bytes=512)) as log:
        for first in range(0, records, 3):
            value = "other" if first == changed else "equal"
            append_and_flush(log, [[first, value], [first + 1, "equal"], [first + 2, "equal"]])


@pytest.fixture
def node(log: Path, tmp_path: Path) -> Path:
    """A copy, to be harmed."""
    return Path(shutil.copytree(log, tmp_path / "n2"))


def stores(path: Path) -> list[Path]:
    return sorted((path / "log").glob("*.store"))


def flip(file: Path, position: int, bit: int) -> None:
    raw = bytearray(file.read_bytes())
    raw[position] ^= 1 << bit
    file.write_bytes(raw)


def frames(store: Path) -> list[tuple[int, int, int]]:
    """(position, first index, bytes) of the frames of a sealed store."""
    return [
        (STORE_HEADER_BYTES + at, header.index, header.size) for at, header in walk_headers(store.read_bytes()[64:])
    ]


def scrubbed(*paths: Path) -> ScrubSummary:
    return scrub([str(path) for path in paths])


def test_a_log_that_is_whole_has_nothing_to_find(log: Path, tmp_path: Path) -> None:
    with writing(tmp_path / "history") as history:
        every_kind(history)
    summary = scrubbed(log)

    assert summary.findings == []
    assert summary.is_whole
    told = summary.nodes[str(log)]
    assert (told.from_index, told.to_index, told.records, told.frames) == (0, RECORDS, RECORDS, RECORDS // 3)
    assert scrubbed(tmp_path / "history").findings == []


def test_any_flipped_bit_of_any_frame_is_found_at_its_exact_place(node: Path) -> None:
    store = stores(node)[1]
    whole, chance = store.read_bytes(), random.Random(1)

    for position, index, size in frames(store):
        byte, bit = chance.randrange(size), chance.randrange(8)
        flip(store, position + byte, bit)

        [finding] = scrubbed(node).findings

        assert finding == Finding(
            str(node),
            "corrupt",
            f"bit {bit} of this byte was flipped "
            f"({'header' if byte < HEADER_BYTES else 'payload'} of the frame at byte {position})",
            f"log/{store.name}",
            int(store.stem),
            position + byte,
            index,
            index + 3,
        ), (byte, bit)
        store.write_bytes(whole)


def test_every_flipped_bit_of_one_frame_is_found_at_its_exact_place(node: Path) -> None:
    store = stores(node)[0]
    position, index, _ = frames(store)[2]
    whole = store.read_bytes()

    for byte in range(position, position + HEADER_BYTES + 4):
        flip(store, byte, byte % 8)
        [finding] = scrubbed(node).findings
        assert (finding.position, finding.from_index) == (byte, index), byte
        store.write_bytes(whole)


def test_two_faults_in_one_segment_are_both_found(node: Path) -> None:
    store = stores(node)[1]
    third, ninth = frames(store)[2], frames(store)[8]
    flip(store, third[0] + 10, 3)
    flip(store, ninth[0] + HEADER_BYTES + 5, 0)

    found = scrubbed(node).findings

    assert [(each.position, each.from_index) for each in found] == [
        (third[0] + 10, third[1]),
        (ninth[0] + HEADER_BYTES + 5, ninth[1]),
    ]


def test_what_lies_behind_a_header_that_is_gone_is_named_as_unread(node: Path) -> None:
    store, following = stores(node)[1:3]
    position, index, _ = frames(store)[3]
    raw = bytearray(store.read_bytes())
    raw[position : position + HEADER_BYTES] = b"\xff" * HEADER_BYTES
    store.write_bytes(raw)

    [finding] = scrubbed(node).findings

    assert (finding.position, finding.from_index, finding.to_index) == (position, index, int(following.stem))


def test_a_store_that_ends_too_early_is_found(node: Path) -> None:
    store, following = stores(node)[1:3]
    position, index, _ = frames(store)[3]
    store.write_bytes(store.read_bytes()[:position])

    [finding] = scrubbed(node).findings

    assert finding.reason == "the store ends here"
    assert (finding.position, finding.from_index, finding.to_index) == (position, index, int(following.stem))


def test_a_store_s_header_is_looked_at(node: Path) -> None:
    flip(stores(node)[1], 20, 1)

    [finding] = scrubbed(node).findings

    assert (finding.kind, finding.position, finding.segment) == ("corrupt", 0, int(stores(node)[1].stem))


@pytest.mark.parametrize("byte", [8, 12, 28, 32, 36, 40, 44])
def test_an_index_file_that_does_not_fit_is_found_and_is_no_rot(node: Path, byte: int) -> None:
    store = stores(node)[1]
    flip(store.with_suffix(".index"), byte, 2)

    summary = scrubbed(node)

    assert [(each.kind, each.file) for each in summary.findings] == [("index", f"log/{store.stem}.index")]
    assert summary.is_whole


def test_an_index_entry_of_a_record_that_is_not_committed_is_not_judged(log: Path) -> None:
    store = stores(log)[1]
    _, first_uncommitted, _ = frames(store)[2]

    walked = scrub_segment(str(log), int(store.stem), first_uncommitted)

    assert walked.findings == []
    assert walked.records == first_uncommitted - int(store.stem)


def test_equal_nodes_are_equal_whatever_their_segments_are(log: Path, tmp_path: Path) -> None:
    with writing(tmp_path / "n3", LogOptions(segment_bytes=1 << 20)) as other:
        for store in stores(log):
            raw = store.read_bytes()[STORE_HEADER_BYTES:].rstrip(b"\0")
            other.append_frames(raw)
        other.flush()

    summary = scrubbed(log, tmp_path / "n3")

    assert summary.findings == []
    assert {told.records for told in summary.nodes.values()} == {RECORDS}


@pytest.mark.parametrize("changed", [0, 300, RECORDS - 3])
def test_the_first_record_that_two_nodes_have_differently_is_named(log: Path, tmp_path: Path, changed: int) -> None:
    write(tmp_path / "n2", changed=changed)
    shutil.copytree(log, tmp_path / "n3")

    summary = scrubbed(log, tmp_path / "n2", tmp_path / "n3")

    [finding] = summary.findings
    assert (finding.kind, finding.node) == ("differs", str(tmp_path / "n2"))
    assert (finding.from_index, finding.to_index) == (changed, changed + 3)
    assert not summary.is_whole


def test_a_node_that_lags_is_compared_as_far_as_it_has_come(log: Path, tmp_path: Path) -> None:
    write(tmp_path / "n2", records=300)
    assert scrubbed(log, tmp_path / "n2").findings == []

    write(tmp_path / "n4", changed=297, records=300)
    [finding] = scrubbed(log, tmp_path / "n2", tmp_path / "n4").findings
    assert (finding.node, finding.from_index) == (str(tmp_path / "n4"), 297)


def write_frames(path: Path, *lengths: int, lowest: int = 0) -> None:
    """A log of frames of so many records each; from `lowest` on, what is below has expired."""
    index = 0
    with writing(path, LogOptions(segment_bytes=4096 if lowest else 1 << 20, index_bytes=1 << 20)) as log:
        for length in lengths:
            append_and_flush(log, [[index + place] for place in range(length)])
            index += length
    if lowest:
        expire(path, lowest)


@pytest.mark.parametrize(
    ("ours", "theirs"), [([3] * 101, [4] * 80), ([5], [1] * 5), ([2], [1, 1, 1]), ([7, 7], [7, 6])]
)
def test_split_brains_whose_frames_end_elsewhere_are_found(tmp_path: Path, ours: list[int], theirs: list[int]) -> None:
    write_frames(tmp_path / "n1", *[3] * 100, *ours)
    write_frames(tmp_path / "n2", *[3] * 100, *theirs)

    for paths in ((tmp_path / "n1", tmp_path / "n2"), (tmp_path / "n2", tmp_path / "n1")):
        summary = scrubbed(*paths)

        assert not summary.is_whole
        [finding] = summary.findings
        parted = 300 if ours[0] != theirs[0] else 307
        assert (finding.kind, finding.from_index) == ("differs", parted)


@pytest.mark.parametrize("crossing", [1, BOUNDARY_RECORDS, 2 * BOUNDARY_RECORDS + 1])
def test_split_brains_are_found_behind_a_frame_that_crosses_many_boundaries(tmp_path: Path, crossing: int) -> None:
    start = [BOUNDARY_RECORDS - 1, crossing]
    write_frames(tmp_path / "n1", *start, 100, 7)
    write_frames(tmp_path / "n2", *start, 101)
    write_frames(tmp_path / "n3", *start)

    [finding] = scrubbed(tmp_path / "n1", tmp_path / "n2", tmp_path / "n3").findings

    assert (finding.kind, finding.from_index) == ("differs", sum(start))
    assert scrubbed(tmp_path / "n1", tmp_path / "n3").findings == []


def test_nodes_are_compared_with_each_other_whatever_the_shortest_log_is(tmp_path: Path) -> None:
    write_frames(tmp_path / "n1", *[3] * 10)
    write_frames(tmp_path / "n2", *[3] * 200, 3, lowest=300)
    write_frames(tmp_path / "n3", *[3] * 200, 4, lowest=300)

    summary = scrubbed(tmp_path / "n1", tmp_path / "n2", tmp_path / "n3")

    [finding] = summary.findings
    assert (finding.kind, finding.from_index) == ("differs", 600)
    assert {name: node.compared_to for name, node in summary.nodes.items()} == {
        str(tmp_path / "n1"): None,
        str(tmp_path / "n2"): 603,
        str(tmp_path / "n3"): 604,
    }


def test_logs_that_share_no_record_are_not_the_same(tmp_path: Path) -> None:
    write_frames(tmp_path / "n1", *[3] * 10)
    write_frames(tmp_path / "n2", *[3] * 200, lowest=300)

    summary = scrubbed(tmp_path / "n1", tmp_path / "n2")

    assert (summary.is_whole, summary.is_same) == (True, False)
    assert summary.verdict == f"whole; compared with no other: {tmp_path / 'n1'}, {tmp_path / 'n2'}"
    write_frames(tmp_path / "n3", *[3] * 10)
    summary = scrubbed(tmp_path / "n1", tmp_path / "n3")
    assert (summary.is_same, summary.verdict) == (True, "whole, and the same on each")
    assert scrubbed(tmp_path / "n1").verdict == "whole"


def test_an_archive_is_scrubbed_and_compared_like_a_node(log: Path, tmp_path: Path) -> None:
    archive(SourceOptions(path=str(log)), str(tmp_path / "archive"))
    assert scrubbed(log, tmp_path / "archive").findings == []

    files = sorted((tmp_path / "archive").glob("date=*/segment=*/*.parquet"))
    flip(files[1], 40, 5)
    files[3].unlink()
    summary = scrubbed(log, tmp_path / "archive")

    assert [(each.kind, each.file) for each in summary.findings] == [
        ("corrupt", str(files[1].relative_to(tmp_path / "archive"))),
        ("corrupt", str(files[3].relative_to(tmp_path / "archive"))),
    ]


def test_logs_of_two_clusters_are_not_compared(log: Path, tmp_path: Path) -> None:
    with writing(tmp_path / "foreign", cluster_id=b"x" * 16) as foreign:
        append_and_flush(foreign, [1])

    with pytest.raises(ForeignLog):
        scrubbed(log, tmp_path / "foreign")


def test_a_folder_without_a_log_cannot_be_scrubbed(tmp_path: Path) -> None:
    with pytest.raises(NoLog):
        scrubbed(tmp_path)


@pytest.mark.parametrize("length", [1, 5, 60, 4096])
def test_one_flipped_bit_is_told_by_its_crc(length: int) -> None:
    chance = random.Random(length)
    message = chance.randbytes(length)

    for _ in range(40):
        byte, bit = chance.randrange(length), chance.randrange(8)
        harmed = bytearray(message)
        harmed[byte] ^= 1 << bit
        assert flipped_bit(bytes(harmed), crc32c(message)) == FlippedBit(byte, bit)
    for bit in range(32):
        assert flipped_bit(message, crc32c(message) ^ 1 << bit) == FlippedBit(-1, bit)


def test_two_flipped_bits_are_not_taken_for_one() -> None:
    message = bytes(1000)
    harmed = bytearray(message)
    harmed[17] ^= 1
    harmed[801] ^= 64

    assert flipped_bit(bytes(harmed), crc32c(message)) is None
    assert flipped_bit(message, crc32c(message)) is None


def test_a_message_above_the_limit_is_not_stepped_through() -> None:
    at, above = bytes(MAX_BYTES), bytes(MAX_BYTES + 1)

    assert flipped_bit(at[:-1] + b"\x01", crc32c(at)) == FlippedBit(MAX_BYTES - 1, 0)
    assert flipped_bit(above[:-1] + b"\x01", crc32c(above)) is None
