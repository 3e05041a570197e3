"""`quire status`: what every node says of itself, side by side."""

import asyncio
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ..client import Client, ClientError, Unavailable, connect
from .exits import Exit, complain
from .output import printable, to_json

SHOWN = ("role", "epoch", "highest_index", "durable_index", "commit_index", "applied_index", "lag")

ANSWER_CHARACTERS = 200  # Of a state in the table: a machine's whole state may have megabytes.

Rows = dict[str, "NodeRow"]


class NodeRow(NamedTuple):
    """One node as it answered: its status, and the local state that goes with it; or why it did not."""

    address: str
    status: dict[str, Any] | None
    answer: Any = None
    failure: str = ""


async def ask_nodes(client: Client, addresses: dict[str, str]) -> Rows:
    """A row for each node, by id, asked at the same time."""

    async def ask(address: str) -> NodeRow:
        # The status last: what it says is durable covers what the state says is applied.
        state, failure = None, ""
        try:
            state = await client.state("local", server=address)
        except ClientError as error:
            failure = str(error)
        try:
            status = await client.status(address)
        except ClientError as error:
            return NodeRow(address, None, failure=str(error))
        if state is None:
            return NodeRow(address, status, failure=failure)
        # The status may be newer than the state, and these three belong together.
        status |= {"applied_index": state.applied_index, "digest": state.digest}
        return NodeRow(address, status, state.state)

    rows = await asyncio.gather(*map(ask, addresses.values()))
    return dict(zip(addresses, rows, strict=True))


def node_table(rows: Rows) -> Table:
    """A column for each node, so that three fit a terminal of 80: role, indices, lag, answer, digest."""
    table = Table("", *rows, box=SIMPLE_HEAD)
    for column in table.columns[1:]:
        column.overflow = "fold"
        column.justify = "right"
    table.add_row("address", *(row.address for row in rows.values()))
    for name in SHOWN:
        table.add_row(name, *(_shown(row, name) for row in rows.values()))
    table.add_row("log_bytes", *(_shown(row, "log_bytes") for row in rows.values()))
    table.add_row("snapshot", *(_newest_snapshot(row) for row in rows.values()))
    if any(_held(row) for row in rows.values()):
        table.add_row("held", *(_held(row) for row in rows.values()))
    table.add_row("answer", *(row.failure or _short(printable(row.answer)) for row in rows.values()))
    table.add_row("digest", *(_shown(row, "digest") for row in rows.values()))
    if differing := _differing(rows):
        table.add_row("differs", *(differing.get(node_id, "") for node_id in rows))
    return table


def _differing(rows: Rows) -> dict[str, str]:
    """Whose digest a leader found to differ from its own, by node id, and where."""
    told: dict[str, str] = {}
    for row in rows.values():
        for node_id, seen in ((row.status or {}).get("nodes") or {}).items():
            if seen.get("differs"):
                told[node_id] = f"from the leader, at {seen['differs']['index']:,}"
    return told


def show_status(servers: str, *, as_json: bool, timeout_s: float) -> int:
    """Ask all nodes that the named servers know of; print them; return the exit code."""
    try:
        rows = asyncio.run(all_nodes(servers, timeout_s))
    except Unavailable as error:
        complain(f"{error}; check --server, or start the nodes")
        return Exit.UNAVAILABLE
    if as_json:
        print(to_json({node_id: row._asdict() for node_id, row in rows.items()}))
    else:
        Console().print(node_table(rows))
    return Exit.DONE


async def all_nodes(servers: str, timeout_s: float) -> Rows:
    """A row for each node that the named servers know of. Raises Unavailable where none of those answers."""
    async with connect(servers, timeout_s=timeout_s) as client:
        status = await client.status()
        members = {member["node_id"]: member["address"] for member in status.get("members", ())}
        return await ask_nodes(client, members or {status["node_id"]: servers.partition(",")[0]})


def _newest_snapshot(row: NodeRow) -> str:
    """Where it stands, and the begin of its sha256: equal on nodes that have one at the same index."""
    kept = (row.status or {}).get("snapshots", {}).get("kept", ())
    return f"{kept[-1]['index']:,}\n{kept[-1]['sha256'][:8]}" if kept else ""


def _held(row: NodeRow) -> str:
    """What would expire and does not, and why."""
    expiry = (row.status or {}).get("expiry")
    if not expiry or not expiry["held"]["segments"]:
        return ""
    return f"{expiry['held']['bytes']:,} bytes: {expiry['holds'][0]['why']}"


def _short(answer: str) -> str:
    return answer if len(answer) <= ANSWER_CHARACTERS else answer[: ANSWER_CHARACTERS - 3] + "..."


def _shown(row: NodeRow, name: str) -> str:
    if row.status is None:
        return "no answer" if name == "role" else ""
    value = row.status.get(name)
    if isinstance(value, dict):  # Lag is the one with parts.
        return f"{value['records']:,} records\n{value['bytes']:,} bytes\n{value['seconds']:.2f} s"
    return f"{value:,}" if isinstance(value, int) else str(value or "")
