"""`quire consume`: the records that a consumer has not committed, as lines of JSON or to a command."""

import re
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..connection import (
    DEFAULT_TIMEOUT_S,
    ClusterOptions,
    Json,
    Timeout,
    connecting,
    fail_usage,
    run_until_stopped,
    seconds,
)

if TYPE_CHECKING:
    from .handlers import SkippedRecords

app = typer.Typer()

MAX_IN_FLIGHT = 100
"""Handlers at once: each is a process, and has a thread and some descriptors here."""
MAX_ATTEMPTS = 1_000
MAX_SHARDS = 65_536
"""As a cursor's name can say."""
MAX_NUMBER = 2**64 - 1
ATTEMPTS = 6
HANDLER_TIMEOUT_S = 60.0

_SHARE = re.compile(r"([0-9]{1,5})/([0-9]{1,5})")
_SHARE_NAME = re.compile(r"(.+)/([0-9]+)-([0-9]+)", re.DOTALL)
_INDEX = re.compile(r"[0-9]{1,20}")


HoldBytes = Annotated[
    int | None,
    typer.Option(
        "--hold-bytes",
        metavar="N",
        min=0,
        max=MAX_NUMBER,
        help="How much of the log it may keep from expiring. Default: as it is.",
    ),
]


@app.command()
@connecting
def consume(
    cluster: ClusterOptions,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The consumer's name. It keeps its position under it.")],
    shard: Annotated[
        str | None, typer.Option("--shard", metavar="I/N", help="Only the share I of N workers, I from 0.")
    ] = None,
    start: Annotated[
        str, typer.Option("--start", metavar="first|end|INDEX", help="Where a consumer begins that is new.")
    ] = "first",
    until: Annotated[
        int | None,
        typer.Option("--until", metavar="INDEX", min=0, max=MAX_NUMBER, help="End after the records below this index."),
    ] = None,
    hold_bytes: HoldBytes = None,
    skip_lost: Annotated[
        bool, typer.Option("--skip-lost", help="Continue after records that expired before they were read.")
    ] = False,
    command: Annotated[
        str | None,
        typer.Option(
            "--exec",
            metavar="COMMAND",
            help="Run this for each record, a line of JSON on its stdin; no shell reads it. Exit code 0: done.",
        ),
    ] = None,
    max_in_flight: Annotated[
        int,
        typer.Option("--max-in-flight", min=1, max=MAX_IN_FLIGHT, help="How many records COMMAND may have at once."),
    ] = 1,
    attempts: Annotated[
        int, typer.Option("--attempts", min=1, max=MAX_ATTEMPTS, help="How often COMMAND is run for a record at most.")
    ] = ATTEMPTS,
    handler_timeout: Annotated[
        float,
        typer.Option(
            "--handler-timeout", metavar="SECONDS", min=0.01, callback=seconds, help="How long COMMAND may take."
        ),
    ] = HANDLER_TIMEOUT_S,
    skip_failed: Annotated[
        Path | None,
        typer.Option("--skip-failed", metavar="FILE", help="Append records whose attempts all failed here; go on."),
    ] = None,
    as_json: Json = False,  # noqa: ARG001  # Accepted as everywhere; the output is JSON in any case.
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Give each new record to a consumer, at least once: as a line of JSON, or to a command. Until Ctrl-C.

    Its position is kept by the cluster, so that it continues there. Printed records are committed once stdout has them,
    others once COMMAND ended with 0. A second consumer of the same name takes over from the first.
    """
    refuse_share_name(name)
    share, first = _share_of(shard), _start_of(start)
    words = None if command is None else _words_of(command)
    if words is None:
        _refuse_without_exec(max_in_flight, attempts, handler_timeout, skip_failed)
    client = cluster.connect(timeout)

    from .children import Children
    from .consuming import Consumption
    from .handlers import Handlers

    handlers = (
        None if words is None else Handlers(words, attempts, handler_timeout, _skipped_into(skip_failed), Children())
    )
    consumption = Consumption(name, share, first, until, hold_bytes, skip_lost)
    raise typer.Exit(run_until_stopped(lambda: consumption.run(client, handlers, max_in_flight)))


def _skipped_into(path: Path | None) -> "SkippedRecords | None":
    from .handlers import SkippedRecords

    try:
        return None if path is None else SkippedRecords(path)
    except OSError as error:
        fail_usage(f"--skip-failed {str(path)!r}: {(error.strerror or str(error)).lower()}")


def refuse_share_name(name: str) -> None:
    """Exit if this is not the name of a consumer, but none or that of a share."""
    if not name:
        fail_usage("the consumer has no name")
    if share := _SHARE_NAME.fullmatch(name):
        consumer, number, shards = share.groups()
        fail_usage(f"{name!r} names a worker's share; use: quire consume {consumer} --shard {number}/{shards}")


def _refuse_without_exec(max_in_flight: int, attempts: int, handler_timeout: float, skip_failed: Path | None) -> None:
    if (max_in_flight, attempts, handler_timeout, skip_failed) != (1, ATTEMPTS, HANDLER_TIMEOUT_S, None):
        fail_usage("--max-in-flight, --attempts, --handler-timeout and --skip-failed need --exec")


def _share_of(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    share = _SHARE.fullmatch(text)
    number, shards = (int(part) for part in share.groups()) if share else (0, 0)
    if not number < shards <= MAX_SHARDS:
        fail_usage(f"--shard {text!r} is not I/N, with I from 0 to N - 1, and N at most {MAX_SHARDS}, as in 0/4")
    return number, shards


def _start_of(text: str) -> int | str:
    if text in ("first", "end"):
        return text
    if not _INDEX.fullmatch(text) or int(text) > MAX_NUMBER:
        fail_usage(f"--start {text!r} is neither first nor end nor an index")
    return int(text)


def _words_of(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        fail_usage(f"--exec {command!r}: {error}")
    if not words:
        fail_usage("--exec names no command")
    if shutil.which(words[0]) is None:
        fail_usage(f"--exec: {words[0]!r} is not a command that can be run; give its path, or correct your PATH")
    return words
