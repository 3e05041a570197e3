"""Gaps in archives: accepted by name, recorded in the manifest, and never passed over without a word."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql.types import LongType, StructType
from typer.testing import CliRunner

from quire.log import Tail
from quire.pipeline.archive.archive import ArchiveSummary
from quire.pipeline.archive.log import ArchiveLog, JoinedLog
from quire.pipeline.archive.manifest import MANIFEST_FILE, ArchiveManifest, RecordedGap, encode_line, whole_lines
from quire.pipeline.cli import app
from quire.pipeline.errors import ArchiveDamaged, ArchiveGap, GroundMissing, RecordsLost
from quire.pipeline.jobs import archive, replay, report, scrub
from quire.pipeline.origin.data_dir import DataDirLog
from quire.pipeline.source.options import SourceOptions
from quire.pipeline.source.readers import LogReader
from quire.sm.machines.arithmetic import ArithmeticMachine
from tests.pipeline.logs import SECOND, START, Clock, append_and_flush, expected_rows, writing
from tests.pipeline.test_archive import check_committed, expire, grow, killed_at, next_batch, rows_of, seen, streaming
from tests.pipeline.test_replay import run_cluster, snapshot_indices

ARCHIVED, END = 60, 200


class Gapped(NamedTuple):
    """An archive that lacks the records [ARCHIVED, lowest) of a log, and has all others below END."""

    path: Path
    log: Path
    whole: Path
    """A copy of the log from before it expired."""
    lowest: int
    summary: ArchiveSummary

    @property
    def indices(self) -> list[int]:
        """Those of the records that the archive has."""
        return [*range(ARCHIVED), *range(self.lowest, END)]


def expired(tmp_path: Path) -> tuple[SourceOptions, int]:
    """An archive at `archive` whose log at `log` has expired past its end; where the log begins."""
    log = tmp_path / "log"
    grow(log, 0, ARCHIVED)
    archive(SourceOptions(path=str(log)), str(tmp_path / "archive"))
    grow(log, ARCHIVED, END - ARCHIVED)
    shutil.copytree(log, tmp_path / "whole")
    return SourceOptions(path=str(log)), expire(log, 150)


@pytest.fixture
def gapped(tmp_path: Path) -> Gapped:
    options, lowest = expired(tmp_path)
    path = tmp_path / "archive"
    summary = archive(options, str(path), accept_gap=True)
    return Gapped(path, tmp_path / "log", tmp_path / "whole", lowest, summary)


def batch(**options: str) -> list[int]:
    """The indices that a batch read shows."""
    schema = StructType().add("index", LongType())
    reader = LogReader(SourceOptions.parse(options, streaming=False), schema)
    found = [rows for part in reader.partitions() for rows in reader.read(part)]
    return [index for rows in found for index in rows[0].to_pylist()]


def test_a_gap_is_refused_with_the_flag_that_accepts_it(tmp_path: Path) -> None:
    options, lowest = expired(tmp_path)
    before = (tmp_path / "archive" / MANIFEST_FILE).read_bytes()

    with pytest.raises(ArchiveGap, match=rf"\[{ARCHIVED}, {lowest}\).*--accept-gap"):
        archive(options, str(tmp_path / "archive"))
    assert (tmp_path / "archive" / MANIFEST_FILE).read_bytes() == before


def test_an_accepted_gap_is_recorded_and_the_archive_goes_on_after_it(gapped: Gapped) -> None:
    expected = expected_rows(gapped.whole)
    manifest = ArchiveManifest.read(str(gapped.path))

    assert gapped.summary.gaps == [(ARCHIVED, gapped.lowest)]
    assert gapped.summary.records == END - gapped.lowest
    [gap] = manifest.gaps
    assert (gap.from_index, gap.to_index) == (ARCHIVED, gapped.lowest)
    assert seen(gapped.path) == gapped.indices
    grow(gapped.log, END, 50)
    later = archive(SourceOptions(path=str(gapped.log)), str(gapped.path))
    assert (later.from_index, later.to_index, later.gaps) == (END, END + 50, [])
    files = ArchiveLog(str(gapped.path))
    assert files.bounds() == (0, END + 50)
    assert rows_of(files, files.stretches(0, ARCHIVED)) == expected[:ARCHIVED]
    assert rows_of(files, files.stretches(gapped.lowest, END)) == expected[gapped.lowest :]


def test_accepting_gaps_records_none_if_there_is_none(tmp_path: Path) -> None:
    grow(tmp_path / "log", 0, 100)

    summary = archive(SourceOptions(path=str(tmp_path / "log")), str(tmp_path / "archive"), accept_gap=True)

    assert (summary.records, summary.gaps) == (100, [])
    assert ArchiveManifest.read(str(tmp_path / "archive")).gaps == []


def test_an_archiver_killed_at_any_step_of_a_gap_goes_on_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, lowest = expired(tmp_path)
    expected = expected_rows(tmp_path / "whole")

    step = 1
    while True:
        path = tmp_path / f"archive{step}"
        shutil.copytree(tmp_path / "archive", path)
        if not killed_at(monkeypatch, step, partial(archive, options, str(path), accept_gap=True)):
            break
        held = ArchiveManifest.read(str(path)).files
        assert set(seen(path)) <= {index for file in held for index in range(file.from_index, file.to_index)}
        archive(options, str(path), accept_gap=True)
        files = ArchiveLog(str(path))
        assert [(gap.from_index, gap.to_index) for gap in files.manifest.gaps] == [(ARCHIVED, lowest)]
        assert seen(path) == [*range(ARCHIVED), *range(lowest, END)], step
        assert rows_of(files, files.stretches(lowest, END)) == expected[lowest:], step
        step += 1
    assert step > 12
    check_committed(tmp_path / "archive", expected)


def test_a_gap_before_the_first_file_and_two_in_a_row_are_one(tmp_path: Path) -> None:
    tail = Tail(10, 1, 7, 3)
    manifest = ArchiveManifest("archive", "cluster", Tail(5, 0, 0, 0))
    manifest.add(RecordedGap(5, tail._replace(index=8)))
    manifest.add(RecordedGap(8, tail))

    assert manifest.gaps == [RecordedGap(5, tail)]
    assert manifest.tail == tail


# Reading


def test_a_read_that_touches_a_gap_fails_before_it_begins_and_names_it(gapped: Gapped) -> None:
    lowest = gapped.lowest
    for start, end, lost in (
        (0, END, (ARCHIVED, lowest)),
        (ARCHIVED - 1, ARCHIVED + 1, (ARCHIVED, ARCHIVED + 1)),
        (ARCHIVED + 7, END, (ARCHIVED + 7, lowest)),
        (ARCHIVED + 7, ARCHIVED + 9, (ARCHIVED + 7, lowest)),
        (lowest - 1, lowest, (lowest - 1, lowest)),
    ):
        with pytest.raises(RecordsLost, match=rf"records a gap \[{ARCHIVED}, {lowest}\)") as raised:
            batch(path=str(gapped.path), startingOffsets=str(start), endingOffsets=str(end))
        assert (raised.value.from_index, raised.value.to_index) == lost


def test_a_read_beside_a_gap_is_whole(gapped: Gapped) -> None:
    path = str(gapped.path)

    assert batch(path=path, endingOffsets=str(ARCHIVED)) == list(range(ARCHIVED))
    assert batch(path=path, startingOffsets=str(gapped.lowest)) == list(range(gapped.lowest, END))


@pytest.mark.parametrize("parts", ["1", "7", "100"])
def test_without_fail_on_data_loss_a_gap_is_left_out_and_every_other_record_is_there_once(
    gapped: Gapped, parts: str, caplog: pytest.LogCaptureFixture
) -> None:
    for start in (0, ARCHIVED - 1, ARCHIVED, ARCHIVED + 3, gapped.lowest):
        found = batch(path=str(gapped.path), failOnDataLoss="false", startingOffsets=str(start), minPartitions=parts)
        assert found == [index for index in gapped.indices if index >= start], start
    assert f"records [{ARCHIVED}, {gapped.lowest})" in caplog.text
    inside = {"startingOffsets": str(ARCHIVED + 1), "endingOffsets": str(ARCHIVED + 5)}
    assert batch(path=str(gapped.path), failOnDataLoss="false", **inside) == []


def batches(**options: str) -> Iterator[tuple[list[int], int]]:
    """The batches of a stream up to its end: the indices of each, and where it ends."""
    stream = streaming(**options)
    end = stream.initialOffset()
    while True:
        found, after = next_batch(stream, end)
        if after == end:
            return
        yield found, after["index"]
        end = after


@pytest.mark.parametrize(
    "limit", [{}, {"maxOffsetsPerTrigger": "7"}, {"maxBytesPerTrigger": "900"}, {"maxBytesPerTrigger": "1"}]
)
def test_the_offsets_of_a_stream_jump_over_a_gap(gapped: Gapped, limit: dict[str, str]) -> None:
    with pytest.raises(RecordsLost):
        list(batches(path=str(gapped.path), **limit))
    found = list(batches(path=str(gapped.path), failOnDataLoss="false", **limit))

    assert [index for indices, _ in found for index in indices] == gapped.indices
    assert all(indices for indices, _ in found)


def test_a_time_within_a_gap_touches_it(tmp_path: Path) -> None:
    clock = Clock()
    log, path = tmp_path / "log", tmp_path / "archive"
    for number in range(END):
        if number == ARCHIVED:
            archive(SourceOptions(path=str(log)), str(path))
        clock.now = START + number * SECOND
        grow(log, number, 1, clock)
    lowest = expire(log, 150)
    archive(SourceOptions(path=str(log)), str(path), accept_gap=True)
    within, before = str((START + 100 * SECOND) // 1000), str((START + 20 * SECOND) // 1000)

    for limits in ({"startingTimestamp": within}, {"endingTimestamp": within}, {"startingTimestamp": before}):
        with pytest.raises(RecordsLost):
            batch(path=str(path), **limits)
    assert batch(path=str(path), endingTimestamp=before) == list(range(20))
    assert batch(path=str(path), startingTimestamp=within, failOnDataLoss="false") == list(range(lowest, END))
    assert batch(path=str(path), endingTimestamp=within, failOnDataLoss="false") == list(range(ARCHIVED))


def test_archive_and_log_are_one_history_with_a_gap(gapped: Gapped) -> None:
    grow(gapped.log, END, 50)
    options = {"path": str(gapped.log), "archive": str(gapped.path)}

    with pytest.raises(RecordsLost) as raised:
        batch(**options)
    assert (raised.value.from_index, raised.value.to_index) == (ARCHIVED, gapped.lowest)
    whole = [*gapped.indices, *range(END, END + 50)]
    assert batch(**options, failOnDataLoss="false") == whole
    assert [index for found, _ in batches(**options, failOnDataLoss="false") for index in found] == whole


def test_a_gap_that_is_accepted_between_plan_and_reading_is_lost_and_not_passed_over(tmp_path: Path) -> None:
    options, lowest = expired(tmp_path)
    joined = JoinedLog(ArchiveLog(str(tmp_path / "archive")), DataDirLog(str(tmp_path / "whole")))
    planned = joined.stretches(*joined.bounds())
    archive(options, str(tmp_path / "archive"), accept_gap=True)
    joined.live = DataDirLog(str(tmp_path / "log"))

    with pytest.raises(RecordsLost) as raised:
        rows_of(joined, planned)
    end = next(each.to_index for each in planned if each.to_index > ARCHIVED)
    assert (raised.value.from_index, raised.value.to_index) == (ARCHIVED, min(end, lowest))


# Jobs


def test_an_archive_of_an_archive_has_its_gap(gapped: Gapped, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options, copy = SourceOptions(path=str(gapped.path)), tmp_path / "copy"

    with pytest.raises(ArchiveGap, match="--accept-gap"):
        archive(options, str(copy))
    summary = archive(options, str(copy), accept_gap=True)

    assert (summary.records, summary.gaps) == (len(gapped.indices), [(ARCHIVED, gapped.lowest)])
    assert seen(copy) == gapped.indices
    assert ArchiveManifest.read(str(copy)).gaps[0].to_index == gapped.lowest
    assert "failOnDataLoss" not in caplog.text  # The gap was accepted: there is nothing to advise.


def test_a_gap_with_no_record_after_it_is_not_summed_up_as_accepted(gapped: Gapped, tmp_path: Path) -> None:
    lines = list(whole_lines(str(gapped.path)))
    place = next(number for number, line in enumerate(lines) if "gap" in line)
    (gapped.path / MANIFEST_FILE).write_bytes(b"".join(map(encode_line, lines[: place + 1])))

    summary = archive(SourceOptions(path=str(gapped.path)), str(tmp_path / "copy"), accept_gap=True)

    assert (summary.from_index, summary.to_index, summary.records, summary.gaps) == (0, ARCHIVED, ARCHIVED, [])
    assert ArchiveManifest.read(str(tmp_path / "copy")).gaps == []


def test_a_scrub_names_a_gap_and_finds_no_damage_in_it(gapped: Gapped) -> None:
    summary = scrub([str(gapped.path), str(gapped.whole)])

    [finding] = summary.findings
    assert (finding.kind, finding.from_index, finding.to_index) == ("gap", ARCHIVED, gapped.lowest)
    assert summary.is_whole
    assert summary.verdict == "whole, apart from 1 recorded gap, and the same on each"
    assert summary.nodes[str(gapped.path)].records == len(gapped.indices)


def test_a_scrub_compares_what_is_before_a_gap(gapped: Gapped, tmp_path: Path) -> None:
    with writing(tmp_path / "astray") as log:
        append_and_flush(log, *[[number if number != 40 else "another"] for number in range(ARCHIVED)])
    archive(SourceOptions(path=str(tmp_path / "astray")), str(tmp_path / "mixed"))
    archive(SourceOptions(path=str(gapped.log)), str(tmp_path / "mixed"), accept_gap=True)

    summary = scrub([str(gapped.path), str(gapped.whole), str(tmp_path / "mixed")])

    found = {(each.kind, each.node): (each.from_index, each.to_index) for each in summary.findings}
    assert found["differs", str(tmp_path / "mixed")] == (40, 41)
    assert len(found) == 3


def test_a_scrub_names_the_first_frame_that_differs_after_a_gap(gapped: Gapped, tmp_path: Path) -> None:
    with writing(tmp_path / "astray") as log:
        append_and_flush(log, *[[number if number != 170 else "another"] for number in range(END)])

    summary = scrub([str(gapped.path), str(gapped.whole), str(tmp_path / "astray")])

    [gap, differs] = summary.findings
    assert (gap.kind, differs.kind, differs.from_index, differs.to_index) == ("gap", "differs", 170, 171)


def test_the_chain_is_checked_after_a_gap(gapped: Gapped) -> None:
    lines = list(whole_lines(str(gapped.path)))
    gap = next(line for line in lines if "gap" in line)
    gap["tail"][3] ^= 1
    (gapped.path / MANIFEST_FILE).write_bytes(b"".join(map(encode_line, lines)))

    files = ArchiveLog(str(gapped.path))
    with pytest.raises(ArchiveDamaged):
        rows_of(files, files.stretches(gapped.lowest, END))
    assert not scrub([str(gapped.path)]).is_whole


@pytest.mark.parametrize("tail", [[150, 1, 1], [60, 1, 1, 1], [10, 1, 1, 1], [150, 1, 1, -1], "150", [150, 1, 1, 1, 1]])
def test_a_line_of_a_gap_with_an_impossible_field_is_damage(gapped: Gapped, tail: Any) -> None:
    lines = list(whole_lines(str(gapped.path)))
    next(line for line in lines if "gap" in line)["tail"] = tail
    (gapped.path / MANIFEST_FILE).write_bytes(b"".join(map(encode_line, lines)))

    with pytest.raises(ArchiveDamaged, match="a line lacks a field"):
        ArchiveLog(str(gapped.path))


def test_a_report_over_a_gap_is_refused_or_leaves_it_out(gapped: Gapped, tmp_path: Path) -> None:
    with pytest.raises(RecordsLost):
        report(SourceOptions(path=str(gapped.path)), str(tmp_path / "report"))
    run = CliRunner().invoke(app, ["report", str(tmp_path / "report"), "--path", str(gapped.path)])
    assert run.exit_code == 1
    assert "records a gap" in run.output
    assert "failOnDataLoss" not in run.output  # The command has no such option.
    assert run.output.endswith("; a report needs all records of its range\n")
    made = report(SourceOptions(path=str(gapped.path), failOnDataLoss=False), str(tmp_path / "report"))

    assert sum(sum(counts) for counts in made.operations.values()) == len(gapped.indices)


@pytest.mark.parametrize("snapshots", [4, 0])
def test_a_replay_begins_at_a_snapshot_after_the_gap_or_names_the_gap(tmp_path: Path, snapshots: int) -> None:
    log, path = tmp_path / "n1", tmp_path / "archive"
    run_cluster(tmp_path / "short", ArithmeticMachine(42), records=310, snapshots=0)
    archive(SourceOptions(path=str(tmp_path / "short")), str(path))
    run_cluster(log, ArithmeticMachine(42), snapshots=snapshots)
    lowest = expire(log, 750)
    archive(SourceOptions(path=str(log)), str(path), accept_gap=True)

    if not snapshots:
        with pytest.raises(GroundMissing, match=r"records a gap \[3\d\d, \d+\)"):
            replay(SourceOptions(path=str(path)))
        return
    summary = replay(SourceOptions(path=str(path)))
    assert summary.is_proven
    assert summary.from_index == next(each for each in snapshot_indices(log) if each >= lowest)
    assert "records a gap" in summary.left_out[0]
