"""How a file becomes batches, and where a load stops when an answer is missing."""

import asyncio
import io
import json
from pathlib import Path

import pytest

from quire.cluster.cli.exits import Exit
from quire.cluster.cli.load import Batch, batches, load_file
from tests.cluster.scripted import applied, broken, refusing, scripted


def lines_of(count: int) -> io.BytesIO:
    return io.BytesIO(b"".join(b"[%d]\n" % number for number in range(1, count + 1)))


@pytest.mark.parametrize(("count", "batch"), [(0, 3), (1, 3), (3, 3), (7, 3), (6, 3), (5, 1)])
def test_batches_hold_every_line_once_in_order(count: int, batch: int) -> None:
    made = list(batches(lines_of(count), batch))

    assert b"".join(part.body for part in made) == lines_of(count).read()
    assert all(part.to_line - part.from_line <= batch for part in made)
    assert [part.from_line for part in made] == [1, *(part.to_line for part in made)][: len(made)]
    assert sum(part.to_line - part.from_line for part in made) == count


def test_a_batch_of_long_lines_is_cut_at_the_limit_of_bytes() -> None:
    lines = [b"x" * 30 + b"\n", b"y" * 30 + b"\n", b"z" * 200 + b"\n", b"w\n"]

    made = list(batches(io.BytesIO(b"".join(lines)), 4, limit_bytes=70))

    assert b"".join(part.body for part in made) == b"".join(lines)
    assert all(len(part.body) <= 70 or part.to_line - part.from_line == 1 for part in made)


def test_a_last_line_without_an_end_is_a_line() -> None:
    assert list(batches(io.BytesIO(b"1\n2"), 5)) == [Batch(1, 3, b"1\n2")]


async def test_an_unknown_outcome_stops_the_load_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, acknowledged = tmp_path / "commands.ndjson", tmp_path / "acknowledged.ndjson"
    file.write_bytes(lines_of(6).read())

    async with scripted(applied("1", "2"), broken) as server:
        code = await asyncio.to_thread(load_file, server.address, file, 2, acknowledged, as_json=True, timeout_s=5)
        assert [body for _, _, body in server.requests] == [b"[1]\n[2]\n", b"[3]\n[4]\n"]

    captured = capsys.readouterr()
    assert code == Exit.OUTCOME_UNKNOWN
    assert "lines 1 to 2 are acknowledged" in captured.err
    assert "begins at line 3 may or may not be applied" in captured.err
    assert json.loads(captured.out)["commands"] == 2
    assert [json.loads(line) for line in acknowledged.read_text().splitlines()] == [
        {"from_line": 1, "to_line": 3, "index": 7, "epoch": 1}
    ]


async def test_a_cluster_that_goes_away_stops_the_load_with_nothing_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "commands.ndjson"
    file.write_bytes(lines_of(6).read())

    async with scripted(applied("1", "2"), refusing(503, "no-leader")) as server:
        code = await asyncio.to_thread(load_file, server.address, file, 2, None, as_json=True, timeout_s=0.3)

    assert code == Exit.UNAVAILABLE
    assert "lines 1 to 2 are acknowledged, nothing from line 3 on is" in capsys.readouterr().err
