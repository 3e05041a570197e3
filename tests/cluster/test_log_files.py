"""`quire log segments|dump|verify|repair` on the files of closed logs."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from quire.cluster.cli.log_files import app
from quire.log import FileDirectory, Log, LogOptions, Record
from quire.replication import PromiseFile
from tests.log.streamed import append_stream

CLUSTER_ID = bytes(range(16))
VALUES = 400


def open_log(data_dir: Path) -> Log:
    clock = count(1_000_000)
    return Log.open(
        FileDirectory(data_dir),
        LogOptions(segment_bytes=8_000, max_frame_bytes=4 << 20, segment_overflow_bytes=4 << 20),
        cluster_id=CLUSTER_ID,
        clock=lambda: next(clock),
        standalone=True,
    )


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    log = open_log(tmp_path / "node")
    for number in range(VALUES // 2):
        log.append([f"value {number}", Record(number, {"h": "v"})])
    log.close()
    return tmp_path / "node"


def stores(data_dir: Path) -> list[Path]:
    return sorted((data_dir / "log").glob("*.store"))


def spoil(path: Path, position: int = 2000) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("path", "what"),
    [("file", "is a file"), ("empty", "has no log"), ("others", "has no log"), ("nowhere", "does not exist")],
)
def test_a_path_that_is_no_data_directory_is_said_to_be_what_it_is(tmp_path: Path, path: str, what: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "others" / "log").mkdir(parents=True)
    (tmp_path / "others" / "log" / "syslog").touch()

    for command in ("segments", "dump", "verify", "repair"):
        result = quire(command, tmp_path / path)
        assert result.exit_code == 2
        assert f"{path} {what}; name the directory" in result.stderr


def quire(*arguments: object) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


def answered(*arguments: object, code: int = 0) -> Any:
    result = quire(*arguments, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_segments_shows_bounds_sizes_and_the_mark(data_dir: Path) -> None:
    said = answered("segments", data_dir)
    assert [each["base_index"] for each in said["segments"]] == [int(path.stem) for path in stores(data_dir)]
    assert said["segments"][0]["cluster_id"] == CLUSTER_ID.hex()
    assert (said["mark"]["durable_index"], said["mark"]["clean"]) == (VALUES, True)
    shown = quire("segments", data_dir).stdout.splitlines()
    assert len(shown) == len(stores(data_dir)) + 2
    assert shown[-1] == f"mark: durable below {VALUES}, committed below {VALUES}; stopped cleanly"


def test_dump_prints_every_record_of_a_range_as_a_line(data_dir: Path) -> None:
    lines = [json.loads(line) for line in quire("dump", data_dir).stdout.splitlines()]
    assert [line["index"] for line in lines] == [*range(VALUES)]
    assert (lines[4]["value"], lines[5]["value"], lines[5]["headers"]) == ("value 2", 2, {"h": "v"})
    lines = [json.loads(line) for line in quire("dump", data_dir, "--from", 101, "--to", 104).stdout.splitlines()]
    assert [line["index"] for line in lines] == [101, 102, 103]
    lines = [json.loads(line) for line in quire("dump", data_dir, "--frames", "--to", 4).stdout.splitlines()]
    assert [(line["index"], line["count"], line["kind"]) for line in lines] == [(0, 2, "records"), (2, 2, "records")]
    assert lines[1]["prev_crc32c"] == lines[0]["crc32c"]


def test_dump_shows_only_the_header_of_a_blob_too_large_for_a_line(data_dir: Path) -> None:
    log = open_log(data_dir)
    append_stream(log, [bytes(1 << 20)] * 2)
    log.close()
    [line] = [json.loads(line) for line in quire("dump", data_dir, "--from", VALUES).stdout.splitlines()]
    assert (line["kind"], line["index"], line["length"]) == ("blob", VALUES, (2 << 20) + 4)


def test_dump_reports_a_corrupt_frame_and_continues_with_the_next_segment(data_dir: Path) -> None:
    second = stores(data_dir)[1]
    spoil(second)
    result = quire("dump", data_dir)
    assert result.exit_code == 1
    indexes = [json.loads(line)["index"] for line in result.stdout.splitlines()]
    assert indexes[-1] == VALUES - 1
    assert len(indexes) < VALUES
    assert f"segment {int(second.stem)} ends at byte" in result.stderr


def test_verify_reports_an_intact_log_or_what_is_corrupt(data_dir: Path) -> None:
    assert quire("verify", data_dir).stdout == f"{len(stores(data_dir))} segments, {VALUES} records: intact\n"
    assert answered("verify", data_dir)["faults"] == []
    second = stores(data_dir)[1]
    spoil(second)
    said = answered("verify", data_dir, code=1)
    [fault] = said["faults"]
    assert (fault["kind"], fault["file"]) == ("rot", second.name)
    assert int(second.stem) <= fault["from_index"] < fault["to_index"] < int(stores(data_dir)[2].stem)
    result = quire("verify", data_dir)
    assert result.exit_code == 1
    assert f"rot: {second.name} at byte {fault['position']}" in result.stdout


@pytest.mark.parametrize("side", ["before", "after"])
def test_repair_moves_files_to_quarantine_and_reports_what_was_lost(data_dir: Path, side: str) -> None:
    bytes_before = sum(path.stat().st_size for path in stores(data_dir))
    spoil(stores(data_dir)[1])
    said = answered("repair", data_dir, "--keep", side)
    folder = data_dir / said["folder"]
    assert sorted(path.name for path in folder.iterdir()) == sorted(said["files"])
    kept_from, kept_to = said["kept"]
    log = open_log(data_dir)
    assert log.bounds == (kept_from, kept_to)
    assert (kept_to == VALUES) == (side == "after")
    assert said["lost"] == ([kept_to, VALUES] if side == "before" else [0, kept_from])
    log.close()
    aside = sum(path.stat().st_size for path in folder.iterdir() if ".store" in path.name)
    assert aside + sum(path.stat().st_size for path in stores(data_dir)) >= bytes_before
    assert answered("verify", data_dir)["faults"] == []
    assert answered("repair", data_dir) == {"repaired": False, "faults": []}


def test_repair_asks_which_part_to_keep_if_there_are_two(data_dir: Path) -> None:
    spoil(stores(data_dir)[1])
    before = {path: path.read_bytes() for path in stores(data_dir)}
    result = quire("repair", data_dir)
    assert result.exit_code == 2
    assert "--keep before: records [0, " in result.stderr
    assert f", {VALUES}) stay" in result.stderr
    assert {path: path.read_bytes() for path in stores(data_dir)} == before


def test_repair_needs_no_side_if_only_one_is_possible(data_dir: Path) -> None:
    spoil(stores(data_dir)[-1], 200)
    result = quire("repair", data_dir)
    assert result.exit_code == 0
    assert "stay\n" in result.stdout
    assert "quarantine/" in result.stdout
    spoil(stores(data_dir)[0], 10)
    assert quire("repair", data_dir, "--keep", "before").exit_code == 1


def test_repair_does_not_change_a_cluster_node_s_log(data_dir: Path) -> None:
    PromiseFile.create(FileDirectory(data_dir), bytes(16)).close()
    spoil(stores(data_dir)[1])
    before = {path: path.read_bytes() for path in data_dir.rglob("*") if path.is_file()}
    result = quire("repair", data_dir, "--keep", "before")
    assert result.exit_code == 1
    assert "rot: " in result.stderr
    assert "cluster" in result.stderr.splitlines()[-1]
    assert {path: path.read_bytes() for path in data_dir.rglob("*") if path.is_file()} == before | {
        data_dir / "lock": b""
    }


@pytest.mark.parametrize("command", ["segments", "dump", "verify", "repair"])
def test_a_directory_in_use_or_without_a_log_is_refused(data_dir: Path, command: str) -> None:
    log = open_log(data_dir)
    result = quire(command, data_dir)
    assert result.exit_code == 1
    assert result.stderr.startswith("quire: ")
    assert "in use" in result.stderr
    log.close()
    empty = data_dir / "nothing"
    result = quire(command, empty)
    assert result.exit_code == 2
    assert not empty.exists()
