"""`quire apply`, `append` and `load`. A write prints its result, or its refusal with exit code 1."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..connection import DEFAULT_TIMEOUT_S, ClusterOptions, Json, Timeout, ask, connecting, fail_usage
from ..group import Words
from ..output import Exit, complain, printable, say, to_json
from .operands import command_of, depends_on_machine, json_command_of, json_value_of

if TYPE_CHECKING:
    from quire.log import Value

    from ...client import Client

app = typer.Typer()

RAW_LIMIT_BYTES = 1 << 30  # More than any frame may hold. Keeps an endless stdin from filling the memory.
JsonOperands = Annotated[bool, typer.Option("--json", help="Read operands as JSON, and print the result as JSON.")]


@app.command(cls=Words, context_settings={"ignore_unknown_options": True})
@connecting
def apply(
    cluster: ClusterOptions,
    operation: Annotated[
        str, typer.Argument(metavar="OPERATION", help="For the arithmetic machine: add, sub, mul or div.")
    ],
    operands: Annotated[
        list[str] | None, typer.Argument(metavar="[OPERAND]...", help="Text; a number where the operation takes one.")
    ] = None,
    as_json: JsonOperands = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Apply one command and print its result.

    Examples: quire apply add 3; for your own machine: quire apply --json '["take", "nails", 3]'
    """
    words = operands or []
    known = json_command_of(operation, words) if as_json else None

    async def call(client: "Client") -> "Value":
        if as_json:
            return await client.apply(known)
        machine = await machine_of(client) if depends_on_machine(operation, words) else ""
        return await client.apply(command_of(operation, words, machine))

    say_result(ask(cluster, timeout, call, writes=True), as_json=as_json)


async def machine_of(client: "Client") -> str:
    """The name of the cluster's machine."""
    return (await client.status())["machine"]["name"]


async def stores_records(client: "Client") -> bool:
    """Whether a record has no result here: the machine is `log`, or there is none, as in a standalone log."""
    from ...client import NotFound

    try:
        return await machine_of(client) == "log"
    except NotFound:
        return True


def say_result(result: object, *, as_json: bool) -> None:
    """Print the result of a command."""
    say(f'{{"result": {to_json(result)}}}' if as_json else printable(result))


@app.command(cls=Words, context_settings={"ignore_unknown_options": True})
@connecting
def append(
    cluster: ClusterOptions,
    value: Annotated[
        str | None, typer.Argument(metavar="[JSON]", help="The record as JSON, as in '[\"add\", 3]'.")
    ] = None,
    raw: Annotated[
        Path | None, typer.Option("--raw", metavar="FILE", help="Append the bytes of a file; - reads stdin.")
    ] = None,
    as_json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Append one record, a JSON value or raw bytes, and print its index and its result.

    The log machine has no results: it stores what it gets.
    """
    if (value is None) == (raw is None):
        fail_usage("give either a JSON value or --raw FILE")
    record = read_raw(raw) if raw is not None else json_value_of(value or "")

    async def call(client: "Client") -> "dict[str, Value]":
        if await stores_records(client):
            return {"index": await client.append(record)}
        reply = await client.apply_batch([record])
        if reply.refused:
            from ...client import CommandRefused

            raise CommandRefused(reply.refused, reply.index)
        return {"index": reply.index, "result": reply.results[0]}

    written = ask(cluster, timeout, call, writes=True)
    say(to_json(written)) if as_json else say(*map(printable, written.values()))


@app.command()
@connecting
def load(
    cluster: ClusterOptions,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="NDJSON, one command per line; - reads stdin.")],
    batch: Annotated[
        int | None,
        typer.Option(
            "--batch", min=1, help="Commands per frame, 2000 by default. A frame is applied as a whole or not at all."
        ),
    ] = None,
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
    from .load import BATCH_COMMANDS, load_file

    code = load_file(
        cluster,
        file,
        batch or BATCH_COMMANDS,
        acknowledged,
        as_json=as_json,
        timeout_s=timeout,
        session=session or None,
        close=close_session,
    )
    raise typer.Exit(code)


def read_raw(file: Path) -> bytes:
    """The bytes of a file, or of stdin for -. If they cannot be read, print why and exit."""
    try:
        with open(0, "rb", closefd=False) if str(file) == "-" else file.open("rb") as source:
            return source.read(RAW_LIMIT_BYTES)
    except OSError as error:
        complain(f"{file} cannot be read: {(error.strerror or str(error)).lower()}; correct the path")
        raise typer.Exit(Exit.USAGE) from None
