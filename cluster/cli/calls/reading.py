"""`quire read`, `tail`, `state`, `query` and `status`."""

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..connection import (
    DEFAULT_TIMEOUT_S,
    ClusterOptions,
    Json,
    Timeout,
    ask,
    connecting,
    fail_usage,
    run_until_stopped,
    seconds,
)
from ..output import Exit, complain, printable, say, say_all, to_json, write
from .operands import json_value_of

if TYPE_CHECKING:
    from ...client import Client, Record

app = typer.Typer()

NEWEST = 20
"""How many records `quire read` prints at most if it is not told which."""
SEARCHED = 500
"""In how many of the last indices it looks for them."""

Freshness = Annotated[
    Literal["linearizable", "leader", "local"],
    typer.Option("--consistency", help="How fresh it must be. local: as the first server has it, which may be stale."),
]


@app.command()
@connecting
def read(
    cluster: ClusterOptions,
    index: Annotated[
        int | None, typer.Argument(metavar="[INDEX]", min=0, help="The record's index. For a range: --from, --to.")
    ] = None,
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
    """Print one record, or a range with indices; without arguments, the newest records.

    Records that did not execute, such as retries, are marked. System records, by which the cluster keeps its members
    and sessions, are left out, and stderr counts them.
    """
    if index is not None and (export or from_index is not None or to_index is not None):
        fail_usage("give either an index or a range, not both; --export takes a range")
    if raw and (index is None or as_json):
        fail_usage("--raw goes with an index, and without --json")
    if from_index is not None and to_index is not None and from_index > to_index:
        fail_usage(f"--from {from_index} is above --to {to_index}; the range is [from, to)")
    if export:
        from .export import export_range

        raise typer.Exit(export_range(cluster, from_index, to_index, timeout))
    if index is None:
        ask(cluster, timeout, lambda client: _print_range(client, from_index, to_index, as_json=as_json))
        return
    wanted = index
    value = ask(cluster, timeout, lambda client: client.read(wanted))
    if raw:
        write_raw(wanted, value)
        return
    say(to_json({"index": index, "value": value}) if as_json else printable(value))


async def _print_range(client: "Client", from_index: int | None, to_index: int | None, *, as_json: bool) -> None:
    bounds = await client.bounds()
    newest = from_index is None and to_index is None
    lowest, highest = bounds.lowest_index, bounds.highest_index
    first = max(lowest, highest - SEARCHED) if newest else lowest if from_index is None else from_index
    end = highest if to_index is None else min(to_index, highest)
    records: AsyncIterable[Record] = client.read_range(first, end)
    if newest:
        kept = deque([record async for record in records], NEWEST)
        first = kept[0].index if len(kept) == NEWEST else first
        records = _each(kept)
    if first > highest or (to_index or 0) > highest:
        complain(f"the log has [{lowest}, {highest}) so far")
    printed = 0
    async for record in records:
        printed += 1
        say(*([to_json(asdict(record))] if as_json else cells_of(record)))
    if (skipped := end - first - printed) > 0:
        left_out = "1 system record is" if skipped == 1 else f"{skipped:,} system records are"
        complain(f"{left_out} not shown: they open sessions, or change members")
    if newest and first > lowest:
        complain(f"these are the newest of [{lowest}, {highest}); `quire read --from {lowest}` prints all")


async def _each(records: "Iterable[Record]") -> "AsyncGenerator[Record]":
    for record in records:
        yield record


def write_raw(index: int, value: object) -> None:
    """Write a value to stdout, bytes unchanged. If it is neither bytes nor a string, print why and exit."""
    if not isinstance(value, bytes | str):
        complain(f"the record at index {index} is neither bytes nor a string; read it without --raw")
        raise typer.Exit(Exit.FAILED)
    write(value if isinstance(value, bytes) else value.encode())


def cells_of(record: "Record") -> list[str]:
    """A record of a range as text: its index, its value, and whether it was not executed."""
    return [str(record.index), printable(record.value), *(["not executed"] if record.executed is False else [])]


@app.command()
@connecting
def state(
    cluster: ClusterOptions,
    consistency: Freshness = "linearizable",
    as_json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Print the machine's state, applied index and digest."""
    asked = cluster.servers.split(",")[0] if consistency == "local" else None
    answer = ask(cluster, timeout, lambda client: client.state(consistency, server=asked))
    if as_json:
        say(to_json({"state": answer.state, "applied_index": answer.applied_index, "digest": answer.digest}))
    else:
        say(printable(answer.state))
        say(f"applied_index {answer.applied_index}")
        say(f"digest {printable(answer.digest)}")


@app.command()
@connecting
def query(
    cluster: ClusterOptions,
    request: Annotated[
        str | None, typer.Argument(metavar="[JSON]", help='The request, as in \'["get", "key"]\'. Default: null.')
    ] = None,
    consistency: Freshness = "linearizable",
    as_json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Print the machine's answer to a request; without one, which is null, its whole state."""
    wanted = None if request is None else json_value_of(request)
    asked = cluster.servers.split(",")[0] if consistency == "local" else None
    answer = ask(cluster, timeout, lambda client: client.query(wanted, consistency, server=asked))
    say(to_json(answer) if as_json else printable(answer))


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


async def _print_records(unopened: "Client", from_index: int | None, count: int | None) -> None:
    from contextlib import aclosing

    left = count
    async with unopened as client, aclosing(client.pages.tail(from_index)) as pages:
        async for page in pages:
            await say_all(to_json(asdict(record)) for record in page[:left])
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
        float,
        typer.Option("--interval", metavar="SECONDS", min=0.1, callback=seconds, help="Between refreshes."),
    ] = 1.0,
    wait: Annotated[
        float,
        typer.Option("--wait", metavar="SECONDS", min=0.0, callback=seconds, help="Wait until every node is ready."),
    ] = 0.0,
    state: Annotated[bool, typer.Option("--state", help="Show each node's state, if it is not too large.")] = False,
    as_json: Json = False,
    timeout: Timeout = 2.0,
) -> None:
    """Show every node: role, indices, lag and digest."""
    from ..status import show_status, watch_status

    if watch and wait:
        fail_usage("give either --watch or --wait")
    if watch:
        watching = partial(watch_status, cluster, interval, as_json=as_json, timeout_s=timeout, states=state)
        raise typer.Exit(run_until_stopped(watching))
    raise typer.Exit(show_status(cluster, as_json=as_json, timeout_s=timeout, states=state, wait_s=wait))
