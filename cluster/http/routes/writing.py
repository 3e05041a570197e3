"""What `POST /commands` and `POST /records` share: check, pack once, write, within a deadline."""

import asyncio
from typing import TYPE_CHECKING, Any

from aiohttp import web

from quire.replication import Write

from ...errors import CommandsRefused, LimitExceeded, OutcomeUnknown, SessionRefused
from ...node.pending import FutureWaiter
from ..decoding import pack_records
from ..keys import NODE, WINDOWS

if TYPE_CHECKING:
    from ...node.node import Node
    from ...node.pending import WriteReply


SESSION_CODES = frozenset(("SESSION_FENCED", "SESSION_EXPIRED", "SEQUENCE_GAP", "REPLY_GONE", "SEQUENCE_REUSED"))


async def write_values(
    app: web.Application,
    values: list[Any],
    limit: int,
    *,
    applied: bool,
    expected_index: int | None = None,
    place: tuple[int, int] = (0, 0),
) -> "WriteReply":
    """Write the values, at most `limit` bytes of them, as one frame.

    They are on a majority's disks on return, and applied here if asked for.

    Raises:
        CommandsRefused, LimitExceeded, Overloaded: nothing was written.
        OutcomeUnknown: the deadline passed first.
        ClusterError: as `Node.write`.
    """
    node = app[NODE]
    refused = node.check(values)
    if refused:
        raise CommandsRefused(refused)
    payload = pack_records(values, limit)
    session, sequence = place
    waiter = FutureWaiter(applied=applied or session != 0)
    write = Write(payload, len(values), expected_index=expected_index, session=session, sequence=sequence, owner=waiter)
    if session and len(values) > node.session_window:
        raise LimitExceeded("the number of records under a session", len(values), node.session_window)
    reply = await write_within_deadline(app, write)
    _refuse_by_session(reply)
    return reply


def _refuse_by_session(reply: "WriteReply") -> None:
    """Raise for a write of which its session answered no record."""
    if reply.refused and len(reply.refused) == reply.count:
        _, code, text = reply.refused[0]
        if code in SESSION_CODES:
            raise SessionRefused(code, text, reply.refused)


async def write_within_deadline(app: web.Application, write: Write[FutureWaiter]) -> "WriteReply":
    """`Node.write`, given up as unknown after `request_timeout_ms`.

    Raises:
        Overloaded: too much of its session is under way already; nothing was written.
    """
    node = app[NODE]
    if not write.session:
        return await _write(node, write)
    with app[WINDOWS].room_for(write.session, write.count, node.session_window):
        return await _write(node, write)


async def _write(node: "Node", write: Write[FutureWaiter]) -> "WriteReply":
    try:
        async with asyncio.timeout(node.config.request_timeout_ms / 1000):
            return await node.write(write)
    except TimeoutError:
        raise OutcomeUnknown(f"no majority held the write within {node.config.request_timeout_ms} ms") from None
