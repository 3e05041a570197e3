"""`quire status` and `quire status --watch`: the status of every node, side by side."""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Literal, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.live import Live
from rich.table import Table

from quire.log import Value

from ..client import Client, ClientError, Status, Unavailable
from ..terminal import escaped
from .connection import ClusterOptions, exit_of
from .console import EscapingConsole
from .output import Exit, complain, printable, say, to_json

SHOWN = ("role", "epoch", "highest_index", "durable_index", "commit_index", "applied_index", "lag", "apply_lag")

ANSWER_CHARACTERS = 200  # Of a state in the table; a whole state may take megabytes.

Rows = dict[str, "NodeRow"]


class NodeRow(NamedTuple):
    """A node's status and, if requested, its local state; or why it did not answer."""

    address: str
    status: Status | None
    answer: Value = None
    failure: str = ""


async def ask_nodes(client: Client, addresses: dict[str, str], *, states: bool) -> Rows:
    """A row for each node, by id, with its state if requested. The nodes are asked concurrently."""

    async def ask(address: str) -> NodeRow:
        if not states:
            try:
                return NodeRow(address, await client.status(address))
            except ClientError as error:
                return NodeRow(address, None, failure=str(error))
        # The status comes last, so that its durable_index covers what the state has applied.
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
        # The status may be newer than the state; these two must match the state.
        status["applied_index"], status["digest"] = state.applied_index, state.digest
        return NodeRow(address, status, state.state)

    rows = await asyncio.gather(*map(ask, addresses.values()))
    return dict(zip(addresses, rows, strict=True))


def node_table(rows: Rows) -> Table:
    """A table with a column for each node, so that three fit into 80 characters."""
    table = Table("", *map(escaped, rows), box=SIMPLE_HEAD)
    for column in table.columns[1:]:
        column.overflow = "fold"
        column.justify = "right"
    table.add_row("address", *(escaped(row.address) for row in rows.values()))
    for name in SHOWN:
        table.add_row(name, *(_shown(row, name) for row in rows.values()))
    table.add_row("log_bytes", *(_shown(row, "log_bytes") for row in rows.values()))
    table.add_row("snapshot", *(_newest_snapshot(row) for row in rows.values()))
    if any(_held(row) for row in rows.values()):
        table.add_row("held", *(_held(row) for row in rows.values()))
    if any(row.failure or row.answer is not None for row in rows.values()):
        table.add_row("answer", *(map(_answer, rows.values())))
    table.add_row("digest", *(_shown(row, "digest") for row in rows.values()))
    if any(_problems(row) for row in rows.values()):
        table.add_row("problems", *(_problems(row) for row in rows.values()))
    if differing := _differing(rows):
        table.add_row("differs", *(differing.get(node_id, "") for node_id in rows))
    return table


def _answer(row: NodeRow) -> str:
    """The machine's answer, or why there is none, unless that is among the problems."""
    if row.failure:
        is_said = any(reason in row.failure for reason in _texts(row, "reasons"))
        return "none, see problems" if is_said else escaped(row.failure)
    return _short(printable(row.answer))


def _problems(row: NodeRow) -> str:
    """Why a node is not ready, and its alarms: each once, on a line of its own, with what to do."""
    return "\n".join(map(escaped, dict.fromkeys([*_texts(row, "reasons"), *_texts(row, "alarms")])))


def _texts(row: NodeRow, name: Literal["reasons", "alarms"]) -> Sequence[str]:
    return () if row.status is None else row.status.get(name, ())


def _differing(rows: Rows) -> dict[str, str]:
    """The nodes whose digest the leader found to differ from its own, and at which index."""
    found: dict[str, str] = {}
    for row in rows.values():
        nodes = {} if row.status is None else row.status.get("nodes", {})
        for node_id, seen in nodes.items():
            if difference := seen.get("differs"):
                found[node_id] = f"from the leader, at {difference['index']:,}"
    return found


def show_status(cluster: ClusterOptions, *, as_json: bool, timeout_s: float, states: bool) -> Exit:
    """Print the status of all nodes that the servers know; return the exit code."""
    try:
        rows = asyncio.run(all_nodes(cluster, timeout_s, states=states))
    except Unavailable as error:
        complain(f"{error}; check --server, or start the nodes")
        return Exit.UNAVAILABLE
    except ClientError as error:
        return exit_of(error)
    if as_json:
        say(to_json({node_id: row._asdict() for node_id, row in rows.items()}))
    else:
        EscapingConsole().print(node_table(rows))
    return Exit.DONE


async def watch_status(
    cluster: ClusterOptions, interval_s: float, *, as_json: bool, timeout_s: float, states: bool
) -> None:
    """Print the status of all nodes at every interval; on a terminal, each replaces the previous one."""
    console = EscapingConsole()
    in_place = console.is_terminal and not as_json
    with Live(console=console, auto_refresh=False) if in_place else nullcontext() as live:
        while True:
            rows = await _rows_or_none(cluster, timeout_s, states=states)
            if rows is None:
                pass  # Reported on stderr. The nodes may come back.
            elif as_json:
                say(to_json({node_id: row._asdict() for node_id, row in rows.items()}))
            elif live is not None:
                live.update(node_table(rows), refresh=True)
            else:
                console.print(node_table(rows))
                sys.stdout.flush()
            await asyncio.sleep(interval_s)


async def _rows_or_none(cluster: ClusterOptions, timeout_s: float, *, states: bool) -> Rows | None:
    try:
        return await all_nodes(cluster, timeout_s, states=states)
    except ClientError as error:
        complain(str(error))
        return None


async def all_nodes(cluster: ClusterOptions, timeout_s: float, *, states: bool = False) -> Rows:
    """A row for each node that the servers know of, as `ask_nodes`. Raises Unavailable if no server answers."""
    async with cluster.connect(timeout_s) as client:
        status = await client.status()
        members = {member["node_id"]: member["address"] for member in status.get("members", ())}
        addresses = members or {status["node_id"]: cluster.servers.partition(",")[0]}
        return await ask_nodes(client, addresses, states=states)


def _newest_snapshot(row: NodeRow) -> str:
    """Its index and the start of its sha256, which is equal on all nodes that have a snapshot at that index."""
    snapshots = None if row.status is None else row.status.get("snapshots")
    kept = snapshots["kept"] if snapshots else ()
    return f"{kept[-1]['index']:,}\n{escaped(kept[-1]['sha256'][:8])}" if kept else ""


def _held(row: NodeRow) -> str:
    """What has expired but is held, and why."""
    expiry = None if row.status is None else row.status.get("expiry")
    if not expiry or not expiry["held"]["segments"]:
        return ""
    return f"{expiry['held']['bytes']:,} bytes: {escaped(expiry['holds'][0]['why'])}"


def _short(answer: str) -> str:
    return answer if len(answer) <= ANSWER_CHARACTERS else answer[: ANSWER_CHARACTERS - 3] + "..."


def _shown(row: NodeRow, name: str) -> str:
    if row.status is None:
        return "no answer" if name == "role" else ""
    value = row.status.get(name)
    if isinstance(value, dict):  # Only the lags are maps.
        size = f"{value['bytes']:,} bytes\n" if "bytes" in value else ""
        return f"{value['records']:,} records\n{size}{value['seconds']:.2f} s"
    return f"{value:,}" if isinstance(value, int) else escaped(str(value or ""))
