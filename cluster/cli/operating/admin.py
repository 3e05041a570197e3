"""Administration of a cluster: `quire transfer`, `snapshot`, `expire`, `session` and `admin`."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, NamedTuple

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from ...client import Client, ClientError, NotFound, SessionClosed, SessionRow
from ...terminal import escaped
from ..connection import DEFAULT_TIMEOUT_S, ClusterOptions, Json, Timeout, ask, connecting, exit_of, fail_usage
from ..console import EscapingConsole
from ..output import Exit, complain, printable, say, to_json

admin_app = typer.Typer()
code_app = typer.Typer(name="admin", help="Accept changed code of the machine.", no_args_is_help=True)
session_app = typer.Typer(name="session", help="Open, show and close sessions.", no_args_is_help=True)

OneNode = Annotated[str | None, typer.Option("--node", metavar="ID", help="Only this node. Default: every member.")]
SessionId = Annotated[
    int, typer.Argument(metavar="ID", min=1, help="The session's id, from POST /sessions or `quire session open`.")
]

CODE_CHARACTERS = 12
"""How much of a fingerprint the table shows, as the alarms do."""

CLOSED_AT_ONCE = 1_000
Prefix = Annotated[str, typer.Option("--prefix", metavar="TEXT", help="Only sessions whose names start with this.")]
IdleS = Annotated[
    float, typer.Option("--idle", metavar="SECONDS", min=0.0, help="Only sessions that have been idle for this long.")
]

# What to ask of one node; the answer is a row of a table.
NodeCall = Callable[[Client, str], Awaitable[Mapping[str, object]]]


class NodeAnswer(NamedTuple):
    """What a node answered, or why it did not."""

    address: str
    document: Mapping[str, object] | None
    failure: str = ""


@admin_app.command()
@connecting
def transfer(
    cluster: ClusterOptions,
    target: Annotated[
        str | None, typer.Argument(help="The node that is to lead. Default: the most up-to-date follower.")
    ] = None,
    as_json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Move leadership to another node. Loses no write."""
    leader = ask(cluster, timeout, lambda client: client.transfer(target))
    say(f'{{"leader": {to_json(leader)}}}' if as_json else f"{printable(leader)} leads")


@admin_app.command()
@connecting
def snapshot(
    cluster: ClusterOptions, node: OneNode = None, as_json: Json = False, timeout: Timeout = DEFAULT_TIMEOUT_S
) -> None:
    """Take a snapshot on every node. Prints its index, size and checksum."""

    async def take(client: Client, address: str) -> Mapping[str, object]:
        return await client.take_snapshot(address)

    raise typer.Exit(_show_each(cluster, node, take, ("index", "bytes", "sha256"), as_json=as_json, timeout_s=timeout))


@admin_app.command()
@connecting
def expire(
    cluster: ClusterOptions,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Delete nothing. Show what would be deleted, what is held, and why.")
    ] = False,
    node: OneNode = None,
    as_json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Delete expired log segments on every node now. Nodes also do this by themselves every second."""

    async def expire_one(client: Client, address: str) -> Mapping[str, object]:
        row = await client.expire(address, dry_run=dry_run)
        if not dry_run:
            return row
        expiry = (await client.status(address))["expiry"]
        return {**row, "held_bytes": expiry["held"]["bytes"], "held_by": expiry["holds"][0]["why"]}

    columns = ("segments", "to_index", "bytes", *(("held_bytes", "held_by") if dry_run else ()))
    raise typer.Exit(_show_each(cluster, node, expire_one, columns, as_json=as_json, timeout_s=timeout))


@code_app.callback()
def code_command() -> None:
    """Keep `accept-code` a subcommand: typer would merge a group that has only one command into the group itself."""


@code_app.command("accept-code")
@connecting
def accept_code(
    cluster: ClusterOptions, node: OneNode = None, as_json: Json = False, timeout: Timeout = DEFAULT_TIMEOUT_S
) -> None:
    """Accept, on every node, the machine's code that the members now run. Do this only if its results are the same.

    Clears the alarms about changed code and about members that run different code. Prints the fingerprints. Repeat it
    for nodes that did not answer.
    """

    async def accept(client: Client, address: str) -> Mapping[str, object]:
        row = await client.code.accept(address)
        if as_json:
            return row
        accepted = ", ".join(code[:CODE_CHARACTERS] for code in row["accepted_code"])
        return {"code": (row["code"] or "unknown")[:CODE_CHARACTERS], "accepted_code": accepted}

    columns = ("code", "accepted_code")
    raise typer.Exit(_show_each(cluster, node, accept, columns, as_json=as_json, timeout_s=timeout))


def _show_each(
    cluster: ClusterOptions,
    node: str | None,
    call: NodeCall,
    columns: tuple[str, ...],
    *,
    as_json: bool,
    timeout_s: float,
) -> Exit:
    """Call each member, or one, print a row for each, and return the exit code."""
    try:
        answers = asyncio.run(_ask_each(cluster.connect(timeout_s), node, call))
    except ClientError as error:
        return exit_of(error)
    if as_json:
        say(to_json({node_id: answer._asdict() for node_id, answer in answers.items()}))
    else:
        EscapingConsole().print(_answer_table(answers, columns))
    for node_id, answer in answers.items():
        if answer.failure:
            complain(f"{node_id}: {answer.failure}")
    return Exit.FAILED if any(answer.failure for answer in answers.values()) else Exit.DONE


async def _ask_each(unopened: Client, node: str | None, call: NodeCall) -> dict[str, NodeAnswer]:
    async with unopened as client:
        status = await client.status()
        addresses = {member["node_id"]: member["address"] for member in status.get("members", ())}
        if node is not None and node not in addresses:
            raise ClientError(f"{node} is not one of the members ({', '.join(addresses)})")

        async def ask_one(address: str) -> NodeAnswer:
            try:
                return NodeAnswer(address, await call(client, address))
            except ClientError as error:
                return NodeAnswer(address, None, str(error))

        asked = {node_id: address for node_id, address in addresses.items() if node in (None, node_id)}
        answers = await asyncio.gather(*map(ask_one, asked.values()))
        return dict(zip(asked, answers, strict=True))


def _answer_table(answers: dict[str, NodeAnswer], columns: tuple[str, ...]) -> Table:
    table = Table("node", *columns, box=SIMPLE_HEAD)
    for node_id, answer in answers.items():
        table.add_row(escaped(node_id), *(_cell((answer.document or {}).get(name, "")) for name in columns))
    return table


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else escaped(str(value))


@session_app.command("open")
@connecting
def open_session(
    cluster: ClusterOptions,
    name: Annotated[str, typer.Argument(help="The session's name. If it is in use, its holder is fenced.")],
    as_json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Open a named session. Prints its id and last sequence. It stays open until it is closed."""
    opened = ask(cluster, timeout, lambda client: client.session(), session=name)
    _show_session({"session": opened.id, "name": opened.name, "sequence": opened.sequence}, as_json=as_json)


@session_app.command("show")
@connecting
def show_session(
    cluster: ClusterOptions, session: SessionId, as_json: Json = False, timeout: Timeout = DEFAULT_TIMEOUT_S
) -> None:
    """Print a session's name and its last executed sequence."""
    _show_session(ask(cluster, timeout, lambda client: client.session_status(session)), as_json=as_json)


@session_app.command("list")
@connecting
def list_sessions(
    cluster: ClusterOptions,
    prefix: Prefix = "",
    idle_s: IdleS = 0.0,
    as_json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List the open sessions: id, name, last executed sequence, and when the log last used it."""

    async def listed(client: Client) -> list[SessionRow]:
        return await _idle_sessions(client, prefix, idle_s)

    for row in ask(cluster, timeout, listed):
        _show_session(row, as_json=as_json)


@session_app.command("close")
@connecting
def close_session(
    cluster: ClusterOptions,
    session: Annotated[
        int | None,
        typer.Argument(metavar="ID", min=1, help="The session's id. Or use --name, --prefix, --idle."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="The session that is open under this name.")] = None,
    prefix: Prefix = "",
    idle_s: IdleS = 0.0,
    as_json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Close one session, or all idle ones with a name prefix. Their holders' next commands fail."""
    many = bool(prefix or idle_s)
    if (session is not None) + (name is not None) + many != 1:
        fail_usage("give a session's id, or --name NAME, or --prefix TEXT and --idle SECONDS")
    if many:

        async def close_all(client: Client) -> list[int]:
            found = [row["session"] for row in await _idle_sessions(client, prefix, idle_s)]
            parts = [found[first : first + CLOSED_AT_ONCE] for first in range(0, len(found), CLOSED_AT_ONCE)]
            return [closed for part in parts for closed in await client.close_sessions(part)]

        closed = ask(cluster, timeout, close_all)
        say(to_json({"closed": closed}) if as_json else f"{len(closed):,} sessions closed")
        return

    async def close(client: Client) -> SessionClosed:
        return await client.close_session(await _session_of(client, name or "") if session is None else session)

    _show_session(ask(cluster, timeout, close), as_json=as_json)


async def _session_of(client: Client, name: str) -> int:
    """The id of the session with this name. Opening the name would tell it, too, but only to its owner."""
    async for row in client.sessions(name):
        if row["name"] == name:
            return row["session"]
    raise NotFound({"status": 404, "detail": f"no session is open under the name {name!r}; see `quire session list`"})


async def _idle_sessions(client: Client, prefix: str, idle_s: float) -> list[SessionRow]:
    """The sessions whose names start with `prefix` and that have been idle for `idle_s` by this machine's clock.

    A session whose last use is unknown does not count as idle.
    """
    used_before = (time.time() - idle_s) * 1_000_000
    rows = [row async for row in client.sessions(prefix)]
    return [row for row in rows if not idle_s or 0 < row["used_at"] < used_before]


def _show_session(document: Mapping[str, object], *, as_json: bool) -> None:
    text = " ".join(f"{name} {printable(value)}" for name, value in document.items() if value is not None)
    say(to_json(document) if as_json else text)
