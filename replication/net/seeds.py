"""Finds out which nodes answer at the addresses of `--join`. With their ids, they are dialled like other peers.

With certificates the certificate names the node; else its hello does. An address is asked until a node of this cluster
has answered. One of another history is reported each time.
"""

import asyncio
from collections.abc import Callable, Sequence

from aiohttp import ClientSession

from .hello import LINK_FAILURES, ForeignCluster, PeerInfo, dial
from .links import failure_of
from .sockets import close_socket, end_all
from .trust import Trust

ASK_AGAIN_S = 1.0
ASK_TIMEOUT_S = 5.0


class Seeds:
    """Asks each address who it is. One event loop."""

    def __init__(
        self,
        addresses: Sequence[str],
        me: Callable[[], PeerInfo],
        trust: Trust,
        found: Callable[[str, str], None],
        foreign: Callable[[PeerInfo], None],
    ) -> None:
        """`found` gets a node id and its address, `foreign` a node of another history."""
        self._addresses = addresses
        self._me = me
        self._trust = trust
        self._found = found
        self._foreign = foreign
        self.known: dict[str, str] = {}
        """The addresses that have answered, by node id."""
        self.failures: dict[str, str] = {}
        """Why an address has not answered yet."""
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, session: ClientSession) -> None:
        """Begin to ask."""
        self._tasks = [
            asyncio.create_task(self._ask(session, address), name=f"seed {address}") for address in self._addresses
        ]

    async def close(self) -> None:
        """Ask no more."""
        await end_all(self._tasks)

    async def _ask(self, session: ClientSession, address: str) -> None:
        while True:
            try:
                node_id = await self._node_at(session, address)
            except LINK_FAILURES as error:
                self.failures[address] = failure_of(error)
                if isinstance(error, ForeignCluster):
                    self._foreign(error.peer)
            else:
                self.failures.pop(address, None)
                self.known[node_id] = address
                self._found(node_id, address)
                return
            await asyncio.sleep(ASK_AGAIN_S)

    async def _node_at(self, session: ClientSession, address: str) -> str:
        """The node that answers there. Raises one of LINK_FAILURES."""
        expected = None
        if self._trust.certificates is not None:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                expected = await self._trust.certificates.node_at(address)
        socket, peer = await dial(session, address, self._me, expected, "peer", self._trust, None)
        await close_socket(socket)
        return peer.node_id
