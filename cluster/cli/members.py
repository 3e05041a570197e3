"""`quire members`: who counts, as the leader has it; `quire members promote`: a node becomes a voter."""

from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .asking import DEFAULT_TIMEOUT_S, Json, Server, Timeout, ask
from .output import to_json

members_app = typer.Typer(name="members", help="Who counts, and who replicates beside them.")

DISK_CHARACTERS = 8
"""Of a disk's id in the table: enough to tell a node's old disk from its new one."""


@members_app.callback(invoke_without_command=True)
def show_members(
    context: typer.Context, server: Server = "", as_json: Json = False, timeout: Timeout = DEFAULT_TIMEOUT_S
) -> None:
    """Print the members that the log names, and the other nodes that are connected, as the leader knows them."""
    if context.invoked_subcommand is not None:
        return
    document = ask(server, timeout, lambda client: client.members())
    if as_json:
        typer.echo(to_json(document))
    else:
        Console().print(_table(document))


@members_app.command("promote")
def promote(
    node: Annotated[str, typer.Argument(help="The node that shall count, with the disk that it has now.")],
    server: Server = "",
    as_json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Make a node a voter, and print where the log says so.

    Of one that came back with an empty disk the old disk's vote is removed first, then the new disk is added: two
    changes. Interrupted between them, say it again. It waits for a node that has not caught up.
    """
    changes = ask(server, timeout, lambda client: client.promote(node))
    if as_json:
        typer.echo(to_json({"node_id": node, "changes": changes}))
    else:
        where = " and ".join(f"{index:,}" for index in changes)
        typer.echo(f"{node} is a voter" + (f", by the records at {where}" if changes else " already"))


def _table(document: dict[str, Any]) -> Table:
    table = Table("node", "disk", "address", "role", "heard", "lag", box=SIMPLE_HEAD)
    for row in document["members"]:
        lag = row["lag"]
        table.add_row(
            row["node_id"] + (" (leads)" if row["node_id"] == document["leader"] else ""),
            row["disk_id"][:DISK_CHARACTERS],
            row["address"],
            row["role"],
            "yes" if row["heard"] else "no",
            "" if lag is None else f"{lag['records']:,} records, {lag['bytes']:,} bytes",
        )
    return table
