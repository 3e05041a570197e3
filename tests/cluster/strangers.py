"""Somebody who speaks the peers' protocol and attacks a running cluster."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from aiohttp import ClientWebSocketResponse, WSMsgType

from quire.cluster.node.views.status import node_status
from quire.replication.core.messages import Last, Open, Promise
from quire.replication.net.hello import LINK_FAILURES, PeerInfo, PeerRefused, dial
from tests.cluster.conditions import replica_of
from tests.cluster.running import RunningCluster
from tests.replication.loopback import trusting

DEADLINE_S = 90.0
NOTHING, CLOSED = "ignored", "connection closed"


@dataclass
class Stranger:
    """Somebody who attacks a running cluster, and whom it takes for `me`."""

    cluster: RunningCluster
    folder: Path
    me: PeerInfo
    secret: bytes | None
    is_member: bool
    """Whether it goes under a member's id and disk, where no secret is asked for."""

    @property
    def epoch(self) -> int:
        return replica_of(self.cluster).core.promise.epoch

    @property
    def leader(self) -> str:
        leaders = [node_id for node_id, running in self.cluster.nodes.items() if running.node.leadership.is_leader]
        return leaders[0] if len(leaders) == 1 else ""

    def promise(self, above: int = 0) -> Promise:
        return Promise(self.epoch + above, self.me.node_id, self.me.incarnation)

    @property
    def end(self) -> Last:
        """The end of a log that is longer than anybody's."""
        last = max(replica_of(self.cluster, node_id).core.state.log.durable for node_id in self.cluster.nodes)
        return last._replace(index=last.index + 1)

    def opening(self) -> Open:
        """As of a new follower of the leader: it has the genesis frame."""
        core = replica_of(self.cluster, self.leader).core
        assert core.leading_promise is not None
        return Open(core.leading_promise, ((0, 0),), 1, 1)

    async def moves(self, message: bytes, believed: str) -> str:
        """Say this to the nodes. Where it goes under a member's id, another epoch begins; a leader must be found."""
        if not self.is_member:
            return await self.tell(message)
        before = self.epoch
        for node_id in self.cluster.nodes:
            async with self.dialled(node_id) as socket:
                await socket.send_bytes(message)
                await answer_on(socket)
        async with asyncio.timeout(DEADLINE_S):
            while self.epoch == before or not self.leader:  # noqa: ASYNC110  # Nothing tells.
                await asyncio.sleep(0)
        return believed

    @asynccontextmanager
    async def dialled(
        self, node_id: str, purpose: str = "peer", me: PeerInfo | None = None
    ) -> AsyncGenerator[ClientWebSocketResponse]:
        """A connection to a node after the hello. Raises LINK_FAILURES."""
        who = self.me if me is None else me
        address = self.cluster.address(node_id)
        socket, _ = await dial(
            self.cluster.session, address, lambda: who, node_id, purpose, trusting(self.secret), None
        )
        try:
            yield socket
        finally:
            await socket.close()

    @asynccontextmanager
    async def opened(self, node_id: str, path: str) -> AsyncGenerator[ClientWebSocketResponse]:
        """A WebSocket to a node, before the hello."""
        url = f"http://{self.cluster.address(node_id)}{path}"
        async with self.cluster.session.ws_connect(url, autoping=False) as socket:
            yield socket

    async def tell(self, *messages: bytes, purpose: str = "peer", me: PeerInfo | None = None) -> str:
        """Say this to every running node; what they do, which must be the same."""
        before = self.refused()
        done = {await self._tell_one(node_id, messages, purpose, me) for node_id in self.cluster.nodes}
        assert len(done) == 1, done
        if done == {NOTHING} and all(after > before[node_id] for node_id, after in self.refused().items()):
            return "refused and counted"
        return done.pop()

    def refused(self) -> dict[str, int]:
        """By node: how many messages it did not believe."""
        nodes = self.cluster.nodes.items()
        return {
            node_id: sum(node_status(running.node).get("refused_messages", {}).values()) for node_id, running in nodes
        }

    async def _tell_one(self, node_id: str, messages: tuple[bytes, ...], purpose: str, me: PeerInfo | None) -> str:
        try:
            async with self.dialled(node_id, purpose, me) as socket:
                for message in messages:
                    await socket.send_bytes(message)
                return await answer_on(socket)
        except PeerRefused as error:
            return f"hello refused: `{error.code}`"
        except LINK_FAILURES:
            return CLOSED


async def answer_on(socket: ClientWebSocketResponse) -> str:
    """What comes of what was sent: a pong says that all of it was taken."""
    async with asyncio.timeout(DEADLINE_S):
        try:
            await socket.ping(b"was that all?")
        except ConnectionError:
            return CLOSED
        while True:
            message = await socket.receive()
            if message.type is WSMsgType.PONG:
                return NOTHING
            if message.type in (WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR):
                return CLOSED
