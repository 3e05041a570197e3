"""What `POST /commands` and `POST /records` share: check, pack once, write, within a deadline."""

import asyncio
from typing import TYPE_CHECKING, Any

from quire.replication import Write

from ..errors import CommandsRefused, OutcomeUnknown
from .decoding import pack_records

if TYPE_CHECKING:
    from ..node import Node
    from ..pending import WriteReply


async def write_values(
    node: "Node", values: list[Any], limit: int, *, applied: bool, expected_index: int | None = None
) -> "WriteReply":
    """Write the values, at most `limit` bytes of them, as one frame.

    They are on a majority's disks on return, and applied here if asked for.

    Raises:
        CommandsRefused, LimitExceeded: nothing was written.
        OutcomeUnknown: the deadline passed first.
        ClusterError: as `Node.write`.
    """
    refused = node.check(values)
    if refused:
        raise CommandsRefused(refused)
    payload = pack_records(values, limit)
    write = Write(payload, len(values), expected_index=expected_index)
    return await write_within_deadline(node, write, applied=applied)


async def write_within_deadline(node: "Node", write: Write, *, applied: bool) -> "WriteReply":
    """`Node.write`, given up as unknown after `request_timeout_ms`."""
    try:
        async with asyncio.timeout(node.config.request_timeout_ms / 1000):
            return await node.write(write, applied=applied)
    except TimeoutError:
        raise OutcomeUnknown(f"no majority held the write within {node.config.request_timeout_ms} ms") from None
