"""`quire read --export` writes the commands that executed, and `quire load` applies them to another cluster."""

import asyncio
import io
import json
import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from math import nan
from pathlib import Path
from random import Random
from typing import Any

import pytest
from aiohttp import web
from typer.testing import CliRunner

from quire.cluster.cli.calls.export import ExportFailed, commands_of_rows, export_range, is_export, write_export
from quire.cluster.cli.calls.load import load_file
from quire.cluster.cli.commands import app
from quire.cluster.cli.connection import ClusterOptions
from quire.cluster.cli.output import Exit, OutputLost, lost
from quire.cluster.client import connect
from quire.cluster.errors import Malformed
from quire.cluster.values import DEPTH_LIMIT
from quire.log import pack
from quire.log.packing import ExtType
from quire.sm import SESSION_WINDOW
from tests.cluster.running import RunningCluster, running_cluster
from tests.cluster.scripted import LINE, Step, broken, document, lines, refusing, scripted
from tests.cluster.streaming import streaming
from tests.log.test_json_text import random_value

JSON = "application/json"
STATUS = {"cluster_id": "c1", "machine": {"name": "log"}, "limits": {"session_window": SESSION_WINDOW}, "features": []}
HEADER = b'{"quire": "export", "version": 1, "cluster_id": "c1", "machine": "log", "from": 0, "to": 9}\n'


EXPORT_OPTIONS = pytest.mark.parametrize(
    ("options", "code", "values"),
    [
        (["--export"], Exit.DONE, [0, 1, 2, 3]),
        (["--export", "--from", "{second}", "--to", "{last}"], Exit.DONE, [1, 2]),
        (["{second}", "--export"], Exit.USAGE, []),
    ],
)


def bounds(lowest: int, highest: int) -> Step:
    return document({"lowest_index": lowest, "highest_index": highest})


def page(rows: Sequence[dict[str, Any]], next_index: int) -> Step:
    """A range of GET /records."""

    def step(_request: web.Request) -> web.Response:
        headers = {"Quire-Next-Index": str(next_index)}
        body = pack([{**LINE, **row} for row in rows])
        return web.Response(body=body, content_type="application/msgpack", headers=headers)

    return step


def write(file: Path, content: bytes) -> None:
    file.write_bytes(content)


def last_line_of(file: Path) -> Any:
    return json.loads(file.read_bytes().splitlines()[-1])


async def exported(
    cluster: RunningCluster | str, from_index: int | None = None, to_index: int | None = None
) -> list[Any]:
    """The lines of an export, parsed."""
    address = cluster if isinstance(cluster, str) else cluster.address("n1")
    out = io.BytesIO()
    async with connect(address, timeout_s=5.0) as client:
        await write_export(client, from_index, to_index, out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


async def load(cluster: RunningCluster | str, file: Path, **settings: Any) -> int:
    address = cluster if isinstance(cluster, str) else cluster.address("n1")
    settings = {"record_to": None, "as_json": True, "timeout_s": 20.0, **settings}
    return await asyncio.to_thread(load_file, ClusterOptions(address), file, 100, **settings)


async def moved(source: RunningCluster, target: RunningCluster, file: Path) -> None:
    """Export all of one cluster, and load it into another."""
    with file.open("wb") as out:
        async with connect(source.address("n1")) as client:
            await write_export(client, None, None, out)
    assert await load(target, file) == Exit.DONE


async def send(cluster: RunningCluster, session: int, sequence: int, *commands: Any) -> None:
    headers = {"Quire-Session": str(session), "Quire-Sequence": str(sequence)}
    await cluster.ask("n1", "POST", "/commands", json.dumps({"commands": commands}), JSON, headers)


async def opened(cluster: RunningCluster, name: str) -> int:
    reply = await cluster.ask("n1", "POST", "/sessions", json.dumps({"name": name}), JSON)
    return int(reply.document["session"])


async def test_commands_that_were_retried_are_exported_once_and_count_once_in_another_cluster(tmp_path: Path) -> None:
    random, counted = Random(3), 0
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(running_cluster(tmp_path / "a", 1, machine="kv"))
        target = await stack.enter_async_context(running_cluster(tmp_path / "b", 1, machine="kv"))
        session = await opened(source, "counter")
        for first in range(1, 600, 3):
            if random.random() < 0.1:
                session, old = await opened(source, "counter"), session
                await send(source, old, first, ["incr", "n"])  # Fenced.
            await send(source, session, first, *[["incr", "n"]] * 3)
            retried = random.randrange(max(1, first - 20), first + 3)
            await send(source, session, retried, *[["incr", "n"]] * random.randrange(1, first + 4 - retried))
            await send(source, session, first + 10, ["incr", "n"])  # A gap.
            counted += 3
        await source.commands("n1", ["incr", "n", 1000])

        rows = await exported(source)
        await moved(source, target, tmp_path / "export")
        assert rows[0] == {
            "quire": "export",
            "version": 1,
            "cluster_id": (await source.ask("n1", "GET", "/status")).document["cluster_id"],
            "machine": "kv",
            "from": 0,
            "to": (await source.ask("n1", "GET", "/index_bounds")).document["highest_index"],
        }
        assert [list(row) for row in rows[1:-1]] == [["index", "session", "sequence", "timestamp", "value"]] * 601
        assert [row["sequence"] for row in rows[1:-2]] == list(range(1, 601))
        assert rows[-1] == {"quire": "end", "records": 601}
        states = [(await cluster.ask("n1", "GET", "/state")).document["state"] for cluster in (source, target)]
        assert states == [{"n": counted + 1000}] * 2


@pytest.mark.full
async def test_60_000_commands_of_which_many_were_sent_again_are_60_000_rows(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(running_cluster(tmp_path / "a", 1, machine="kv"))
        target = await stack.enter_async_context(running_cluster(tmp_path / "b", 1, machine="kv"))
        for first in range(1, 60_001, 2000):
            async with connect(source.address("n1"), session="counter") as client:
                await client.resume_at(max(1, first - 361))
                await client.apply_batch([["incr", "n"]] * (2000 + min(361, first - 1)))

        file = tmp_path / "export"
        await moved(source, target, file)
        answer = await target.ask("n1", "POST", "/query", json.dumps({"request": ["get", "n"]}), JSON)

    assert last_line_of(file) == {"quire": "end", "records": 60_000}
    assert answer.document["answer"] == 60_000


@EXPORT_OPTIONS
async def test_the_command_line_exports_a_range_and_takes_no_index_with_it(
    tmp_path: Path, options: list[str], code: Exit, values: list[int]
) -> None:
    async with running_cluster(tmp_path, 1, machine="log") as cluster, connect(cluster.address("n1")) as client:
        first = await client.append_batch([0, 1, 2, 3])
        arguments = ["read", *(option.format(second=first + 1, last=first + 3) for option in options)]
        result = await asyncio.to_thread(CliRunner().invoke, app, [*arguments, "--server", cluster.address("n1")])

    assert result.exit_code == code, result.output
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["value"] for row in rows[1:-1]] == values


async def test_an_answer_that_json_has_no_form_for_is_printed_in_ours(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1, machine="kv") as cluster, connect(cluster.address("n1")) as client:
        await client.apply(["put", "a", b"\x00"])
        server = ["--server", cluster.address("n1"), "--json"]
        got = await asyncio.to_thread(CliRunner().invoke, app, ["get", "a", *server])
        write(tmp_path / "lines", b'["get", "a"]\n')
        loaded = await asyncio.to_thread(CliRunner().invoke, app, ["load", str(tmp_path / "lines"), *server])

    assert json.loads(got.stdout) == {"$bin": "AA=="}
    assert json.loads(loaded.stdout)["answer"] == {"$bin": "AA=="}


@pytest.mark.parametrize("retried", [2, 3])
async def test_a_range_that_begins_between_a_command_and_its_retry_has_neither(tmp_path: Path, retried: int) -> None:
    async with running_cluster(tmp_path, 1, machine="kv") as cluster:
        session = await opened(cluster, "counter")
        await send(cluster, session, 1, *[["incr", "n"]] * 3)
        await send(cluster, session, retried, *[["incr", "n"]] * (4 - retried))
        await send(cluster, session, 4, ["incr", "n"])
        end = (await cluster.ask("n1", "GET", "/index_bounds")).document["highest_index"]

        rows = await exported(cluster, from_index=session + 4)

    assert [row["sequence"] for row in rows[1:-1]] == [4]
    assert (rows[0]["from"], rows[0]["to"], rows[-1]["records"]) == (session + 4, end, 1)


async def test_any_values_are_the_same_bytes_in_another_cluster(tmp_path: Path) -> None:
    random = Random(5)
    machine = "tests.cluster.machines:Notes"
    values = [{1: "a", "1": "b"}, {"$bin": "x"}, b"\x00", ExtType(20, b"x"), [{}], *map(random_value, [random] * 500)]
    values = [value for value in values if not isinstance(value, str)]  # Notes takes some texts as orders.
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(running_cluster(tmp_path / "a", 1, machine=machine))
        target = await stack.enter_async_context(running_cluster(tmp_path / "b", 1, machine=machine))
        async with connect(source.address("n1")) as client:
            for start in range(0, len(values), 50):
                await client.append_batch(values[start : start + 50])
        await moved(source, target, tmp_path / "export")

        async with connect(target.address("n1")) as client:
            found = [pack(record.value) async for record in client.read_range()]

    assert found == list(map(pack, values))


async def test_a_value_that_has_no_exact_text_ends_the_export_with_its_index(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    values = [1, [{"a": nan}], 2]
    rows = [{"index": index, "value": value} for index, value in enumerate(values)]
    async with scripted(bounds(0, 3), document(STATUS), page(rows, 3)) as server:
        code = await asyncio.to_thread(export_range, ClusterOptions(server.address), None, None, 5.0)

    out, err = capsysbinary.readouterr()
    assert code == Exit.FAILED
    assert b"the record at index 1 holds a float that is not finite" in err
    assert b'"end"' not in out


@pytest.mark.full
async def test_an_export_whose_server_is_lost_has_no_last_line_and_fails(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    async with scripted(bounds(0, 9), document(STATUS), lines(0, 1, next_index=2), broken) as server:
        code = await asyncio.to_thread(export_range, ClusterOptions(server.address), None, None, 1.0)

    out, _ = capsysbinary.readouterr()
    assert code == Exit.UNAVAILABLE
    assert is_export(out.splitlines()[0])
    assert b'"end"' not in out
    file = tmp_path / "export"
    file.write_bytes(out)
    async with streaming() as target:
        assert await load(target.address, file) == Exit.FAILED
        assert target.executed == []


def export_to_full_disk(server: str) -> Exit:
    with Path("/dev/full").open("w") as sys.stdout:
        try:
            return export_range(ClusterOptions(server), None, None, 5.0)
        except OutputLost as error:
            return lost(error)


async def test_an_export_that_cannot_be_written_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", sys.stdout)  # So that it is put back.
    async with scripted(bounds(0, 2), document(STATUS), lines(0, 1, next_index=2)) as server:
        code = await asyncio.to_thread(export_to_full_disk, server.address)

    assert code == Exit.OUTPUT_LOST
    assert "the output could not be written: no space left on device" in capsys.readouterr().err


async def test_an_export_waits_for_a_server_that_lags_behind_what_was_acknowledged() -> None:
    behind = refusing(404, "out-of-bounds", index=2, lowest_index=0, highest_index=2)
    steps = (bounds(0, 4), document(STATUS), lines(0, 1, next_index=2), behind, lines(2, 3, next_index=4))
    async with scripted(*steps) as server:
        rows = await exported(server.address)

    assert [row["value"] for row in rows[1:-1]] == [0, 1, 2, 3]
    assert server.requests[0][:2] == ("GET", "/index_bounds?consistency=linearizable")
    assert all("to=4&kinds=all" in path for _, path, _ in server.requests[2:])


@pytest.mark.parametrize(("from_index", "to_index"), [(0, None), (4, None), (10, None), (None, 10), (8, 7)])
async def test_a_range_that_is_not_in_the_log_is_refused(from_index: int | None, to_index: int | None) -> None:
    async with scripted(bounds(5, 9)) as server, connect(server.address) as client:
        with pytest.raises(ExportFailed, match=r"the log has \[5, 9\)"):
            await write_export(client, from_index, to_index, io.BytesIO())


async def test_a_log_whose_beginning_expired_is_exported_with_a_warning(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    unknown = {"value": 0, "session": 3, "executed": None}
    of_session = [{**unknown, "index": index, "sequence": at} for index, at in ((5, 9), (6, 10), (7, 10))]
    for rows, warned in ((of_session, True), ([{"index": index, "value": 0} for index in (5, 6, 7)], False)):
        async with scripted(bounds(5, 8), document(STATUS), page(rows, 8)) as server:
            assert await asyncio.to_thread(export_range, ClusterOptions(server.address), None, None, 5.0) == Exit.DONE
        out, err = capsysbinary.readouterr()
        assert json.loads(out.splitlines()[-1]) == {"quire": "end", "records": 2 if warned else 3}
        assert (b"it is unknown whether 2 commands of sessions, from index 5 to 6, executed" in err) is warned


async def test_what_a_server_knows_of_a_record_is_believed_where_the_log_does_not_show_it(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    known = ((5, 9, False), (6, 10, True), (7, 8, False))
    rows = [
        {"index": index, "value": 0, "session": 3, "sequence": at, "executed": executed}
        for index, at, executed in known
    ]
    async with scripted(bounds(5, 8), document(STATUS), page(rows, 8)) as server:
        assert await asyncio.to_thread(export_range, ClusterOptions(server.address), None, None, 5.0) == Exit.DONE
    out, err = capsysbinary.readouterr()
    assert [json.loads(line).get("index") for line in out.splitlines()] == [None, 6, None]
    assert err == b""


async def test_sessions_expire_in_an_export_as_they_did_in_a_log_whose_beginning_expired() -> None:
    month = 31 * 86_400 * 1_000_000
    system = {"kind": "system", "value": {"type": "open_session", "name": "a"}}
    other = {"kind": "system", "value": {"type": "open_session", "name": "b"}}
    rows: list[dict[str, Any]] = [
        {"index": 5, **system},
        {"index": 6, "value": 0, "session": 5, "sequence": 9},
        {"index": 7, "timestamp": month, **other},
        {"index": 8, "timestamp": month, **system},
        {"index": 9, "timestamp": month, "value": 1, "session": 8, "sequence": 1},
    ]
    status = {**STATUS, "features": ["session_ttl"]}
    async with scripted(bounds(5, 10), document(status), page(rows, 10)) as server:
        assert [row["value"] for row in (await exported(server.address))[1:-1]] == [0, 1]


ROWS = [b'{"index":%d,"session":0,"sequence":0,"timestamp":1,"value":[%d]}\n' % (n, n) for n in range(250)]


def export_of(rows: Sequence[bytes], count: int | None = None) -> bytes:
    end = b'{"quire": "end", "records": %d}\n' % (len(rows) if count is None else count)
    return b"".join([HEADER, *rows, end])


def row_of(value: bytes, more: bytes = b"") -> bytes:
    return b'{"index":1,"session":0,"sequence":0,"timestamp":1%b,"value":%b}\n' % (more, value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "export"
    path.write_bytes(export_of(ROWS))
    return path


async def test_the_rows_of_an_export_are_applied_in_order(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with streaming() as server:
        assert await load(server.address, file) == Exit.DONE
        assert server.executed == [[number] for number in range(250)]

    assert json.loads(capsys.readouterr().out)["commands"] == 250


async def test_forms_mean_something_in_an_export_only(file: Path) -> None:
    forms = b'{"$bin":"AA=="}', b'{"$map":[[1,"a"],["1","b"]]}', b'{"$map":[["$bin","x"]]}'
    async with streaming() as server:
        write(file, export_of(list(map(row_of, forms))))
        assert await load(server.address, file) == Exit.DONE
        write(file, b'{"$bin": "x"}\n' + b'{"value": {"$bin": "AA=="}}\n')
        assert await load(server.address, file) == Exit.DONE
        assert server.executed[:3] == [b"\x00", {1: "a", "1": "b"}, {"$bin": "x"}]
        assert server.executed[3:] == [{"$bin": "x"}, {"value": {"$bin": "AA=="}}]


async def test_an_export_under_a_name_continues_after_the_executed_rows(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    acknowledged = file.with_name("acknowledged")
    rows = list(ROWS)
    rows[120] = row_of(b'"bad"')
    async with streaming() as server:
        write(file, export_of(rows))
        assert await load(server.address, file, session="s") == Exit.FAILED
        assert "line 122 was refused, BAD: it is bad; lines 2 to 101 are acknowledged" in capsys.readouterr().err
        write(file, export_of(ROWS))
        assert await load(server.address, file, session="s", record_to=acknowledged) == Exit.DONE
        assert await load(server.address, file, session="s") == Exit.DONE
        assert server.executed == [[number] for number in range(250)]
        write(file, export_of(ROWS[:9]))
        assert await load(server.address, file, session="s") == Exit.FAILED
        assert "250 commands, and the file has 9 lines: it belongs to another file" in capsys.readouterr().err

    ranges = [json.loads(line) for line in acknowledged.read_text().splitlines()]
    assert [(row["from_line"], row["to_line"]) for row in ranges] == [(102, 202), (202, 252)]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"".join([HEADER, *ROWS]), "its last line is missing"),
        (b"".join([HEADER, *ROWS])[:-9], "its last line is missing"),
        (HEADER, "its last line is missing"),
        (export_of(ROWS)[:-3], "its last line is missing"),
    ],
)
async def test_an_export_that_broke_off_is_refused_before_any_of_it_is_sent(
    file: Path, capsys: pytest.CaptureFixture[str], content: bytes, words: str
) -> None:
    write(file, content)
    async with streaming() as server:
        assert await load(server.address, file) == Exit.FAILED
        assert server.executed == []

    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"".join([HEADER, *ROWS]), "broke off after 250 rows"),
        (b"".join([HEADER, *ROWS[:240], ROWS[240][:20]]), "broke off after 241 rows"),
        (export_of(ROWS, 251), "counts 251 rows, and there are 250"),
        (export_of(ROWS[:220] + ROWS[221:], 250), "counts 250 rows, and there are 249"),
        (export_of(ROWS) + ROWS[0], "line 253 of the file comes after the end"),
        (export_of(ROWS) + export_of(ROWS), "line 253 of the file comes after the end"),
    ],
)
async def test_an_export_from_a_pipe_that_is_not_whole_fails_at_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, words: str
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    async with streaming() as server:
        writing = asyncio.create_task(asyncio.to_thread(pipe.write_bytes, content))
        assert await load(server.address, pipe) == Exit.FAILED
        await writing
        assert server.executed == [[number] for number in range(200)]

    err = capsys.readouterr().err
    assert words in err
    assert "lines 2 to 201 are acknowledged, no other line was applied" in err


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (b"[1]\n", "is not a row of an export"),
        (b'{"index":1,"value":1}\n', "is not a row of an export"),
        (row_of(b'{"$bin":"x"}'), "base64"),
        (row_of(b'{"$new":1}'), "none of the forms"),
        (row_of(b'{"$float":"nan"}'), "not finite"),
        (row_of(b'{"$map":[[1,1],[1.0,2]]}'), "the same key twice"),
        (row_of(b'{"a":1,"a":2}'), "the same key twice"),
        (row_of(b"99999999999999999999"), "does not fit 64 bits"),
        (row_of(b'{"$ext":[7,"AA=="]}'), "reserved"),
        (row_of(b"[" * 33 + b"]" * 33), "nested deeper"),
        (row_of(b"1", b',"headers":{"a":"b"}'), "'headers', which no command can carry"),
        (row_of(b'{"$bin":"AA=="}', b',"kind":"blob"'), "'kind', which no command can carry"),
    ],
)
async def test_a_row_that_cannot_be_applied_exactly_is_named_and_nothing_from_it_on_is_sent(
    file: Path, capsys: pytest.CaptureFixture[str], row: bytes, words: str
) -> None:
    write(file, export_of([*ROWS[:150], row, *ROWS[150:]]))
    async with streaming() as server:
        assert await load(server.address, file) == Exit.FAILED
        assert server.executed == [[number] for number in range(100)]

    [sentence] = capsys.readouterr().err.splitlines()
    assert "line 152 of the file " in sentence
    assert words in sentence


def test_a_value_may_be_nested_as_deep_as_a_record_whatever_its_form() -> None:
    text, value = b"1", 1
    for _ in range(DEPTH_LIMIT):
        text, value = b'{"$map":[[1,%b]]}' % text, {1: value}  # type: ignore[assignment]

    assert commands_of_rows(row_of(text)) == [value]
    with pytest.raises(Malformed, match="nested deeper"):
        commands_of_rows(row_of(b"[%b]" % text))


async def test_an_export_of_a_later_version_is_refused(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(file, export_of(ROWS).replace(b'"version": 1', b'"version": 2', 1))
    async with streaming() as server:
        assert await load(server.address, file) == Exit.FAILED
        assert server.executed == []

    assert "this program reads version 1; upgrade it" in capsys.readouterr().err
