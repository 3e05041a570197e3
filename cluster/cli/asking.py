"""What the commands that talk to a cluster share: flags, one question on an open client, what its error ends in."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, NoReturn, TypeVar

import typer

from ..address import host_and_port
from ..client import Client, ClientError, OutcomeUnknown, Unavailable, connect
from .exits import Exit, complain

Result = TypeVar("Result")

Server = Annotated[
    str,
    typer.Option(
        "--server",
        envvar="QUIRE_SERVER",
        metavar="HOST:PORT,...",
        help="Nodes to talk to; one is enough to find the leader.",
    ),
]
Timeout = Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="How long one call may take.")]
Json = Annotated[bool, typer.Option("--json", help="Answer as one JSON value (one a line for many).")]
DEFAULT_TIMEOUT_S = 30.0


def ask(
    server: str, timeout_s: float, question: Callable[[Client], Awaitable[Result]], *, session: str | None = None
) -> Result:
    """What the question gives on an open client; ends the process with a sentence where it gives none."""

    async def asked() -> Result:
        async with connect(servers_of(server), session=session, timeout_s=timeout_s) as client:
            return await question(client)

    try:
        return asyncio.run(asked())
    except ClientError as error:
        raise typer.Exit(exit_of(error)) from None


def servers_of(server: str) -> str:
    """The servers that were named; ends the process where none is, or one is no HOST:PORT."""
    named = [each.strip() for each in server.split(",") if each.strip()]
    if not named:
        fail_usage("no server is named; give --server HOST:PORT or set QUIRE_SERVER")
    try:
        for each in named:
            host_and_port(each)
    except ValueError as error:
        fail_usage(f"--server, or QUIRE_SERVER: {error}")
    return ",".join(named)


def fail_usage(sentence: str) -> NoReturn:
    """End the process: the command line is wrong."""
    complain(sentence)
    raise typer.Exit(Exit.USAGE)


def exit_of(error: ClientError) -> Exit:
    """Say what the error was and what to do; return the code to end with."""
    match error:
        case OutcomeUnknown():
            complain(f"{error}; look at the state or the records before you send it again")
            return Exit.OUTCOME_UNKNOWN
        case Unavailable():
            complain(f"{error}; check --server and `quire status`, then try again")
            return Exit.UNAVAILABLE
        case _:
            complain(str(error))
            return Exit.FAILED
