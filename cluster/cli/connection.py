"""Shared by the commands that talk to a cluster: options, a call on an open client, exit codes for its errors.

The client is imported when it is used: options, help and usage errors need none.
"""

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import update_wrapper
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeVar

import typer

from .output import Exit, complain, interruptible

if TYPE_CHECKING:
    from ..client import Client, ClientError

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
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        envvar="QUIRE_TOKEN_FILE",
        metavar="FILE",
        help="The file with the token to show, on its first line. Needs --ca.",
    ),
]
Ca = Annotated[
    Path | None,
    typer.Option(
        "--ca", envvar="QUIRE_CA", metavar="FILE", help="The cluster's ca.crt. Connect with TLS, only to its nodes."
    ),
]


def seconds(value: float) -> float:
    """A number of seconds, if it is finite; otherwise a usage error."""
    if not isfinite(value):
        raise typer.BadParameter(f"{value} is no number of seconds")
    return value


Timeout = Annotated[
    float,
    typer.Option("--timeout", metavar="SECONDS", min=0.1, callback=seconds, help="Deadline of each call."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON: one value, or one per line.")]
DEFAULT_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The cluster that a command talks to, and as whom. A wrong one is printed, with exit code 2, where it is used."""

    server: str
    token_file: Path | None = None
    ca: Path | None = None

    @property
    def servers(self) -> str:
        """The servers, separated by commas."""
        return servers_of(self.server)

    def connect(self, timeout_s: float, *, session: str | None = None, halt_on_failure: bool = False) -> "Client":
        """A client, not open yet."""
        from ..access.client_credentials import TokenRefused
        from ..access.tls import TlsRefused
        from ..client import connect

        try:
            return connect(
                self.servers,
                session=session,
                timeout_s=timeout_s,
                refused_grace_s=0.0,  # Whoever has just started nodes waits for them: `quire status --wait`.
                halt_on_failure=halt_on_failure,
                token=self.token_file,
                ca=self.ca,
            )
        except (ValueError, TokenRefused, TlsRefused) as error:
            fail_usage(str(error))


def connecting(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options --server, --token-file and --ca in place of its first parameter."""

    def run(server: Server = "", token_file: TokenFile = None, ca: Ca = None, **others: object) -> None:
        if token_file is not None:
            from ..access.client_credentials import warning_of

            if warning := warning_of(token_file):
                complain(warning)
        command(ClusterOptions(server, token_file, ca), **others)

    *options, _ = inspect.signature(run).parameters.values()
    _, *own = inspect.signature(command).parameters.values()
    update_wrapper(run, command)
    vars(run)["__signature__"] = inspect.Signature([*own, *options])  # What typer reads.
    return run


def ask(
    cluster: ClusterOptions,
    timeout_s: float,
    call: "Callable[[Client], Awaitable[Result]]",
    *,
    session: str | None = None,
    writes: bool = False,
) -> Result:
    """The result of one call on an open client. If it fails, print why and exit. `writes`: it may change something."""
    import asyncio

    from ..client import ClientError

    unopened = cluster.connect(timeout_s, session=session)

    async def run() -> Result:
        async with unopened as client:
            return await call(client)

    try:
        with interruptible():
            return asyncio.run(run())
    except ClientError as error:
        raise typer.Exit(exit_of(error)) from None
    except KeyboardInterrupt:
        doubt = "; whether it was executed is unknown: check the state before you send it again"
        complain(f"interrupted{doubt if writes else ''}")
        raise typer.Exit(Exit.INTERRUPTED) from None


def run_until_stopped(main: Callable[[], Coroutine[object, object, None]]) -> Exit:
    """Run a command until Ctrl-C, or until it cancels itself; return the exit code."""
    import asyncio

    from ..client import ClientError

    try:
        with interruptible():
            asyncio.run(main())
    except (KeyboardInterrupt, asyncio.CancelledError):
        return Exit.DONE
    except ClientError as error:
        return exit_of(error)
    return Exit.DONE


def servers_of(server: str) -> str:
    """The servers given with --server. If there is none, or one is not HOST:PORT, print why and exit."""
    from quire.replication.address import host_and_port

    named = [each.strip() for each in server.split(",") if each.strip()]
    if not named:
        fail_usage("no server given; use --server HOST:PORT or set QUIRE_SERVER")
    try:
        for each in named:
            host_and_port(each)
    except ValueError as error:
        scheme = ", without a scheme; for TLS, give the CA with --ca or QUIRE_CA" if "://" in server else ""
        fail_usage(f"--server or QUIRE_SERVER: {error}{scheme}")
    return ",".join(named)


def fail_usage(sentence: str) -> NoReturn:
    """Print what is wrong with the command line, and exit."""
    complain(sentence)
    raise typer.Exit(Exit.USAGE)


def exit_of(error: "ClientError") -> Exit:
    """Print the error and what to do about it; return the exit code."""
    from ..client import OutcomeUnknown, Unavailable

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
