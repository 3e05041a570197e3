"""The commands of `quire`, except the flags of `serve`. They print plain text for people, and JSON with `--json`."""

import re
import sys
from contextlib import aclosing
from dataclasses import asdict
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated

import typer

import quire

from ..client import Client, Consistency
from ..client.records import Record
from ..errors import Malformed
from ..terminal import EscapingStream
from ..values import DEPTH_LIMIT, decode_json
from .certs import certs_app
from .connection import (
    DEFAULT_TIMEOUT_S,
    ClusterOptions,
    Json,
    Timeout,
    ask,
    connecting,
    fail_usage,
    run_until_stopped,
)
from .credentials import secret_app, token_app
from .export import export_range
from .load import BATCH_COMMANDS, load_file
from .operating.admin import admin_app, code_app, session_app
from .operating.members import drain_app, members_app
from .operating.recover import recover_app
from .operating.roll import roll_app
from .output import Exit, complain, printable, say, to_json
from .status import show_status, watch_status

ABOUT = "A replicated state machine: one durable log, and the same state on every node."

app = typer.Typer(name="quire", help=ABOUT, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)

COMMANDS_GROUP = "quire.commands"  # The entry points of command groups, of this and other packages.
RAW_LIMIT_BYTES = 1 << 30  # More than any frame may hold. Keeps an endless stdin from filling the memory.


def _print_version(asked: bool) -> None:
    if asked:
        say(f"quire {quire.__version__}")
        raise typer.Exit


@app.callback(help=ABOUT)
def quire_command(
    _version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Hold the options that precede a command."""


@app.command(add_help_option=False, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def serve(context: typer.Context) -> None:
    """Run one node of a cluster, or a standalone log."""
    from ..serve.node_service import serve as run_node  # noqa: PLC0415  # Only this command needs the node's modules.

    raise typer.Exit(run_node(context.args))


@app.command(context_settings={"ignore_unknown_options": True})
@connecting
def apply(
    cluster: ClusterOptions,
    operation: Annotated[str, typer.Argument(help="For the arithmetic machine: add, sub, mul or div.")],
    operands: Annotated[list[str] | None, typer.Argument(help="Integers; anything else is sent as a string.")] = None,
    as_json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Apply one command and print its result. Example: quire apply add 3"""
    command = [operation, *map(parse_operand, operands or [])]
    result = ask(cluster, timeout, lambda client: client.apply(command))
    say(f'{{"result": {to_json(result)}}}' if as_json else printable(result))


@app.command(context_settings={"ignore_unknown_options": True})
@connecting
def append(
    cluster: ClusterOptions,
    value: Annotated[str | None, typer.Argument(help="The record as JSON, as in '[\"add\", 3]'.")] = None,
    raw: Annotated[
        Path | None, typer.Option("--raw", metavar="FILE", help="Append the bytes of a file; - reads stdin.")
    ] = None,
    as_json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Append one record and print its index. The record is a JSON value or raw bytes."""
    if (value is None) == (raw is None):
        fail_usage("give either a JSON value or --raw FILE")
    record = read_raw(raw) if raw is not None else parse_json(value or "")
    index = ask(cluster, timeout, lambda client: client.append(record))
    say(f'{{"index": {to_json(index)}}}' if as_json else printable(index))


@app.command()
@connecting
def load(
    cluster: ClusterOptions,
    file: Annotated[Path, typer.Argument(help="NDJSON, one command per line; - reads stdin.")],
    batch: Annotated[
        int, typer.Option("--batch", min=1, help="Commands per frame. A frame is applied as a whole or not at all.")
    ] = BATCH_COMMANDS,
    session: Annotated[
        str | None,
        typer.Option("--session", metavar="NAME", help="Continue after the lines already loaded under this name."),
    ] = None,
    close_session: Annotated[
        bool,
        typer.Option(
            "--close-session", help="Close the session at the end. Another run then starts from the first line."
        ),
    ] = False,
    acknowledged: Annotated[
        Path | None,
        typer.Option(
            "--acknowledged", metavar="FILE", help="Append a JSON line for each acknowledged batch to a file."
        ),
    ] = None,
    as_json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Apply a file of commands in order, each exactly once."""
    if close_session and not session:
        fail_usage("--close-session goes with --session NAME")
    code = load_file(
        cluster,
        file,
        batch,
        acknowledged,
        as_json=as_json,
        timeout_s=timeout,
        session=session or None,
        close=close_session,
    )
    raise typer.Exit(code)


@app.command()
@connecting
def read(
    cluster: ClusterOptions,
    index: Annotated[int | None, typer.Argument(min=0, help="The record's index. For a range: --from, --to.")] = None,
    from_index: Annotated[int | None, typer.Option("--from", min=0, help="First index of the range.")] = None,
    to_index: Annotated[int | None, typer.Option("--to", min=0, help="End of the range, exclusive.")] = None,
    export: Annotated[
        bool, typer.Option("--export", help="Print the commands that executed, without retries, for `quire load`.")
    ] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Write a record that is bytes or a string unchanged, without a line end.")
    ] = False,
    as_json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Print one record, or a range with indices. Records that did not execute, such as retries, are marked."""
    if index is not None and (export or from_index is not None or to_index is not None):
        fail_usage("give either an index or a range, not both; --export takes a range")
    if raw and (index is None or as_json):
        fail_usage("--raw goes with an index, and without --json")
    if export:
        raise typer.Exit(export_range(cluster, from_index, to_index, timeout))

    async def print_range(client: Client) -> None:
        async for record in client.read_range(from_index, to_index):
            say(*([to_json(asdict(record))] if as_json else cells_of(record)))

    if index is None:
        ask(cluster, timeout, print_range)
        return
    wanted = index
    value = ask(cluster, timeout, lambda client: client.read(wanted))
    if raw:
        write_raw(wanted, value)
        return
    say(to_json({"index": index, "value": value}) if as_json else printable(value))


def write_raw(index: int, value: object) -> None:
    """Write a value to stdout, bytes unchanged. If it is neither bytes nor a string, print why and exit."""
    if not isinstance(value, bytes | str):
        complain(f"the record at index {index} is neither bytes nor a string; read it without --raw")
        raise typer.Exit(Exit.FAILED)
    sys.stdout.buffer.write(value if isinstance(value, bytes) else value.encode())
    sys.stdout.buffer.flush()


def cells_of(record: Record) -> list[str]:
    """A record of a range as text: its index, its value, and whether it was not executed."""
    return [str(record.index), printable(record.value), *(["not executed"] if record.executed is False else [])]


@app.command()
@connecting
def state(
    cluster: ClusterOptions,
    consistency: Annotated[
        Consistency,
        typer.Option(
            "--consistency", help="How fresh the state must be. local: that of the first server, which may be stale."
        ),
    ] = "linearizable",
    as_json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Print the machine's state, applied index and digest."""
    asked = cluster.servers.split(",")[0] if consistency == "local" else None
    answer = ask(cluster, timeout, lambda client: client.state(consistency, server=asked))
    if as_json:
        say(to_json(asdict(answer)))
    else:
        say(printable(answer.state))
        say(f"applied_index {answer.applied_index}")
        say(f"digest {printable(answer.digest)}")


@app.command()
@connecting
def tail(
    cluster: ClusterOptions,
    from_index: Annotated[
        int | None, typer.Option("--from", min=0, help="First index. Default: new records only.")
    ] = None,
    count: Annotated[int | None, typer.Option("--count", min=1, help="Exit after this many records.")] = None,
    as_json: Json = False,  # noqa: ARG001  # Accepted as everywhere; the output is JSON in any case.
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Print new records as lines of JSON, until Ctrl-C."""
    client = cluster.connect(timeout)
    raise typer.Exit(run_until_stopped(lambda: _print_records(client, from_index, count)))


async def _print_records(unopened: Client, from_index: int | None, count: int | None) -> None:
    left = count
    async with unopened as client, aclosing(client.pages.tail(from_index)) as pages:
        async for page in pages:
            sys.stdout.writelines(to_json(asdict(record)) + "\n" for record in page[:left])
            sys.stdout.flush()
            if left is not None:
                left -= len(page)
                if left <= 0:
                    return


@app.command()
@connecting
def status(
    cluster: ClusterOptions,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.1, help="Time between refreshes, with --watch.")
    ] = 1.0,
    state: Annotated[bool, typer.Option("--state", help="Show each node's state, if it is not too large.")] = False,
    as_json: Json = False,
    timeout: Timeout = 2.0,
) -> None:
    """Show every node: role, indices, lag and digest."""
    if watch:
        watching = partial(watch_status, cluster, interval, as_json=as_json, timeout_s=timeout, states=state)
        raise typer.Exit(run_until_stopped(watching))
    raise typer.Exit(show_status(cluster, as_json=as_json, timeout_s=timeout, states=state))


app.add_typer(admin_app)
app.add_typer(members_app)
app.add_typer(drain_app)
app.add_typer(roll_app)
app.add_typer(recover_app)
app.add_typer(session_app)
app.add_typer(code_app)
app.add_typer(secret_app)
app.add_typer(token_app)
app.add_typer(certs_app)


def parse_operand(text: str) -> int | str:
    """An int if the text is one that fits 64 bits; otherwise the text itself, which is how decimals are sent."""
    if re.fullmatch(r"-?[0-9]{1,20}", text) and -(2**63) <= int(text) < 2**64:
        return int(text)
    return text


def parse_json(text: str) -> object:
    """The JSON value of an argument. If it is not valid, print why and exit."""
    try:
        return decode_json(text.encode(), DEPTH_LIMIT)
    except Malformed as error:
        fail_usage(f"the value cannot be sent: {error.reason}; a string needs its own quotes, as in '\"text\"'")


def read_raw(file: Path) -> bytes:
    """The bytes of a file, or of stdin for -. If they cannot be read, print why and exit."""
    try:
        return sys.stdin.buffer.read(RAW_LIMIT_BYTES) if str(file) == "-" else file.read_bytes()
    except OSError as error:
        fail_usage(f"{file} cannot be read: {(error.strerror or str(error)).lower()}; correct the path")


def run() -> None:
    """Run the command that the arguments name, and exit with its code."""
    sys.stderr = EscapingStream(sys.stderr)  # For what typer, or Python itself, says of arguments and of errors.
    for group in _groups_of(sys.argv[1:]):
        loaded: typer.Typer = group.load()
        is_command = [command.name for command in loaded.registered_commands] == [group.name]
        app.add_typer(loaded, name=None if is_command else group.name)
    app(prog_name="quire")


def _groups_of(arguments: list[str]) -> list[EntryPoint]:
    """The command group that the arguments name, if any; all groups if the help lists them.

    Importing all groups takes longer than most commands take to run.
    """
    groups = sorted(entry_points(group=COMMANDS_GROUP), key=lambda found: found.name)
    if not arguments or arguments[0].startswith("-"):
        return groups
    return [group for group in groups if group.name == arguments[0]]
