"""Every command but `serve`'s own parsing: typer, with plain text for people and `--json` for programs."""

import json
import re
import sys
from dataclasses import asdict
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, Any

import stamina.instrumentation
import typer

import quire

from ..client import Client, Consistency
from ..errors import Malformed
from ..values import DEPTH_LIMIT, decode_json
from .asking import DEFAULT_TIMEOUT_S, Json, Server, Timeout, ask, fail_usage, servers_of
from .follow import follow_log, watch_status
from .load import BATCH_COMMANDS, load_file
from .members import members_app
from .output import printable, to_json
from .status import show_status
from .upkeep import show_expiry, show_snapshots

app = typer.Typer(
    name="quire",
    help="A replicated state-machine cluster: one log, and on every node the same answer.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

session_app = typer.Typer(
    name="session", help="Sessions: under whose sequences commands execute once.", no_args_is_help=True
)
app.add_typer(session_app)
app.add_typer(members_app)

COMMANDS_GROUP = "quire.commands"  # Of entry points: groups of commands that this and other packages bring.
RAW_LIMIT_BYTES = 1 << 30  # No cluster takes a frame as large; an endless stdin must not fill the memory.


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"quire {quire.__version__}")
        raise typer.Exit


@app.callback()
def quire_command(
    _version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version, and end.")
    ] = False,
) -> None:
    """A replicated state-machine cluster: one log, and on every node the same answer."""


@app.command(add_help_option=False, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def serve(context: typer.Context) -> None:
    """Run one node of a cluster. `quire serve --help` lists its flags."""
    from ..serve.node_service import serve as run_node  # noqa: PLC0415  # The node's modules are needed for nothing else here.

    raise typer.Exit(run_node(context.args))


@app.command(context_settings={"ignore_unknown_options": True})
def apply(
    operation: Annotated[str, typer.Argument(help="For the arithmetic machine: add, sub, mul or div.")],
    operands: Annotated[list[str] | None, typer.Argument(help="An int, or anything else as a string.")] = None,
    server: Server = "",
    as_json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Apply one command, as in `quire apply add 3`, and print its result."""
    command = [operation, *map(parse_operand, operands or [])]
    result = ask(server, timeout, lambda client: client.apply(command))
    typer.echo(json.dumps({"result": result}) if as_json else printable(result))


@app.command(context_settings={"ignore_unknown_options": True})
def append(
    value: Annotated[str | None, typer.Argument(help="The record as JSON, as in '[\"add\", 3]'.")] = None,
    raw: Annotated[
        Path | None, typer.Option("--raw", metavar="FILE", help="Append the bytes of a file as they are; - is stdin.")
    ] = None,
    server: Server = "",
    as_json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Append one record, a JSON value or raw bytes, and print its index."""
    if (value is None) == (raw is None):
        fail_usage("give either a JSON value or --raw FILE")
    record = read_raw(raw) if raw is not None else parse_json(value or "")
    index = ask(server, timeout, lambda client: client.append(record))
    typer.echo(json.dumps({"index": index}) if as_json else str(index))


@app.command()
def load(
    file: Annotated[Path, typer.Argument(help="NDJSON: one command a line; - is stdin.")],
    batch: Annotated[
        int, typer.Option("--batch", min=1, help="Commands in one frame, applied all or none.")
    ] = BATCH_COMMANDS,
    session: Annotated[
        str | None,
        typer.Option("--session", metavar="NAME", help="Go on behind the lines that were loaded under this name."),
    ] = None,
    acknowledged: Annotated[
        Path | None,
        typer.Option("--acknowledged", help="Append a JSON line for each acknowledged batch: lines [from, to), index."),
    ] = None,
    server: Server = "",
    as_json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Apply a file of commands in their order, each once, batch behind batch."""
    named = servers_of(server)
    raise typer.Exit(
        load_file(named, file, batch, acknowledged, as_json=as_json, timeout_s=timeout, session=session or None)
    )


@app.command()
def read(
    index: Annotated[int | None, typer.Argument(min=0, help="Index of one record; a range by --from and --to.")] = None,
    from_index: Annotated[int | None, typer.Option("--from", min=0, help="First index of a range.")] = None,
    to_index: Annotated[int | None, typer.Option("--to", min=0, help="Index behind the last one of a range.")] = None,
    server: Server = "",
    as_json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Print a record, or the records of a range with their indices."""
    if index is not None and (from_index is not None or to_index is not None):
        fail_usage("give either an index or a range, not both")

    async def print_range(client: Client) -> None:
        async for record in client.read_range(from_index, to_index):
            typer.echo(to_json(asdict(record)) if as_json else f"{record.index}\t{printable(record.value)}")

    if index is None:
        ask(server, timeout, print_range)
        return
    wanted = index
    value = ask(server, timeout, lambda client: client.read(wanted))
    typer.echo(to_json({"index": index, "value": value}) if as_json else printable(value))


@app.command()
def state(
    consistency: Annotated[
        Consistency,
        typer.Option(
            "--consistency", help="How fresh: linearizable, leader, or local (the first server's, however old)."
        ),
    ] = "linearizable",
    server: Server = "",
    as_json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Print the machine's state."""
    asked = servers_of(server).split(",")[0] if consistency == "local" else None
    answer = ask(server, timeout, lambda client: client.state(consistency, server=asked))
    if as_json:
        typer.echo(to_json(asdict(answer)))
    else:
        typer.echo(f"{printable(answer.state)}\napplied_index {answer.applied_index}\ndigest {answer.digest}")


@app.command()
def tail(
    from_index: Annotated[
        int | None, typer.Option("--from", min=0, help="First index. Default: only what comes from now on.")
    ] = None,
    count: Annotated[int | None, typer.Option("--count", min=1, help="End after so many records.")] = None,
    server: Server = "",
    as_json: Json = False,  # noqa: ARG001  # Its lines are JSON in any case; the flag is taken everywhere.
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Print records as they come, each as a line of JSON (with or without --json), until Ctrl-C."""
    raise typer.Exit(follow_log(servers_of(server), from_index, count, timeout_s=timeout))


@app.command()
def status(
    watch: Annotated[bool, typer.Option("--watch", help="Show it again and again, until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option("--interval", metavar="SECONDS", min=0.1, help="With --watch.")] = 1.0,
    server: Server = "",
    as_json: Json = False,
    timeout: Timeout = 2.0,
) -> None:
    """Show every node: role, indices, lag, answer, digest."""
    if watch:
        raise typer.Exit(watch_status(servers_of(server), interval, as_json=as_json, timeout_s=timeout))
    raise typer.Exit(show_status(servers_of(server), as_json=as_json, timeout_s=timeout))


@app.command()
def transfer(
    target: Annotated[
        str | None, typer.Argument(help="The node that shall lead. Default: the one that has most.")
    ] = None,
    server: Server = "",
    as_json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Move leadership to another node, without a lost or unknown write, and print who leads."""
    leader = ask(server, timeout, lambda client: client.transfer(target))
    typer.echo(json.dumps({"leader": leader}) if as_json else f"{leader} leads")


OneNode = Annotated[str | None, typer.Option("--node", metavar="ID", help="Only this one. Default: every member.")]


@app.command()
def snapshot(
    node: OneNode = None, server: Server = "", as_json: Json = False, timeout: Timeout = DEFAULT_TIMEOUT_S
) -> None:
    """Let every node take a snapshot of all that it has applied now, and print where it stands."""
    raise typer.Exit(show_snapshots(servers_of(server), node, as_json=as_json, timeout_s=timeout))


@app.command()
def expire(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Remove nothing; say what would go, what is held, why.")
    ] = False,
    node: OneNode = None,
    server: Server = "",
    as_json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Let every node remove now what its own limits let go of its log. (It does so by itself, every second.)"""
    code = show_expiry(servers_of(server), node, dry_run=dry_run, as_json=as_json, timeout_s=timeout)
    raise typer.Exit(code)


Session = Annotated[int, typer.Argument(min=1, help="Its id, as POST /sessions or `quire session open` gave it.")]


@session_app.command("open")
def open_session(
    name: Annotated[str, typer.Argument(help="Under a name that is open it goes on, and its holder is fenced.")],
    server: Server = "",
    as_json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Open a session under a name, and print where it stands; it stays until it is closed."""
    opened = ask(server, timeout, lambda client: client.session(), session=name)
    show_session({"session": opened.id, "name": opened.name, "sequence": opened.sequence}, as_json=as_json)


@session_app.command("show")
def show_open_session(
    session: Session, server: Server = "", as_json: Json = False, timeout: Timeout = DEFAULT_TIMEOUT_S
) -> None:
    """Print where a session stands: its name, and the last sequence that was answered."""
    show_session(ask(server, timeout, lambda client: client.session_status(session)), as_json=as_json)


@session_app.command("close")
def close_session(
    session: Annotated[int | None, typer.Argument(min=1, help="Its id; or give its --name.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="The session that is open under this name.")] = None,
    server: Server = "",
    as_json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Close a session: its name and its replies are forgotten, and its holder is answered SESSION_EXPIRED."""
    if (session is None) == (name is None):
        fail_usage("give either a session's id or --name NAME")

    async def close(client: Client) -> dict[str, Any]:
        # A name is closed by whoever holds it, so this takes it over first.
        known = (await client.session()).id if session is None else session
        return await client.close_session(known)

    show_session(ask(server, timeout, close, session=name), as_json=as_json)


def show_session(document: dict[str, Any], *, as_json: bool) -> None:
    """Print a session on one line."""
    text = " ".join(f"{name} {printable(value)}" for name, value in document.items() if value is not None)
    typer.echo(to_json(document) if as_json else text)


def parse_operand(text: str) -> int | str:
    """An int where the text spells one that fits 64 bits; else the text itself, as decimals are sent."""
    if re.fullmatch(r"-?[0-9]{1,20}", text) and -(2**63) <= int(text) < 2**64:
        return int(text)
    return text


def parse_json(text: str) -> Any:
    """The JSON value that an argument spells; ends the process where it spells none that can be sent as it is."""
    try:
        return decode_json(text.encode(), DEPTH_LIMIT)
    except Malformed as error:
        fail_usage(f"the value cannot be sent: {error.reason}; text needs quotes of its own, as in '\"text\"'")


def read_raw(file: Path) -> bytes:
    """The bytes of a file, or of stdin where it is -; ends the process where they cannot be read."""
    try:
        return sys.stdin.buffer.read(RAW_LIMIT_BYTES) if str(file) == "-" else file.read_bytes()
    except OSError as error:
        fail_usage(f"{file} cannot be read: {(error.strerror or str(error)).lower()}; correct the path")


def run() -> None:
    """Run the command that the arguments name; ends the process with its exit code."""
    stamina.instrumentation.set_on_retry_hooks([])  # A retry is no news for whoever waits for one answer.
    for group in _groups_of(sys.argv[1:]):
        app.add_typer(group.load(), name=group.name)
    app(prog_name="quire")


def _groups_of(arguments: list[str]) -> list[EntryPoint]:
    """The group that the arguments name, none for a command that is not in one; all where a list may be shown.

    What a command does not need takes longer to import than most of them take to run.
    """
    groups = sorted(entry_points(group=COMMANDS_GROUP), key=lambda found: found.name)
    if not arguments or arguments[0].startswith("-"):
        return groups
    return [group for group in groups if group.name == arguments[0]]
