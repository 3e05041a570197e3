"""`quire roll`: restarts a cluster node after node, each drained first and level again before the next."""

import shlex
import time
from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import ClusterError
from ...standard_streams import queue_standard_streams
from ..connection import ClusterOptions, ask, connecting, fail_usage
from ..output import Exit, complain, say
from .members import LEVEL_RECORDS, LOOK_S, drained

if TYPE_CHECKING:
    from ...client import Client, Members
    from ...client.documents import MemberRow

roll_app = typer.Typer()

ROLL_TIMEOUT_S = 300.0


class RollStopped(ClusterError):
    """A step failed; the text says which, and why. What was restarted stays so."""


@roll_app.command()
@connecting
def roll(
    cluster: ClusterOptions,
    command: Annotated[
        str,
        typer.Option(
            "--exec",
            metavar="COMMAND",
            help="What restarts a node. {node}, {host}, {port} and {address} are filled in; no shell reads it.",
        ),
    ],
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=1.0, help="How long each step may take.")
    ] = ROLL_TIMEOUT_S,
) -> None:
    """Restart each member in turn: observers first, the leader last. Stops at the first failure.

    Each is drained before, and must be ready and level after; no request fails meanwhile.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        fail_usage(f"--exec {command!r}: {error}")
    if not words:
        fail_usage("--exec names no command")
    try:
        _filled(words, "n1", "127.0.0.1:7001")
    except (LookupError, ValueError, AttributeError):
        placeholders = "{node}, {host}, {port} and {address}"
        fail_usage(
            f"--exec {command!r}: only {placeholders} are filled in; write other braces twice, as in {{{{ and }}}}"
        )
    queue_standard_streams()
    try:
        ask(cluster, timeout, lambda client: _roll(client, words, timeout))
    except RollStopped as error:
        complain(str(error))
        raise typer.Exit(Exit.FAILED) from None


async def _roll(client: "Client", words: list[str], timeout_s: float) -> None:
    document = await client.members()
    rows = [row for row in document["members"] if row["address"]]
    order = {"observer": 0, "joining": 0, "voter": 1}
    rows.sort(key=lambda row: (row["node_id"] == document["leader"], order[row["role"]], row["node_id"]))
    for row in rows:
        await _restart(client, row, words, timeout_s)
        say(f"{row['node_id']} was restarted, and is ready and level")


async def _restart(client: "Client", row: "MemberRow", words: list[str], timeout_s: float) -> None:
    import asyncio

    node_id, address = row["node_id"], row["address"]
    if row["started_at"] is None:
        raise RollStopped(f"{node_id} does not answer, so it is not restarted; start it first")
    undrain = f"`quire undrain {node_id}` lets it lead again"
    if (lacking := await drained(client, node_id, timeout_s)) is not None:
        raise RollStopped(f"{node_id} is drained, but must not be stopped yet: {lacking}; {undrain}")
    filled = _filled(words, node_id, address)
    process = await asyncio.create_subprocess_exec(*filled)
    if (code := await process.wait()) != 0:
        raise RollStopped(
            f"`{shlex.join(filled)}` failed with {code}; start {node_id} if it has stopped, else {undrain}"
        )
    until = time.monotonic() + timeout_s
    while (lacking := _lacks(await _members(client), node_id, row["started_at"])) is not None:
        if time.monotonic() >= until:
            raise RollStopped(f"after its restart {node_id} is not back: {lacking}")
        await asyncio.sleep(LOOK_S)


def _filled(words: list[str], node_id: str, address: str) -> list[str]:
    """The command for a node. Raises LookupError, ValueError, AttributeError: a word has other braces."""
    from quire.replication.address import host_and_port

    host, port = host_and_port(address)
    return [word.format(node=node_id, host=host, port=port, address=address) for word in words]


async def _members(client: "Client") -> "Members | None":
    from ...client import Unavailable

    try:
        return await client.members()
    except Unavailable:
        return None


def _lacks(document: "Members | None", node_id: str, started_at: int) -> str | None:
    """Why a node is not yet as before its restart; None once it is."""
    if document is None:
        return "no leader answers"
    row = next((row for row in document["members"] if row["node_id"] == node_id), None)
    if row is None or row["started_at"] is None:
        return "it does not answer"
    if row["started_at"] == started_at:
        return f"it was not restarted: it is the same process; `quire undrain {node_id}` lets it lead again"
    if not row["ready"] or not row["heard"]:
        return "it is not ready"
    return None if row["lag"] is not None and row["lag"]["records"] <= LEVEL_RECORDS else "it is not level"
