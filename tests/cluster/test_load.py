"""How `quire load` splits a file into batches, and where it stops when an answer is missing."""

import asyncio
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from quire.cluster.cli.calls.load import Batch, batches, load_file
from quire.cluster.cli.connection import ClusterOptions
from quire.cluster.cli.output import Exit
from tests.cluster.streaming import Fault, StreamServer, streaming

BATCH = 1024
BRIEFLY_S = 2  # Enough for one answer on a busy machine, and what a test waits for in vain.


def lines_of(count: int) -> io.BytesIO:
    return io.BytesIO(b"".join(b"[%d]\n" % number for number in range(1, count + 1)))


@pytest.mark.parametrize(("count", "batch"), [(0, 3), (1, 3), (3, 3), (7, 3), (6, 3), (5, 1)])
def test_batches_hold_every_line_once_in_order(count: int, batch: int) -> None:
    made = list(batches(lines_of(count), batch))

    assert b"".join(part.body for part in made) == lines_of(count).read()
    assert all(part.to_line - part.from_line <= batch for part in made)
    assert [part.from_line for part in made] == [1, *(part.to_line for part in made)][: len(made)]
    assert sum(part.to_line - part.from_line for part in made) == count


def test_a_batch_of_long_lines_ends_at_the_limit_of_bytes() -> None:
    lines = [b"x" * 30 + b"\n", b"y" * 30 + b"\n", b"z" * 200 + b"\n", b"w\n"]

    made = list(batches(io.BytesIO(b"".join(lines)), 4, limit_bytes=70))

    assert b"".join(part.body for part in made) == b"".join(lines)
    assert all(len(part.body) <= 70 or part.to_line - part.from_line == 1 for part in made)


def test_a_last_line_without_a_newline_is_a_line() -> None:
    assert list(batches(io.BytesIO(b"1\n2"), 5)) == [Batch(1, 3, b"1\n2")]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Three batches, each of which fills a message."""
    path = tmp_path / "commands.ndjson"
    path.write_bytes(lines_of(3 * BATCH).read())
    return path


@pytest.fixture
def short(tmp_path: Path) -> Path:
    path = tmp_path / "short.ndjson"
    path.write_bytes(lines_of(2).read())
    return path


def replace_line(file: Path, number: int, line: bytes) -> None:
    lines = file.read_bytes().split(b"\n")
    lines[number - 1] = line
    file.write_bytes(b"\n".join(lines))


async def loaded(server: StreamServer, file: Path, timeout_s: float = 20.0, **settings: Any) -> int:
    settings = {"record_to": None, "session": None, "as_json": True, "timeout_s": timeout_s, **settings}
    return await asyncio.to_thread(load_file, ClusterOptions(server.address), file, BATCH, **settings)


def summary_in(output: str) -> dict[str, Any]:
    """The output: one line."""
    summary: dict[str, Any] = json.loads(output)
    return summary


@pytest.mark.full
async def test_an_unknown_outcome_stops_the_load_at_once(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    acknowledged = file.with_name("acknowledged.ndjson")
    async with streaming([None, Fault.SILENT]) as server:
        code = await loaded(server, file, BRIEFLY_S, record_to=acknowledged)

    captured = capsys.readouterr()
    assert code == Exit.OUTCOME_UNKNOWN
    assert f"lines 1 to {BATCH} are acknowledged" in captured.err
    assert f"lines {BATCH + 1} to {3 * BATCH} may or may not be applied" in captured.err
    assert summary_in(captured.out)["commands"] == BATCH
    assert [json.loads(line) for line in acknowledged.read_text().splitlines()] == [
        {"from_line": 1, "to_line": BATCH + 1, "index": BATCH, "epoch": 1}
    ]
    assert len(server.executed) == BATCH


@pytest.mark.full
async def test_a_cluster_that_stops_ends_the_load_with_nothing_unknown(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with streaming([None, Fault.STOPPING]) as server:
        code = await loaded(server, file, BRIEFLY_S)

    assert code == Exit.UNAVAILABLE
    assert f"lines 1 to {BATCH} are acknowledged, no line from {BATCH + 1} on was applied" in capsys.readouterr().err
    assert len(server.executed) == BATCH


@pytest.mark.parametrize("fault", [Fault.NOT_TAKEN, Fault.NOT_ANSWERED, Fault.ANSWERED, Fault.BUSY])
async def test_a_load_survives_lost_streams_and_executes_each_line_once(
    file: Path, capsys: pytest.CaptureFixture[str], fault: Fault
) -> None:
    async with streaming([fault, None, fault, fault]) as server:
        assert await loaded(server, file) == Exit.DONE
        assert server.executed == [[number] for number in range(1, 3 * BATCH + 1)]

    assert summary_in(capsys.readouterr().out)["commands"] == 3 * BATCH


async def test_a_batch_that_was_answered_again_is_acknowledged_without_an_index(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    acknowledged = file.with_name("acknowledged.ndjson")
    async with streaming([None, None, Fault.NOT_ANSWERED]) as server:
        assert await loaded(server, file, record_to=acknowledged) == Exit.DONE

    rows = [json.loads(line) for line in acknowledged.read_text().splitlines()]
    assert [row.get("index") for row in rows] == [BATCH, 2 * BATCH, None]
    assert rows[-1] == {"from_line": 2 * BATCH + 1, "to_line": 3 * BATCH + 1, "repeated": True, "epoch": 1}
    assert summary_in(capsys.readouterr().out)["applied_index"] is None


async def test_nothing_is_sent_after_a_refused_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replace_line(file, BATCH + 6, b'"bad"')
    async with streaming() as server:
        assert await loaded(server, file) == Exit.FAILED
        assert len(server.executed) == BATCH

    [sentence] = capsys.readouterr().err.splitlines()
    assert (
        f"line {BATCH + 6} was refused, BAD: it is bad; lines 1 to {BATCH} are acknowledged, no other line was applied"
        in sentence
    )


async def test_a_batch_in_doubt_that_a_later_server_refuses_may_be_applied(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = {"type": "urn:quire:problem:commands-refused", "status": 422, "detail": "the new code refuses it"}
    async with streaming([None, Fault.CHANGED], problem=problem) as server:
        loading = asyncio.create_task(loaded(server, file))
        await server.heard(3)
        server.answering.set()
        assert await loading == Exit.OUTCOME_UNKNOWN

    assert len(server.executed) == 2 * BATCH
    said = capsys.readouterr().err
    assert f"lines 1 to {BATCH} are acknowledged" in said
    assert re.search(rf"lines {BATCH + 1} to \d+ may or may not be applied", said)
    assert "no other line was applied" not in said


async def test_a_line_whose_check_fails_stops_the_load_and_no_other_line_is_applied(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = {"type": "urn:quire:problem:check-failed", "status": 500, "detail": "the check fails"}
    async with streaming(problem=problem, changed=[[BATCH + 1]]) as server:
        assert await loaded(server, file) == Exit.FAILED

    assert len(server.executed) == BATCH
    assert f"lines 1 to {BATCH} are acknowledged, no other line was applied" in capsys.readouterr().err


async def test_a_load_whose_session_is_taken_over_says_which_lines_may_be_applied(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with streaming() as server:
        server.answering.clear()
        loading = asyncio.create_task(loaded(server, file, session="file 7"))
        await server.heard(1)
        for held in server.sessions.values():
            held.fenced = True
        server.answering.set()
        assert await loading == Exit.FAILED

    assert server.executed == []
    assert re.search(r"no line is acknowledged, lines 1 to \d+ may or may not be applied", capsys.readouterr().err)


@pytest.mark.full
async def test_a_load_under_a_name_continues_after_the_executed_lines(
    file: Path, short: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with streaming([None, Fault.NOT_ANSWERED, Fault.SILENT]) as server:
        assert await loaded(server, file, BRIEFLY_S, session="file 7") == Exit.OUTCOME_UNKNOWN
        server.faults.clear()
        capsys.readouterr()
        assert await loaded(server, file, session="file 7") == Exit.DONE
        assert server.executed == [[number] for number in range(1, 3 * BATCH + 1)]
        summary = summary_in(capsys.readouterr().out)
        assert (summary["skipped"], summary["commands"]) == (2 * BATCH, BATCH)

        assert await loaded(server, file, session="file 7") == Exit.DONE
        assert await loaded(server, short, session="file 7") == Exit.FAILED
        assert "another file" in capsys.readouterr().err
        assert len(server.executed) == 3 * BATCH


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'["add", 3', "not JSON"),
        (b"", "is empty"),
        (b"[1] [2]", "not JSON"),
        (b'["add", 1], ["add"', "not JSON"),
        (b"99999999999999999999", "does not fit 64 bits"),
        (b"[" * 40 + b"]" * 40, "nests too deep"),
    ],
)
async def test_an_invalid_line_is_named_and_nothing_from_it_on_is_sent(
    file: Path, capsys: pytest.CaptureFixture[str], line: bytes, words: str
) -> None:
    replace_line(file, BATCH + 8, line)
    replace_line(file, BATCH + 9, b"2]")
    async with streaming() as server:
        assert await loaded(server, file) == Exit.FAILED
        assert len(server.executed) == BATCH

    [sentence] = capsys.readouterr().err.splitlines()
    assert f"line {BATCH + 8} " in sentence
    assert words in sentence
    assert f"lines 1 to {BATCH} are acknowledged, no other line was applied" in sentence
