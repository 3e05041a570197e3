"""`quire members`: who belongs to the cluster, and changes of it; `quire drain` and `undrain`."""

import shlex
import time
from typing import TYPE_CHECKING, Annotated

import typer

from ...terminal import escaped
from ..connection import DEFAULT_TIMEOUT_S, ClusterOptions, Json, Timeout, ask, connecting, fail_usage
from ..group import Group
from ..output import Exit, complain, say, to_json

if TYPE_CHECKING:
    from rich.table import Table

    from ...client import Client, Members

members_app = typer.Typer(name="members", cls=Group, help="Show the members; add, remove, promote, demote or move one.")
drain_app = typer.Typer()

DISK_CHARACTERS = 8
"""How much of a disk's id the table shows: enough to tell a node's old disk from its new one."""
LOOK_S = 0.2

Nodes = Annotated[list[str], typer.Argument(metavar="ID=HOST:PORT", help="A node's id and its address.")]
NodeId = Annotated[str, typer.Argument(metavar="ID", help="The node.")]


@members_app.callback(invoke_without_command=True)
@connecting
def members(
    cluster: ClusterOptions, context: typer.Context, as_json: Json = False, timeout: Timeout = DEFAULT_TIMEOUT_S
) -> None:
    """Show the members in the log and the other connected nodes, as the leader knows them."""
    if context.invoked_subcommand is not None:
        return
    document = ask(cluster, timeout, lambda client: client.members())
    if as_json:
        say(to_json(document))
        return
    from ..console import EscapingConsole

    EscapingConsole().print(_member_table(document))
    for line in _remarks(document):
        say(line)


def _member_table(document: "Members") -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table("node", "role", box=SIMPLE_HEAD)
    table.add_column("address", no_wrap=True, overflow="fold")  # Never cut: it is copied from here.
    for name in ("heard", "lag", "version", "disk"):
        table.add_column(name)
    for row in document["members"]:
        lag = row["lag"]
        marks = " (leads)" if row["node_id"] == document["leader"] else ""
        cells = (
            row["node_id"] + marks + (" (drained)" if row["drained"] else ""),
            row["role"],
            row["address"],
            "yes" if row["heard"] else "no",
            "" if lag is None else f"{lag['records']:,} records",
            row["version"] or "no answer",
            row["disk_id"][:DISK_CHARACTERS] if row["disk_id"].strip("0") else "none yet",
        )
        table.add_row(*map(escaped, cells))
    return table


def _remarks(document: "Members") -> list[str]:
    """What is under way, and how many voters may fail."""
    voters = sum(row["role"] == "voter" for row in document["members"])
    remarks = [f"{document['may_fail']} of {voters} voters may fail now"]
    if document["change"]:
        remarks.append(f"the change of members at index {document['members_index']:,} is not committed yet")
    remarks += [f"{row['node_id']} joins: {row['waits_for']}" for row in document["members"] if row["waits_for"]]
    return remarks


def _addresses(nodes: list[str]) -> dict[str, str]:
    """HOST:PORT by node id. Ends the command if one is not ID=HOST:PORT."""
    found: dict[str, str] = {}
    for node in nodes:
        node_id, equals, address = node.partition("=")
        if not equals or not node_id or not address or node_id in found:
            fail_usage(f"{node} is not ID=HOST:PORT, or names a node twice; write it as in n4=10.0.0.4:7001")
        found[node_id] = address
    return found


@members_app.command()
@connecting
def add(
    cluster: ClusterOptions,
    nodes: Nodes,
    observer: Annotated[
        bool, typer.Option("--observer", help="They only replicate. Default: they become voters once all are level.")
    ] = False,
    as_json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Add nodes, each with an empty data_dir. Prints how to start them, and what every unit should say from now on."""
    addresses = _addresses(nodes)

    async def added(client: "Client") -> "tuple[list[int], Members]":
        return await client.membership.add(addresses, observers=observer), await client.members()

    changes, document = ask(cluster, timeout, added)
    if as_json:
        say(to_json({"members": addresses, "changes": changes}))
        return
    if not changes:
        say(f"{', '.join(addresses)}: already {'members' if len(addresses) > 1 else 'a member'}; nothing was changed")
        return
    what = f"added by the members record at {changes[0]:,}"
    known = {row["node_id"]: row["address"] for row in document["members"]}
    if len(known) == 1:
        say(f"{', '.join(addresses)}: {what}")
        return
    say(f"{', '.join(addresses)}: {what}. Start each new one with an empty data_dir; every unit has --join now:")
    for node_id, address in known.items():
        others = ",".join(other for name, other in known.items() if name != node_id and name not in addresses)
        others = others or next(other for name, other in known.items() if name != node_id)
        flags = ["--node", node_id, "--listen", address, "--data-dir", "...", "--join", others]
        say(f"    quire serve {shlex.join(flags)}")


@members_app.command()
@connecting
def remove(
    cluster: ClusterOptions,
    nodes: Annotated[list[str], typer.Argument(metavar="ID", help="The nodes to remove.")],
    as_json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Remove nodes, one after another. Each stops once it knows; its data_dir cannot come back."""

    async def removed(client: "Client") -> dict[str, list[int]]:
        return {node_id: await client.membership.remove(node_id) for node_id in nodes}

    _show_changes(ask(cluster, timeout, removed), "removed", "already removed", as_json=as_json)


@members_app.command()
@connecting
def promote(cluster: ClusterOptions, node: NodeId, as_json: Json = False, timeout: Timeout = DEFAULT_TIMEOUT_S) -> None:
    """Make a node a voter, with the disk that it has now. Prints the indices of the members records.

    If the node came back with an empty disk, its old disk loses its vote before the new disk gains one: two records.
    Waits until the node has caught up. If interrupted, run it again.
    """
    changes = ask(cluster, timeout, lambda client: client.membership.promote(node))
    _show_changes({node: changes}, "a voter", "already a voter", as_json=as_json)


@members_app.command()
@connecting
def demote(cluster: ClusterOptions, node: NodeId, as_json: Json = False, timeout: Timeout = DEFAULT_TIMEOUT_S) -> None:
    """Make a voter an observer: it replicates, and does not count."""
    changes = ask(cluster, timeout, lambda client: client.membership.demote(node))
    _show_changes({node: changes}, "an observer", "already an observer", as_json=as_json)


@members_app.command()
@connecting
def move(
    cluster: ClusterOptions,
    node: Annotated[str, typer.Argument(metavar="ID=HOST:PORT", help="The member, and its new address.")],
    as_json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Give a member another address. Restart the node there; the others find it without a restart."""
    ((node_id, address),) = _addresses([node]).items()
    changes = ask(cluster, timeout, lambda client: client.membership.move(node_id, address))
    _show_changes({node_id: changes}, f"at {address}", f"already at {address}", as_json=as_json)


def _show_changes(changes: dict[str, list[int]], done: str, was: str, *, as_json: bool) -> None:
    if as_json:
        for node_id, indices in changes.items():
            say(to_json({"node_id": node_id, "changes": indices}))
        return
    for node_id, indices in changes.items():
        where = " and ".join(f"{index:,}" for index in indices)
        say(
            f"{node_id} is {done}, by the members record{'s' * (len(indices) > 1)} at {where}"
            if indices
            else f"{node_id} is {was}"
        )


@drain_app.command()
@connecting
def drain(cluster: ClusterOptions, node: NodeId, timeout: Timeout = DEFAULT_TIMEOUT_S) -> None:
    """Have a node hand over, and wait until the cluster can do without it. It stays a member, and votes."""
    if (lacking := ask(cluster, timeout, lambda client: drained(client, node, timeout))) is not None:
        complain(f"{node} is drained, but must not be stopped yet: {lacking}")
        raise typer.Exit(Exit.UNAVAILABLE)
    say(f"{node} is drained: the others go on without it. A restart or `quire undrain {node}` ends it")


@drain_app.command()
@connecting
def undrain(cluster: ClusterOptions, node: NodeId, timeout: Timeout = DEFAULT_TIMEOUT_S) -> None:
    """Let a drained node lead again."""
    ask(cluster, timeout, lambda client: client.membership.drain(node, drained=False))
    say(f"{node} may lead again")


async def drained(client: "Client", node_id: str, timeout_s: float) -> str | None:
    """Drain a node; return what still speaks against stopping it when the time is up, None once nothing does."""
    import asyncio

    await client.membership.drain(node_id)
    until = time.monotonic() + timeout_s
    while True:
        lacking = needed_for(await client.members(), node_id)
        if lacking is None or time.monotonic() >= until:
            return lacking
        await asyncio.sleep(LOOK_S)


def needed_for(document: "Members", node_id: str) -> str | None:
    """What the cluster still needs a node for; None if it can do without it."""
    rows = document["members"]
    if [row["node_id"] for row in rows if row["role"] == "voter"] == [node_id]:
        return "it is the only voter"
    if document["leader"] == node_id:
        return "it still leads"
    for row in rows:
        if row["node_id"] == node_id or row["role"] != "voter":
            continue
        if not row["heard"]:
            return f"{row['node_id']} is not heard"
        if row["lag"] is None or row["lag"]["records"] > LEVEL_RECORDS:
            return f"{row['node_id']} is not level"
    return None


LEVEL_RECORDS = 10_000
"""A voter that lacks fewer is level: under load, some are always on their way."""
