"""`quire cursor`: the positions of consumers, as an operator shows and sets them."""

from typing import TYPE_CHECKING, Annotated

import typer

from ..calls.consume import MAX_NUMBER, MAX_SHARDS, HoldBytes, refuse_share_name
from ..connection import DEFAULT_TIMEOUT_S, ClusterOptions, Json, Timeout, ask, connecting, fail_usage
from ..group import Group
from ..output import say, to_json

if TYPE_CHECKING:
    from ...client import Client, CursorRow

cursor_app = typer.Typer(
    name="cursor", cls=Group, help="Show, set and delete the positions of consumers.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The cursor's name; a share's is as mail/2-4.")]


@cursor_app.command("list")
@connecting
def list_cursors(
    cluster: ClusterOptions,
    prefix: Annotated[
        str, typer.Option("--prefix", metavar="TEXT", help="Only cursors whose names start with this.")
    ] = "",
    as_json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List the cursors by name: index, how far their consumers are behind, owner, and how much of the log they hold."""

    async def listed(client: "Client") -> "list[CursorRow]":
        return [row async for row in client.cursors.all(prefix)]

    for row in ask(cluster, timeout, listed):
        _show(row, as_json=as_json)


@cursor_app.command("show")
@connecting
def show_cursor(
    cluster: ClusterOptions, name: Name, as_json: Json = False, timeout: Timeout = DEFAULT_TIMEOUT_S
) -> None:
    """Print a cursor's index, how far its consumer is behind, its owner, and how much of the log it holds."""
    _refuse_empty(name)
    _show(ask(cluster, timeout, lambda client: client.cursors.get(name)), as_json=as_json)


@cursor_app.command("set")
@connecting
def set_cursor(
    cluster: ClusterOptions,
    name: Name,
    index: Annotated[
        int | None,
        typer.Argument(
            metavar="INDEX",
            min=0,
            max=MAX_NUMBER,
            help="Where its consumer is to continue; with --owner, left out: there.",
        ),
    ] = None,
    rewind: Annotated[bool, typer.Option("--rewind", help="Let it go back.")] = False,
    hold_bytes: HoldBytes = None,
    owner: Annotated[
        str | None,
        typer.Option("--owner", metavar="OWNER", help="Give it to the token of this name; empty: to none. For admins."),
    ] = None,
    as_json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Set a cursor, or create it; give it to another owner. Its consumer, if one runs, ends; run it again.

    It is refused if the cursor moves meanwhile.
    """
    _refuse_empty(name)
    if index is None and owner is None:
        fail_usage("INDEX is missing; it may be left out with --owner")

    async def place(client: "Client") -> int:
        from ...client import NotFound

        try:
            expected = (await client.cursors.get(name))["index"]
        except NotFound:  # If there are no cursors here at all, the call says so.
            if index is None:
                raise
            return await client.cursors.set(name, index, rewind=rewind, hold_bytes=hold_bytes, owner=owner)
        wanted = expected if index is None else index
        return await client.cursors.set(
            name, wanted, expected=expected, rewind=rewind, hold_bytes=hold_bytes, owner=owner
        )

    placed = ask(cluster, timeout, place, writes=True)
    say(to_json({"name": name, "index": placed}) if as_json else f"{name} is at {placed}")


@cursor_app.command("delete")
@connecting
def delete_cursor(
    cluster: ClusterOptions, name: Name, as_json: Json = False, timeout: Timeout = DEFAULT_TIMEOUT_S
) -> None:
    """Delete a cursor. Its consumer, if one runs, ends; if it is run again, it begins anew."""
    _refuse_empty(name)
    index = ask(cluster, timeout, lambda client: client.cursors.delete(name), writes=True)
    say(to_json({"name": name, "index": index}) if as_json else f"{name} is deleted; it was at {index}")


@cursor_app.command("reshard")
@connecting
def reshard(
    cluster: ClusterOptions,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The consumer's name, without a share.")],
    shards: Annotated[
        int, typer.Argument(metavar="SHARDS", min=1, max=MAX_SHARDS, help="How many workers share it now.")
    ],
    new_shards: Annotated[
        int, typer.Argument(metavar="NEW", min=1, max=MAX_SHARDS, help="How many are to share it from now on.")
    ],
    as_json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Replace the cursors of a consumer's workers by those of another number of workers.

    Stop all workers before. It is refused unless they are level; then it says which one is to read up to where. If it
    was interrupted, run it again.
    """
    refuse_share_name(name)
    if shards == new_shards:
        fail_usage(f"{name} has {shards} shares already; SHARDS and NEW are to differ")
    level = ask(cluster, timeout, lambda client: client.cursors.reshard(name, shards, new_shards), writes=True)
    shares = f"{new_shards} share{'' if new_shards == 1 else 's'}, at {level}"
    say(to_json({"name": name, "shards": new_shards, "index": level}) if as_json else f"{name} has {shares}")


def _refuse_empty(name: str) -> None:
    if not name:
        fail_usage("the name is empty")


def _show(row: "CursorRow", *, as_json: bool) -> None:
    if as_json:
        say(to_json(row))
        return
    lag = row["lag"]
    behind = f"{lag['records']:,} records, {lag['seconds']:.1f} s behind" if lag["records"] else "level"
    consumer = "taken" if row["taken"] else "no consumer"
    owner = "no owner" if row["owner"] is None else f"owner {row['owner']}"
    holds = f"holds {row['hold_bytes']:,} bytes" if row["hold_bytes"] else "no hold"
    lost = [f"up to {row['lost']:,} records lost"] if row["lost"] else []
    say(row["name"], f"index {row['index']}", behind, consumer, owner, holds, *lost)
