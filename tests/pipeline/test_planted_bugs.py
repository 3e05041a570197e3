"""Bugs that are planted here, one by one, and must not pass the tests that look for them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quire.pipeline.origin.cluster
import quire.pipeline.origin.data_dir
import quire.pipeline.source.readers
from quire.log import FrameHeader, Log, LogError, Tail
from quire.log.frames import HEADER_BYTES, decode_header
from quire.pipeline.errors import PipelineError
from quire.pipeline.origin.cluster import ClusterLog
from quire.pipeline.origin.data_dir import DataDirLog
from quire.pipeline.origin.origin import Bounds, Stretch
from quire.pipeline.origin.rows import RowBuilder
from quire.pipeline.origin.segment import SegmentFile
from quire.pipeline.source.offsets import Offset
from quire.pipeline.source.readers import LogStreamReader
from tests.pipeline import test_files, test_nodes, test_stream
from tests.pipeline.logs import SECOND, START, Clock, every_kind, writing

Patch = pytest.MonkeyPatch
Check = Callable[[Path], None]


def rows_twice_on_a_change_of_node(patch: Patch) -> None:
    original: Callable[..., Any] = vars(ClusterLog)["_page"]

    def planted(log: ClusterLog, stretch: Stretch, index: int, tail: Tail | None, *rest: Any, **more: Any) -> Any:
        return original(log, stretch, index if tail is None else index - 1, None, *rest, **more)

    patch.setattr(ClusterLog, "_page", planted)


def a_node_s_chain_not_checked(patch: Patch) -> None:
    patch.setattr(quire.pipeline.origin.cluster, "follow", unchecked)


def a_file_s_chain_not_checked(patch: Patch) -> None:
    patch.setattr(quire.pipeline.origin.data_dir, "follow", unchecked)


def unchecked(_tail: Tail, header: FrameHeader) -> Tail:
    return Tail(header.next_index, header.epoch, header.timestamp, header.crc32c)


def payloads_not_verified(patch: Patch) -> None:
    def walk(raw: memoryview, *, partial: bool) -> Iterator[tuple[int, FrameHeader]]:
        offset = 0
        while offset + HEADER_BYTES <= len(raw):
            header = decode_header(raw, offset)
            if offset + header.size > len(raw):
                return
            yield offset, header
            offset += header.size

    patch.setattr(quire.pipeline.origin.data_dir, "walk_headers", walk)


def the_next_segment_not_compared(patch: Patch) -> None:
    patch.setattr(DataDirLog, "_check_next", lambda self, base, tail: None)


def above_the_commit_index(patch: Patch) -> None:
    original = DataDirLog.bounds

    def planted(files: DataDirLog) -> Bounds:
        low, high = original(files)
        return Bounds(low, high + 1)

    patch.setattr(DataDirLog, "bounds", planted)


def a_row_skipped_at_a_segment_s_boundary(patch: Patch) -> None:
    original = DataDirLog.stretches

    def planted(files: DataDirLog, from_index: int, to_index: int) -> list[Stretch]:
        found = original(files, from_index, to_index)
        return [*(stretch._replace(to_index=stretch.to_index - 1) for stretch in found[:-1]), *found[-1:]]

    patch.setattr(DataDirLog, "stretches", planted)


def what_expired_is_passed_over_in_silence(patch: Patch) -> None:
    def planted(options: Any, origin: Any, bounds: Bounds, index: int, to_index: int) -> int:
        return max(index, bounds.lowest_index)

    patch.setattr(quire.pipeline.source.readers, "held_index", planted)


def the_index_file_believed(patch: Patch) -> None:
    def planted(segment: SegmentFile, place: int) -> int | None:
        places: list[tuple[int, int, int]] = vars(SegmentFile)["_places"](segment)
        return places[place][2] if 0 <= place < len(places) else None

    patch.setattr(SegmentFile, "_named", planted)


def one_sequence_for_a_whole_run(patch: Patch) -> None:
    original: Callable[..., Any] = vars(RowBuilder)["_sessions"]

    def planted(gathering: RowBuilder) -> Any:
        session, sequence = original(gathering)
        return session, np.minimum(sequence, sequence[0])

    patch.setattr(RowBuilder, "_sessions", planted)


def the_limit_of_records_ignored(patch: Patch) -> None:
    patch.setattr(LogStreamReader, "_limited", lambda self, origin, start, end, limit: end)


def the_limit_of_bytes_one_frame_too_far(patch: Patch) -> None:
    original = DataDirLog.index_within_bytes

    def planted(files: DataDirLog, from_index: int, to_index: int, max_bytes: int) -> int:
        return min(to_index, original(files, from_index, to_index, max_bytes) + 1)

    patch.setattr(DataDirLog, "index_within_bytes", planted)


def a_batch_that_begins_one_record_early(patch: Patch) -> None:
    original = LogStreamReader.partitions

    def planted(reader: LogStreamReader, start: dict[str, Any], end: dict[str, Any]) -> Any:
        return original(reader, {**start, "index": max(0, start["index"] - 1)}, end)

    patch.setattr(LogStreamReader, "partitions", planted)


def another_cluster_s_log_read_on(patch: Patch) -> None:
    def planted(reader: LogStreamReader, start: dict[str, Any]) -> Any:
        return vars(LogStreamReader)["_opened"](reader), Offset.from_document(start)

    patch.setattr(LogStreamReader, "_checked", planted)


def available_now_runs_after_what_is_appended(patch: Patch) -> None:
    patch.setattr(LogStreamReader, "prepareForTriggerAvailableNow", lambda self: None)


def fresh(path: Path) -> Path:
    """An empty folder in the place of what an earlier look left there."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def on_history(check: Callable[..., None], *arguments: Any) -> Check:
    """A check on a log with every kind of record."""

    def run(top: Path) -> None:
        path = fresh(top / "history")
        with writing(path) as log:
            every_kind(log)
        check(path, *arguments)

    return run


def on_numbers(check: Callable[..., None], *arguments: Any) -> Check:
    """A check on a log of 100 records in frames of two, a second apart."""

    def run(top: Path) -> None:
        clock, path = Clock(), fresh(top / "numbers")
        with writing(path, clock=clock) as log:
            write_numbers(log, clock)
        check(path, *arguments)

    return run


def write_numbers(log: Log, clock: Clock) -> None:
    for number in range(50):
        clock.now = START + number * SECOND
        log.append([b"x" * 30, b"y" * 31])


def on_nothing(check: Callable[..., None], *arguments: Any) -> Check:
    """A check that writes its own log."""
    return lambda top: check(fresh(top / "own"), *arguments)


def another_cluster(path: Path) -> None:
    test_stream.test_a_directory_of_another_cluster_is_refused(path, fresh(path.parent / "elsewhere"))


PLANTED: list[tuple[Callable[[Patch], None], Check]] = [
    (
        rows_twice_on_a_change_of_node,
        on_nothing(test_nodes.test_a_read_goes_on_at_another_node_behind_the_last_row_that_it_has),
    ),
    (
        a_node_s_chain_not_checked,
        on_nothing(test_nodes.test_a_node_whose_log_does_not_follow_what_was_read_is_passed_over),
    ),
    (a_file_s_chain_not_checked, on_nothing(test_files.test_rot_is_told_with_file_and_position, "chain")),
    (payloads_not_verified, on_nothing(test_files.test_rot_is_told_with_file_and_position, "payload")),
    (the_next_segment_not_compared, on_nothing(test_files.test_rot_is_told_with_file_and_position, "segment")),
    (above_the_commit_index, on_nothing(test_files.test_what_is_not_committed_is_not_there)),
    (
        a_row_skipped_at_a_segment_s_boundary,
        on_history(test_files.test_stretches_of_any_number_show_every_record_once_and_as_it_is, 1),
    ),
    (
        what_expired_is_passed_over_in_silence,
        on_numbers(test_stream.test_what_expired_while_the_query_was_away_is_named_or_passed_over),
    ),
    (the_index_file_believed, on_nothing(test_files.test_an_index_file_is_not_believed, "wrong")),
    (
        one_sequence_for_a_whole_run,
        on_history(test_files.test_stretches_of_any_number_show_every_record_once_and_as_it_is, 1),
    ),
    (
        the_limit_of_records_ignored,
        on_numbers(test_stream.test_a_batch_holds_no_more_records_than_the_limit, 33, [33, 66, 99, 100]),
    ),
    (
        the_limit_of_bytes_one_frame_too_far,
        on_numbers(test_stream.test_a_batch_holds_no_more_bytes_than_the_limit_but_a_frame_at_least, 260, 2),
    ),
    (
        a_batch_that_begins_one_record_early,
        on_numbers(test_stream.test_a_batch_holds_no_more_records_than_the_limit, 33, [33, 66, 99, 100]),
    ),
    (another_cluster_s_log_read_on, on_numbers(another_cluster)),
    (
        available_now_runs_after_what_is_appended,
        on_numbers(test_stream.test_available_now_reads_to_the_end_of_that_moment),
    ),
]


@pytest.mark.parametrize(("plant", "check"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_a_planted_bug_is_caught_and_only_because_of_it(
    plant: Callable[[Patch], None], check: Check, tmp_path: Path
) -> None:
    check(tmp_path)
    with Patch.context() as patch:
        plant(patch)
        with pytest.raises((AssertionError, LogError, PipelineError, pytest.fail.Exception)):
            check(tmp_path)
