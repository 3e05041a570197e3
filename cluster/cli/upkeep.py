"""`quire snapshot` and `quire expire`: asked of every node that the named servers know of, or of one."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ..client import Client, ClientError, connect
from .asking import exit_of
from .exits import Exit, complain
from .output import to_json

Asked = Callable[[Client, str], Awaitable[dict[str, Any]]]


class Told(NamedTuple):
    """What a node answered, or why it did not."""

    address: str
    document: dict[str, Any] | None
    failure: str = ""


def show_snapshots(servers: str, node: str | None, *, as_json: bool, timeout_s: float) -> int:
    """Let each node take a snapshot; print where it stands; return the exit code."""

    async def ask(client: Client, address: str) -> dict[str, Any]:
        return await client.take_snapshot(address)

    return _show(servers, node, ask, ("index", "bytes", "sha256"), as_json=as_json, timeout_s=timeout_s)


def show_expiry(servers: str, node: str | None, *, dry_run: bool, as_json: bool, timeout_s: float) -> int:
    """Let each node remove what may go of its log, or say what that is; return the exit code.

    With `dry_run` each row says, too, what is held and by what.
    """

    async def ask(client: Client, address: str) -> dict[str, Any]:
        told = await client.expire(address, dry_run=dry_run)
        if dry_run:
            expiry = (await client.status(address))["expiry"]
            told |= {"held_bytes": expiry["held"]["bytes"], "held_by": expiry["holds"][0]["why"]}
        return told

    shown = ("segments", "to_index", "bytes", *(("held_bytes", "held_by") if dry_run else ()))
    return _show(servers, node, ask, shown, as_json=as_json, timeout_s=timeout_s)


def _show(
    servers: str, node: str | None, ask: Asked, shown: tuple[str, ...], *, as_json: bool, timeout_s: float
) -> int:
    try:
        told = asyncio.run(_ask_all(servers, node, ask, timeout_s))
    except ClientError as error:
        return exit_of(error)
    if as_json:
        print(to_json({node_id: row._asdict() for node_id, row in told.items()}))
    else:
        Console().print(_table(told, shown))
    for node_id, row in told.items():
        if row.failure:
            complain(f"{node_id}: {row.failure}")
    return Exit.FAILED if any(row.failure for row in told.values()) else Exit.DONE


async def _ask_all(servers: str, node: str | None, ask: Asked, timeout_s: float) -> dict[str, Told]:
    async with connect(servers, timeout_s=timeout_s) as client:
        status = await client.status()
        addresses = {member["node_id"]: member["address"] for member in status.get("members", ())}
        if node is not None and node not in addresses:
            raise ClientError(f"{node} is not one of the members ({', '.join(addresses)})")

        async def told(address: str) -> Told:
            try:
                return Told(address, await ask(client, address))
            except ClientError as error:
                return Told(address, None, str(error))

        asked = {node_id: address for node_id, address in addresses.items() if node in (None, node_id)}
        rows = await asyncio.gather(*map(told, asked.values()))
        return dict(zip(asked, rows, strict=True))


def _table(told: dict[str, Told], shown: tuple[str, ...]) -> Table:
    table = Table("node", *shown, box=SIMPLE_HEAD)
    for node_id, row in told.items():
        cells = [_cell((row.document or {}).get(name, "")) for name in shown]
        table.add_row(node_id, *cells)
    return table


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
