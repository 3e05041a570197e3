"""What an operator changes about the members: `client.membership`."""

import re
from collections.abc import Mapping
from typing import TypedDict

from quire.log import pack

from .connection import Connection, Run
from .documents import document_of
from .errors import NotFound
from .message import pack_or_refuse
from .transport import MSGPACK, Reply

NODE_ID = re.compile(r"[a-z0-9-]{1,24}")  # As in quire.replication, which takes long to import.


class Membership:
    """Changes of the members, and draining one. Each is safe to repeat; each returns or raises within `timeout_s`.

    A change returns the indices of the membership records that it wrote: none if the members already are as wanted.
    Each raises as follows.

    Raises:
        BadRequest: the change makes no sense as the members are, or an address or id is invalid.
        NotFound: there is no such node.
        Unavailable: the change could not be made within `timeout_s`; nothing was changed.
        OutcomeUnknown: it may have been made; call this again.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def add(self, addresses: Mapping[str, str], *, observers: bool = False) -> list[int]:
        """Add nodes, HOST:PORT by node id. They join when they are started with `--join`.

        They become voters once all that join are level, or stay observers. Nobody has to wait for it.
        """
        body = pack_or_refuse({"members": dict(addresses), "role": "observer" if observers else "voter"})
        return list(document_of(await self._connection.change("/members", body), _Changed)["changes"])

    async def remove(self, node_id: str) -> list[int]:
        """Remove a node for good. A leader hands over first."""
        reply = await self._connection.call("DELETE", _path(node_id), writes=True, repeatable=True)
        return list(document_of(reply, _Changed)["changes"])

    async def promote(self, node_id: str) -> list[int]:
        """Make a node a voter with the disk that it has now. An older disk of it loses its vote first."""
        return list(document_of(await self._patch(node_id, {"role": "voter"}), _Changed)["changes"])

    async def demote(self, node_id: str) -> list[int]:
        """Make a voter an observer. A leader hands over first."""
        return list(document_of(await self._patch(node_id, {"role": "observer"}), _Changed)["changes"])

    async def move(self, node_id: str, address: str) -> list[int]:
        """Give a member another address, HOST:PORT."""
        return list(document_of(await self._patch(node_id, {"address": address}), _Changed)["changes"])

    async def drain(self, node_id: str, *, drained: bool = True) -> None:
        """Have a node let others lead as long as one can, or no longer. A restart of the node ends it."""
        await self._patch(node_id, {"drained": drained})

    async def _patch(self, node_id: str, document: Mapping[str, object]) -> Reply:
        return await self._connection.call(
            "PATCH",
            _path(node_id),
            writes=True,
            repeatable=True,
            body=pack(document),
            content_type=MSGPACK,
        )


class BlockingMembership:
    """`Membership` for programs without an event loop."""

    def __init__(self, membership: Membership, run: Run) -> None:
        self._membership = membership
        self._run = run

    def add(self, addresses: Mapping[str, str], *, observers: bool = False) -> list[int]:
        """Add nodes, HOST:PORT by node id. They join when they are started with `--join`."""
        return self._run(self._membership.add(addresses, observers=observers))

    def remove(self, node_id: str) -> list[int]:
        """Remove a node for good. A leader hands over first."""
        return self._run(self._membership.remove(node_id))

    def demote(self, node_id: str) -> list[int]:
        """Make a voter an observer. A leader hands over first."""
        return self._run(self._membership.demote(node_id))

    def move(self, node_id: str, address: str) -> list[int]:
        """Give a member another address, HOST:PORT."""
        return self._run(self._membership.move(node_id, address))

    def drain(self, node_id: str, *, drained: bool = True) -> None:
        """Have a node let others lead as long as one can, or no longer. A restart of the node ends it."""
        self._run(self._membership.drain(node_id, drained=drained))


def _path(node_id: str) -> str:
    if not NODE_ID.fullmatch(node_id):
        raise NotFound({"status": 404, "detail": f"{node_id!r} is not a node id: 1 to 24 of a-z, 0-9 and -"})
    return f"/members/{node_id}"


class _Changed(TypedDict):
    changes: list[int]
