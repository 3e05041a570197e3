"""Nothing that a client, a peer or a file named is obeyed by the terminal on which quire shows it."""

import asyncio
import json
import logging
import re
import sys
import traceback
import unicodedata
from io import StringIO
from pathlib import Path
from typing import Any, cast

import pytest
import structlog
from aiohttp import web
from typer.testing import CliRunner, Result

import quire.cluster.cli
from quire.cluster.cli import commands, log_files
from quire.cluster.cli.commands import app
from quire.cluster.cli.console import EscapingConsole
from quire.cluster.cli.nodes.rows import NodeRow
from quire.cluster.cli.nodes.table import node_table, print_nodes
from quire.cluster.client import Status, connect
from quire.cluster.config.settings import ConfigInvalid
from quire.cluster.http.problems import problem
from quire.cluster.serve.arguments import parse_serve
from quire.cluster.serve.journal import configure_logging
from quire.cluster.serve.process import refuse_settings
from quire.cluster.standard_streams import OutputQueue, drain
from quire.cluster.terminal import EscapingStream, escaped, escaped_json
from quire.log import pack
from quire.log.json_text import from_json
from quire.replication.net.sockets import accept
from tests.cluster.running import running_cluster
from tests.cluster.scripted import scripted
from tests.replication.loopback import listening
from tests.replication.strangers import opened

CONTROL = [*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0))]
BIDIRECTIONAL = list("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
INVISIBLE = list("\u00ad\u180e\u200b\u200c\u200d\u2028\u2029\u2060\u2064\u206f\ufeff\ufff9\ufffb\U000e0001\U000e0041")
OBEYED = [*CONTROL, *BIDIRECTIONAL, *INVISIBLE]
HOSTILE = "a[red]\x1b]0;title\x07" + "".join(OBEYED) + "z"
SHOWN = "a[red]\\x1b]0;title\\x07"
PLAIN = "Grüße, 世界 🎉 \\n [bold]x[/bold] :smile:"


def obeyed_in(text: str, keep: str = "\n") -> list[str]:
    """What a terminal obeys in a text: what is listed above, and whatever else Unicode calls control or surrogate."""
    found = {each for each in text if each in OBEYED or unicodedata.category(each) in ("Cc", "Cs", "Zl", "Zp")}
    return sorted(found.difference(keep))


# The function


def test_every_character_that_a_terminal_obeys_is_escaped_and_others_are_not() -> None:
    assert escaped(PLAIN) == PLAIN
    tags = map(chr, range(0xE0000, 0xE1000))
    assert [each for each in [*OBEYED, *tags] if escaped(each) == each] == []  # Each without another in the text.
    assert obeyed_in(escaped("".join(map(chr, [*range(0x10000), *range(0xE0000, 0xE1000)])), keep=""), keep="") == []
    assert [code for code in range(0xD800, 0xE000) if escaped(chr(code)) != f"\\u{code:04x}"] == []
    assert escaped("\n\r\t\x1b\x9b\u202e\ud800\U000e0041") == r"\n\r\t\x1b\x9b\u202e\ud800\U000e0041"
    assert escaped("a\nb\tc\x1b", keep="\n\t") == "a\nb\tc\\x1b"
    assert escaped(r"\x1b") == r"\x1b"


def test_escaped_json_is_json_of_the_same_value() -> None:
    value = {HOSTILE: [HOSTILE, PLAIN, 1]}
    for ascii_only in (False, True):
        text = escaped_json(json.dumps(value, ensure_ascii=ascii_only))
        assert obeyed_in(text, keep="") == []
        assert json.loads(text) == value
    assert json.loads(escaped_json('["\x7f"]')) == ["\x7f"]
    assert "Grüße, 世界" in escaped_json(json.dumps(PLAIN, ensure_ascii=False))


# The commands, on a hostile log


def invoked(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


async def test_every_command_escapes_what_the_log_holds(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async with running_cluster(tmp_path, 1, machine="kv") as cluster, connect(cluster.address("n1")) as client:
        server = ["--server", cluster.address("n1")]

        async def quire(*arguments: str, lines: int = 1, code: int = 0) -> str:
            result = await asyncio.to_thread(invoked, *arguments, *server)
            assert result.exit_code == code, (arguments, result.output)
            assert obeyed_in(result.stdout, keep="\n\t") == obeyed_in(result.stderr) == [], arguments
            said = result.stderr if code else result.stdout
            assert len(said.splitlines()) == said.count("\n") == lines, (arguments, said)
            return said

        await quire("apply", "put", HOSTILE, HOSTILE)
        value = ["put", HOSTILE, HOSTILE]
        [at] = [record.index async for record in client.read_range() if record.value == value]

        assert SHOWN in await quire("apply", "get", HOSTILE)
        assert json.loads(await quire("apply", json.dumps(["get", HOSTILE]), "--json")) == {"result": HOSTILE}
        assert json.loads(await quire("read", str(at))) == value
        assert json.loads(await quire("read", str(at), "--json"))["value"] == value
        [number, shown] = (await quire("read", "--from", str(at), "--to", str(at + 1))).split("\t")
        assert (int(number), json.loads(shown)) == (at, value)
        of_range = await quire("read", "--from", str(at), "--to", str(at + 1), "--json")
        assert json.loads(of_range)["value"] == value
        await quire("tail", "--from", str(at), "--count", "1", lines=0)
        [tailed] = [line for line in capfd.readouterr().out.splitlines() if line.startswith('{"index"')]
        assert (json.loads(tailed)["value"], obeyed_in(tailed)) == (value, [])
        assert json.loads((await quire("state", lines=3)).splitlines()[0]) == {HOSTILE: HOSTILE}
        assert json.loads(await quire("state", "--json"))["state"] == {HOSTILE: HOSTILE}
        export = (await quire("read", "--export", "--from", str(at), "--to", str(at + 1), lines=3)).splitlines()
        assert from_json(json.loads(export[1])["value"]) == value
        shown_state = await asyncio.to_thread(invoked, "status", "--state", *server)
        assert obeyed_in(shown_state.stdout) == []
        assert '{"a[red]\\u001b' in "".join(shown_state.stdout.split())

        assert SHOWN in await quire("session", "open", HOSTILE)
        [session] = [row["session"] async for row in client.sessions(HOSTILE[:3])]
        assert SHOWN in await quire("session", "list", "--prefix", HOSTILE[:3])
        assert json.loads(await quire("session", "show", str(session), "--json"))["name"] == HOSTILE
        assert SHOWN in await quire("session", "show", str(session))
        await quire("session", "close", "--name", HOSTILE)

        await quire("apply", HOSTILE, code=1)
        await quire("apply", "put", "a", "\udc9b", lines=4, code=2)
        await quire("append", f'["put", "{HOSTILE}"]', code=2)
        await quire("members", "promote", HOSTILE, code=1)
        await quire("load", f"{tmp_path}/{HOSTILE[1:8]}", code=2)


async def test_raw_writes_the_bytes_of_a_record_and_nothing_else(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1, machine="log") as cluster, connect(cluster.address("n1")) as client:
        server = ["--server", cluster.address("n1")]
        first = await client.append_batch([HOSTILE, b"\xff\x1b[0m\n", 5])

        async def read(index: int, *options: str) -> Result:
            return await asyncio.to_thread(invoked, "read", str(index), *options, *server)

        text, raw, number = [await read(first + place, "--raw") for place in range(3)]
        shown = await read(first)
        both = await read(first, "--raw", "--json")

    assert text.stdout_bytes == HOSTILE.encode()
    assert raw.stdout_bytes == b"\xff\x1b[0m\n"
    assert (number.exit_code, number.stdout) == (1, "")
    assert "neither bytes nor a string" in number.stderr
    assert shown.stdout == escaped(HOSTILE) + "\n"
    assert both.exit_code == 2


# The commands, on a hostile server

LAG = {"records": 1, "bytes": 1, "seconds": 1.0}
ADDRESS = "address"
STATUS = {
    "node_id": HOSTILE,
    "members": [{"node_id": HOSTILE, "address": ADDRESS}],
    "role": HOSTILE,
    "digest": HOSTILE,
    "lag": LAG,
    "snapshots": {"kept": [{"index": 1, "sha256": HOSTILE}]},
    "lowest_index": 0,
    "expiry": {"held": {"segments": 1, "bytes": 1}, "holds": [{"what": HOSTILE, "why": HOSTILE}]},
    "reasons": [HOSTILE, "reason\nn1 leads"],
    "alarms": [HOSTILE + "2", "[/unopened]"],
    "nodes": {HOSTILE: {"differs": {"index": 1}}},
    "limits": {},
    "machine": {"name": HOSTILE},
    "cluster_id": HOSTILE,
}
MEMBER = {
    "node_id": HOSTILE,
    "disk_id": HOSTILE,
    "address": HOSTILE,
    "role": HOSTILE,
    "heard": True,
    "lag": LAG,
    "waits_for": HOSTILE,
    "version": HOSTILE,
    "drained": False,
    "ready": True,
    "started_at": 1,
}
SESSION = {"session": 1, "name": HOSTILE, "sequence": HOSTILE}
ANSWERS: dict[str, Any] = {
    "/status": STATUS,
    "/state": {"state": HOSTILE, "applied_index": HOSTILE, "digest": HOSTILE},
    "/records/7": HOSTILE,
    "/members": {"leader": HOSTILE, "members": [MEMBER], "changes": [], "may_fail": 0, "change": False, "removed": []},
    "/members/n3": {"changes": [1]},
    "/admin/transfer": {"leader": HOSTILE},
    "/admin/snapshot": {"index": 2, "bytes": 1, "sha256": HOSTILE},
    "/admin/expire": {"segments": 1, "to_index": 1, "bytes": 1},
    "/admin/accept-code": {"code": HOSTILE, "accepted_code": [HOSTILE]},
    "/sessions": {"sessions": [{**SESSION, "used_at": 1}], "next": None},
    "/sessions/close": {"closed": [HOSTILE]},
    "/sessions/1": SESSION,
}
COMMANDS = [
    ["status"],
    ["status", "--state"],
    ["state"],
    ["read", "7"],
    ["members"],
    ["members", "promote", "n3"],
    ["transfer"],
    ["snapshot"],
    ["expire", "--dry-run"],
    ["admin", "accept-code"],
    ["session", "show", "1"],
    ["session", "list"],
    ["session", "close", "1"],
    ["session", "close", "--prefix", "a"],
]
ASKING = [*COMMANDS, ["apply", "add", "1"], ["append", "1"], ["read", "--export"], ["session", "open", "a"]]


def answering(request: web.Request) -> web.Response:
    value = ANSWERS[request.path]
    if isinstance(value, dict) and "members" in value and request.path == "/status":
        value = value | {"members": [{"node_id": HOSTILE, "address": request.host}]}
    return web.Response(body=pack(value), content_type="application/msgpack")


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
async def test_every_command_escapes_what_a_server_answers(as_json: bool) -> None:
    options = ["--json"] if as_json else []
    async with scripted(answering) as server:
        for command in COMMANDS:
            result = await asyncio.to_thread(invoked, *command, *options, "--server", server.address)
            assert result.exit_code == (command[0] == "status"), (command, result.output)  # The node is not ready.
            assert obeyed_in(result.stdout) == obeyed_in(result.stderr) == [], command
            if as_json:
                for line in result.stdout.splitlines() if command[-1] != "n3" else ():
                    assert HOSTILE in strings_in(json.loads(line)), command


def strings_in(value: Any) -> list[str]:
    match value:
        case dict():
            return [each for pair in value.items() for part in pair for each in strings_in(part)]
        case list():
            return [each for inner in value for each in strings_in(inner)]
        case _:
            return [value] if isinstance(value, str) else []


async def test_every_command_escapes_what_a_server_says_is_wrong() -> None:
    def refusing(_request: web.Request) -> web.Response:
        return problem(400, "malformed", HOSTILE, f"{HOSTILE}\nquire: done", {"code": HOSTILE})

    async with scripted(refusing) as server:
        for command in ASKING:
            result = await asyncio.to_thread(invoked, *command, "--server", server.address, "--timeout", "5")
            assert result.exit_code in (1, 3), (command, result.output)
            assert result.stdout == ""
            [said] = result.stderr.splitlines()
            assert said.startswith("quire: ")
            assert obeyed_in(said) == [], command
            assert SHOWN in said, command


def test_an_alarm_has_one_line_and_is_no_markup() -> None:
    text = StringIO()
    status: Any = {"alarms": ["first\nsecond", "[bold]third[/bold] :smile:", "[/x]"]}
    row = NodeRow("a:1", status, answer="one\ntwo")
    print_nodes(EscapingConsole(width=200, file=text), {"n1": row})

    shown = [" ".join(line.split()) for line in text.getvalue().splitlines()]
    assert r"answer one\ntwo" in shown
    assert shown[:3] == [r"problems: n1: first\nsecond", "n1: [bold]third[/bold] :smile:", "n1: [/x]"]


def test_a_terminal_gets_the_console_s_own_sequences_and_no_other() -> None:
    text, status = StringIO(), cast("Status", {"role": "\x1b[32mleader"})
    console = EscapingConsole(file=text, force_terminal=True, color_system="standard", width=200)
    console.print(node_table({"\x1b[31mn1": NodeRow("a:1", status)}))
    console.print("\x1b[33malone", highlight=False)

    for shown in (r"\x1b[31mn1", r"\x1b[32mleader", r"\x1b[33malone"):
        assert shown in text.getvalue()
    assert set(re.findall("\x1b\\[[0-9;]*m", text.getvalue())) <= {"\x1b[1m", "\x1b[0m"}


def test_what_a_file_holds_is_escaped(tmp_path: Path) -> None:
    result = CliRunner().invoke(log_files.app, ["verify", str(tmp_path / "\x1b[31m")])

    assert result.exit_code == 2
    assert obeyed_in(result.output) == []


# What is wrong with the command line, and tracebacks


@pytest.mark.parametrize("arguments", [[HOSTILE], ["read", "1", HOSTILE], [f"--{HOSTILE}"]])
def test_an_argument_that_is_refused_is_quoted_escaped(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("argv", ["quire", *arguments]), ("stdout", sys.stdout), ("stderr", sys.stderr)):
        monkeypatch.setattr(sys, name, value)

    assert commands.run() == 2
    drain()
    said = capfd.readouterr().err
    assert "z" in said
    assert obeyed_in(said, keep="\n\t") == []


def test_a_traceback_is_escaped() -> None:
    text = StringIO()
    stream = EscapingStream(text)
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        traceback.print_exc(file=stream)

    assert "Traceback" in text.getvalue()
    assert obeyed_in(text.getvalue(), keep="\n\t") == []


def test_what_a_server_refuses_to_start_with_is_escaped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", EscapingStream(sys.stderr))
    assert refuse_settings(ConfigInvalid([HOSTILE])) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line == f"quire serve: {escaped(HOSTILE)}"

    with pytest.raises(SystemExit):
        parse_serve([HOSTILE])
    said = capsys.readouterr().err
    assert r"a[red]\x1b" in said
    assert obeyed_in(said, keep="\n\t") == []


# The journal


class Lines(OutputQueue):
    """A queue that keeps what is written to it."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text


@pytest.fixture
def restored_logging() -> Any:
    handlers, level = logging.root.handlers[:], logging.root.level
    configured = structlog.get_config()
    yield
    structlog.configure(**configured)
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


@pytest.mark.usefixtures("restored_logging")
@pytest.mark.parametrize("form", ["console", "json"])
@pytest.mark.parametrize("colours", [False, True], ids=["pipe", "terminal"])
def test_a_line_of_the_journal_is_one_line_and_obeyed_by_no_terminal(
    form: str, colours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: colours, raising=False)
    lines = Lines()
    configure_logging(form, "n1", lines)
    log = structlog.get_logger()
    text = f"{HOSTILE}\n2026-01-01T00:00:00Z [info     ] running"
    log.info(text, peer=text, address=[text], reason=ValueError(text), **{HOSTILE: 1})
    logging.getLogger("aiohttp").error("%s", text)

    own = re.sub("\x1b\\[[0-9;]*m", "", lines.text) if colours and form == "console" else lines.text
    assert obeyed_in(own) == []
    assert len(own.splitlines()) == 2
    if form == "json":
        first, second = map(json.loads, own.splitlines())
        assert (first["event"], first["peer"], first["address"], first[HOSTILE]) == (text, text, [text], 1)
        assert second["event"] == text


@pytest.mark.usefixtures("restored_logging")
@pytest.mark.parametrize("form", ["console", "json"])
def test_a_traceback_in_the_journal_begins_no_line_of_its_own(form: str) -> None:
    lines = Lines()
    configure_logging(form, "n1", lines)
    forged = "2026-01-01T00:00:00Z [info     ] running"
    try:
        raise ValueError(f"{HOSTILE}\n{forged}")
    except ValueError as error:
        structlog.get_logger().error("a fault", exc_info=error)
        logging.getLogger("asyncio").exception("a fault of %s", HOSTILE)

    assert obeyed_in(lines.text) == []
    own = [line for line in lines.text.splitlines() if not line.startswith("  ")]
    assert len(own) == 2
    if form == "console":
        assert "  ValueError: a[red]" in lines.text
        assert lines.text.count(f"  {forged}") == 2
    else:
        assert [HOSTILE in json.loads(line)["exception"] for line in own] == [True, True]


@pytest.mark.usefixtures("restored_logging")
@pytest.mark.parametrize("form", ["console", "json"])
def test_no_line_of_the_journal_holds_a_token(form: str) -> None:
    lines = Lines()
    configure_logging(form, "n1", lines)
    token = f"quire_{'aB-_'.ljust(43, '0')}"
    structlog.get_logger().info(f"a {token}", peer=token, values=[token], **{token: 1})
    logging.getLogger("aiohttp").error("%s", token)
    try:
        raise ValueError(token)
    except ValueError as error:
        structlog.get_logger().error("a fault", exc_info=error)

    assert token not in lines.text
    assert lines.text.count("quire_...") >= 6


@pytest.mark.usefixtures("restored_logging")
async def test_a_subprotocol_that_a_stranger_asks_for_is_not_in_the_journal() -> None:
    async def serve(request: web.Request) -> web.StreamResponse:
        return await accept(request, 1024)

    lines = Lines()
    configure_logging("console", "n1", lines)
    async with (
        listening({"/peer": serve}) as address,
        opened(address, "/peer", "Sec-WebSocket-Protocol: x\r\n") as (_, _, head),
    ):
        assert " 101 " in head
    assert lines.text == ""


# Whoever adds a command


def test_nothing_is_printed_past_the_functions_that_escape() -> None:
    """`say`, `complain` and EscapingConsole are the ways to the terminal, in commands and demos."""
    printing = re.compile(r"(?<![\w.])print\(|typer\.echo\(|(?<!\w)Console\(|stdout\.write\(|stderr\.write\(")
    top = Path(quire.cluster.cli.__path__[0]).parent
    found = [
        f"{module}:{number}"
        for module in [*(top / "cli").rglob("*.py"), *(top / "demo").glob("*.py")]
        if module.name not in ("output.py", "console.py")
        for number, line in enumerate(module.read_text().splitlines(), 1)
        if printing.search(line)
    ]
    assert found == []
