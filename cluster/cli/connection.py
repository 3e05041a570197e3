"""Shared by the commands that talk to a cluster: options, a call on an open client, exit codes for its errors."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Annotated, NoReturn, TypeVar

import typer

from quire.replication.address import host_and_port

from ..client import Client, ClientError, OutcomeUnknown, Unavailable, connect
from .output import Exit, complain

Result = TypeVar("Result")

Server = Annotated[
    str,
    typer.Option(
        "--server",
        envvar="QUIRE_SERVER",
        metavar="HOST:PORT,...",
        help="Nodes to connect to. One is enough to find the leader.",
    ),
]
Timeout = Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="Deadline of each call.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON: one value, or one per line.")]
DEFAULT_TIMEOUT_S = 30.0


def ask(
    server: str, timeout_s: float, call: Callable[[Client], Awaitable[Result]], *, session: str | None = None
) -> Result:
    """The result of one call on an open client. If it fails, print why and exit."""

    async def run() -> Result:
        async with connect(servers_of(server), session=session, timeout_s=timeout_s) as client:
            return await call(client)

    try:
        return asyncio.run(run())
    except ClientError as error:
        raise typer.Exit(exit_of(error)) from None


def run_until_stopped(main: Callable[[], Coroutine[object, object, None]]) -> Exit:
    """Run a command until Ctrl-C or until its pipe is closed; return the exit code."""
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        return Exit.DONE
    except BrokenPipeError:
        # The reader closed the pipe, as in `quire tail | head`. Without this, Python complains when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.DONE
    except ClientError as error:
        return exit_of(error)
    return Exit.DONE


def servers_of(server: str) -> str:
    """The servers given with --server. If there is none, or one is not HOST:PORT, print why and exit."""
    named = [each.strip() for each in server.split(",") if each.strip()]
    if not named:
        fail_usage("no server given; use --server HOST:PORT or set QUIRE_SERVER")
    try:
        for each in named:
            host_and_port(each)
    except ValueError as error:
        fail_usage(f"--server or QUIRE_SERVER: {error}")
    return ",".join(named)


def fail_usage(sentence: str) -> NoReturn:
    """Print what is wrong with the command line, and exit."""
    complain(sentence)
    raise typer.Exit(Exit.USAGE)


def exit_of(error: ClientError) -> Exit:
    """Print the error and what to do about it; return the exit code."""
    match error:
        case OutcomeUnknown():
            complain(f"{error}; check the state or the log before you send it again")
            return Exit.OUTCOME_UNKNOWN
        case Unavailable():
            complain(f"{error}; check --server and `quire status`, then try again")
            return Exit.UNAVAILABLE
        case _:
            complain(str(error))
            return Exit.FAILED
