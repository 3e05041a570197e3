"""`quire backup`: backs a cluster up to a folder or an object store, and shows and verifies what is there."""

import signal
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from ..errors import ClusterError
from ..standard_streams import queue_standard_streams
from .connection import DEFAULT_TIMEOUT_S, ClusterOptions, Json, Timeout, ask, connecting, exit_of, fail_usage
from .group import Group
from .output import Exit, complain, exit_at_once, interruptible, say, to_json
from .progress import shown_bytes

if TYPE_CHECKING:
    from ..backup.keeper import Keeper
    from ..backup.manifest import Manifest
    from ..backup.run import Outcome
    from ..backup.store import Store
    from ..client import Client, Status

T = TypeVar("T")

MICROSECONDS = 1_000_000
DAY_US = 86_400 * MICROSECONDS
MAX_LAG_S = 600.0
MAX_SKEW_S = 10.0
"""Clocks differ by less (`CLOCK_ALARM_US`). A record that is from further ahead shows that the clock went back."""


class _RunByDefault(Group):
    """A group whose command `run` need not be named."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="backup",
    cls=_RunByDefault,
    help="Back a cluster up to a folder or an object store, with `quire backup DESTINATION`; or verify what is there.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Place = Annotated[str, typer.Argument(help="A folder, or s3://, gs://, az:// or file://.")]
StoreOptions = Annotated[
    list[str] | None,
    typer.Option("--store-option", metavar="KEY=VALUE", help="An option of the object store, such as endpoint=URL."),
]


@app.command()
@connecting
def run(
    cluster: ClusterOptions,
    destination: Annotated[str, typer.Argument(help="A folder, or s3://, gs://, az:// or file://.")],
    node: Annotated[
        str | None, typer.Option("--from", metavar="NODE", help="Read from this node. Default: a follower.")
    ] = None,
    every: Annotated[
        float | None, typer.Option("--every", metavar="SECONDS", min=1.0, help="Keep on, with a run at each interval.")
    ] = None,
    keep: Annotated[
        int | None, typer.Option("--keep", metavar="DAYS", min=1, help="Delete what is older. Default: keep it.")
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option("--metrics", metavar="[HOST:]PORT", help="With --every: serve metrics there, on 127.0.0.1."),
    ] = None,
    store_option: StoreOptions = None,
    as_json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Bring a backup up to date; with --every, keep it so until Ctrl-C."""
    import asyncio
    from functools import partial

    from quire.log import wall_clock

    from ..backup.keeper import Keeper
    from ..backup.object_store import check_conditional
    from ..backup.run import Backup
    from ..data_dir.identity import IDENTITY_FILE

    if metrics is not None and every is None:
        fail_usage("--metrics goes with --every SECONDS")
    servers, place = cluster.servers.split(","), None if metrics is None else _metrics_address(metrics)
    keep_us = None if keep is None else keep * DAY_US
    with failing():
        store = store_of(destination, store_option)
        if (Path(store.name) / IDENTITY_FILE).exists():
            fail_usage(f"{store.name} is the data directory of a node; give the backup a place of its own")
        backup = Backup(store, wall_clock, complain, node=node, keep_us=keep_us)
        check = partial(check_conditional, store)
        keeper = Keeper(backup, lambda: cluster.connect(timeout), servers, wall_clock, check)

        def done(outcome: "Outcome") -> None:
            _tell(outcome, keeper, as_json=as_json)

        if every is None:
            done(asyncio.run(_until_stopped(keeper.run(), _interrupted)))
            return
        queue_standard_streams()
        if place is not None:
            _serve(keeper, place)
        keeping = keeper.keep(every, done, complain)
        asyncio.run(_until_stopped(keeping, lambda: Exit.DONE if keeper.runs and not keeper.failure else Exit.FAILED))


async def _until_stopped(main: Coroutine[object, object, T], code: Callable[[], Exit]) -> T:
    """Run to the end, or until SIGTERM or Ctrl-C, which end the process with this exit code.

    At once: a thread that waits for a stalled store cannot be interrupted. What a manifest does not name is lost.
    """
    import asyncio

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, lambda: exit_at_once(code()))
    return await main


def _interrupted() -> Exit:
    complain("interrupted; what a manifest names is a whole backup, and the next run continues it")
    return Exit.INTERRUPTED


def _metrics_address(text: str) -> tuple[str, int]:
    from quire.replication.address import host_and_port

    host, _, port = text.rpartition(":")
    try:
        return host_and_port(f"{host or '127.0.0.1'}:{port}")
    except ValueError as error:
        fail_usage(f"--metrics: {error}")


def _serve(keeper: "Keeper", address: tuple[str, int]) -> None:
    from ..backup.keeper import serve_metrics

    try:
        serve_metrics(keeper, *address)
    except OSError as error:
        fail_usage(f"--metrics {address[0]}:{address[1]}: {(error.strerror or str(error)).lower()}")


def _tell(outcome: "Outcome", keeper: "Keeper", *, as_json: bool) -> None:
    manifest, lag = outcome.manifest, keeper.lag
    if as_json:
        facts: dict[str, object] = {"manifest": manifest.number, "new": outcome.is_new, "node": manifest.node}
        facts |= {"base": manifest.base, "end": manifest.end.index, "digest": list(manifest.applied)}
        say(to_json(facts | {"pieces": outcome.pieces, "bytes": outcome.size, "lag_records": lag.records}))
        return
    what = f"[{manifest.base}, {manifest.end.index}) from {manifest.node}, manifest {manifest.number}"
    wrote = f"{outcome.size:,} bytes written" if outcome.is_new else "nothing new"
    say(f"{what}: {wrote}; the backup lags by {lag}")


@app.command(name="list")
def list_manifests(source: Place, store_option: StoreOptions = None, as_json: Json = False) -> None:
    """List the manifests: what can be restored."""
    from ..backup.contents import read_all, shown_time

    with failing():
        manifests = read_all(store_of(source, store_option), complain)
    if as_json:
        say(to_json([_row(manifest) for manifest in manifests]))
        return
    say(f"{'manifest':>8}  {'time':27}  {'from':>12}  {'to':>12}  {'snapshots':>9}  {'bytes':>15}  node")
    for each in manifests:
        row = f"{each.number:>8}  {shown_time(each.time)}  {each.base:>12}  {each.end.index:>12}"
        say(f"{row}  {len(each.snapshots):>9}  {each.size:>15,}  {each.node}")


def _row(manifest: "Manifest") -> dict[str, object]:
    row: dict[str, object] = {"manifest": manifest.number, "time": manifest.time, "chain": manifest.chain}
    row |= {"base": manifest.base, "end": manifest.end.index, "epoch": manifest.end.epoch}
    row |= {"snapshots": [snapshot.index for snapshot in manifest.snapshots], "bytes": manifest.size}
    row |= {"cluster_id": manifest.cluster_id, "history": manifest.history, "name": manifest.name}
    row |= {"applied": list(manifest.applied), "node": manifest.node, "quire": manifest.quire}
    return row | {"thinned": list(manifest.thinned)}


@app.command()
def verify(
    source: Place,
    with_replay: Annotated[
        bool,
        typer.Option(
            "--replay", help="Restore the newest snapshot; apply everything again; compare what nodes reported."
        ),
    ] = False,
    machine: Annotated[
        str | None,
        typer.Option("--machine", help="For --replay, if it is your own: package.module:Class. Try new code with it."),
    ] = None,
    store_option: StoreOptions = None,
    as_json: Json = False,
) -> None:
    """Read every file of a backup, and recompute every checksum and the chain."""
    from quire.sm.machines.registry import recorded_machine, search_current_folder

    from ..backup.contents import read_all
    from ..backup.manifest import sizes_of
    from ..backup.verify import Verification, replay

    if machine is not None and not with_replay:
        fail_usage("--machine goes with --replay")
    with failing():
        store = store_of(source, store_option)
        manifests = read_all(store, complain)
        kind = None
        if with_replay:
            search_current_folder(machine or "")
            kind = recorded_machine(manifests[-1].machine[0], machine)
        size = sum(sizes_of(manifests).values())
        with shown_bytes("verify", size, hidden=as_json) as progress:
            found = Verification(store, progress).check(manifests)
        facts: dict[str, object] = {"manifests": found.manifests, "files": found.files, "bytes": found.size}
        if kind is not None:
            with shown_bytes("replay", size, hidden=as_json) as progress:
                digests, applier = replay(store, manifests, kind, progress)
            facts |= {"digests": digests, "applied_index": applier.applied_index, "digest": applier.digest.hex()}
    if as_json:
        say(to_json(facts))
        return
    say(f"{found.files} files of {found.manifests} manifests, {found.size:,} bytes: all checksums and chains are right")
    if kind is not None:
        say(f"replayed to index {facts['applied_index']}: {facts['digests']} reported digests are right")


@app.command()
@connecting
def status(
    cluster: ClusterOptions,
    source: Place,
    max_lag: Annotated[
        float, typer.Option("--max-lag", metavar="SECONDS", min=0.0, help="Exit with 1 if it lags for longer.")
    ] = MAX_LAG_S,
    store_option: StoreOptions = None,
    as_json: Json = False,
    timeout: Timeout = 5.0,
) -> None:
    """Show the newest manifest, and how far the backup lags behind the cluster."""
    from ..backup.contents import read_all, shown_time
    from ..client.documents import cluster_clock

    with failing():
        last = read_all(store_of(source, store_option), complain)[-1]
    if last.fullness:
        complain(last.fullness)
    now, missing = ask(cluster, timeout, lambda client: _now(client, last.end.index))
    if (now["cluster_id"], now["history"]) != (last.cluster_id, last.history):
        complain(f"{source} is the backup of another cluster or history ({last.history}) than {now['history']}")
        raise typer.Exit(Exit.FAILED)
    records = max(0, now["commit_index"] - last.end.index)
    since = last.time if missing is None else missing
    seconds = (cluster_clock(now) - since) / MICROSECONDS if records else 0.0
    is_known, shown = seconds >= -MAX_SKEW_S, max(0.0, seconds)
    if as_json:
        say(to_json(_row(last) | {"lag_records": records, "lag_seconds": round(shown, 1) if is_known else None}))
    else:
        say(f"manifest   {last.number} of {shown_time(last.time)}, from {last.node}")
        say(f"records    [{last.base}, {last.end.index})")
        say(f"lag        {records} records, " + (f"{shown:.0f} s" if is_known else "for an unknown time"))
    if not is_known:
        since_when = f"it lags since {shown_time(since)}, and the cluster's clock is {-seconds:.0f} s behind that"
        complain(f"for how long the backup lags is unknown: {since_when}; set the nodes' clocks right (NTP)")
        raise typer.Exit(Exit.FAILED)
    if seconds > max_lag:
        complain(f"the backup lags by more than {max_lag:.0f} s; see the output of `quire backup`")
        raise typer.Exit(Exit.FAILED)


async def _now(client: "Client", end: int) -> "tuple[Status, int | None]":
    """The leader's status, and the time of the first record that a backup with this end lacks; None if unknown."""
    from contextlib import aclosing

    status = await client.status()
    if status["commit_index"] > end >= status["lowest_index"]:
        async with aclosing(client.pages.history(end, end + 1)) as pages:
            async for page in pages:
                return status, page[0].timestamp
    return status, None


def store_of(place: str, options: list[str] | None) -> "Store":
    """The store of a backup. If an option is no KEY=VALUE, print why and exit. Raises StoreRefused."""
    from ..backup.object_store import open_store

    pairs = [option.partition("=") for option in options or []]
    if wrong := [name for name, equals, _ in pairs if not equals or not name]:
        fail_usage(f"--store-option {wrong[0]!r}: write it as KEY=VALUE")
    return open_store(place, {name: value for name, _, value in pairs})


@contextmanager
def failing() -> Generator[None]:
    """Print why a command failed, and exit."""
    from quire.log import LogError
    from quire.sm import MachineError

    from ..client import ClientError

    try:
        with interruptible():
            yield
    except ClientError as error:
        raise typer.Exit(exit_of(error)) from None
    except (ClusterError, LogError, MachineError) as error:
        complain(str(error))
        raise typer.Exit(Exit.FAILED) from None
    except KeyboardInterrupt:
        complain("interrupted")
        raise typer.Exit(Exit.INTERRUPTED) from None
