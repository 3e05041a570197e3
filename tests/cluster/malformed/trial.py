"""Sends a cluster every changed message, as a stranger who knows the secret, and notes what comes of it."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from quire.cluster.config.serve import ServeConfig
from quire.log import FEATURES
from quire.replication.core.messages import Open
from quire.replication.net.hello import PeerInfo
from quire.replication.net.wire import encode
from tests.cluster.malformed.changed import Changed, changes_of_values
from tests.cluster.malformed.peers import View, changes_of, peer_examples, stream_examples, view_of
from tests.cluster.malformed.stranger import Line, Stranger
from tests.cluster.running import RunningCluster, RunningNode, free_addresses, running_cluster, started

SECRET = b"a secret of the peers, 32 bytes."
DEADLINE_S = 60.0
LEADER, FOLLOWER = "leader", "follower"


class World:
    """n1 and n2 run. `member` has what n3 had, its id, its disk and its address; `outsider` is of no record."""

    def __init__(self, cluster: RunningCluster, member: Stranger, outsider: Stranger, config: ServeConfig) -> None:
        self.cluster = cluster
        self.member = member
        self.outsider = outsider
        self._config = config
        self._listening = AsyncExitStack()

    async def strangers_listen(self) -> None:
        for stranger in (self.member, self.outsider):
            await self._listening.enter_async_context(stranger.listening())

    async def member_returns(self) -> None:
        """The strangers are gone, and n3 runs again."""
        await self.strangers_leave()
        self.cluster.nodes["n3"] = await started(self._config)

    async def strangers_leave(self) -> None:
        await self._listening.aclose()


@asynccontextmanager
async def world(folder: Path, **settings: Any) -> AsyncGenerator[World]:
    """A cluster of three, of which the third has been replaced by the stranger."""
    secret = folder / "secret"
    await asyncio.to_thread(secret.write_bytes, SECRET)
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(running_cluster(folder, peer_secret_file=secret, **settings))
        await cluster.commands("n1", ["add", 1])
        parts = cluster.nodes["n3"].node.components
        me = parts.replica.core.status().me
        cluster_id = parts.replica.network.me().cluster_id
        config = cluster.nodes["n3"].config
        await cluster.stop("n3")
        of_member = PeerInfo(cluster_id, "n3", me.disk_id, me.incarnation + 1, config.listen, FEATURES)
        of_outsider = PeerInfo(cluster_id, "n9", bytes(range(16)), 7, free_addresses(1)[0], FEATURES)
        member, outsider = (Stranger(cluster.session, info, SECRET) for info in (of_member, of_outsider))
        strange = World(cluster, member, outsider, config)
        await strange.strangers_listen()
        stack.push_async_callback(strange.strangers_leave)
        yield strange


class Trial:
    """All changes of all messages, and what came of them."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.cluster = world.cluster
        self.counted: Counter[tuple[str, str]] = Counter()
        self.answers: Counter[str] = Counter()
        self.halts: list[tuple[str, str]] = []
        self.seed = seed
        self._line: Line | None = None
        self._lines = AsyncExitStack()
        self._key = ("", "")

    # Whom to speak to

    async def node(self, role: str) -> RunningNode:
        """The node that leads, or one that follows, once there is a leader."""
        async with asyncio.timeout(DEADLINE_S):
            while (found := self._of_role(role)) is None:
                await self.let_run()
        return found

    def _of_role(self, role: str) -> RunningNode | None:
        nodes = self.cluster.nodes.values()
        leader = next((running for running in nodes if running.node.leadership.is_leader), None)
        if leader is None:
            return None
        if role == LEADER:
            return leader
        return next(
            (r for r in nodes if r is not leader and r.node.leadership.leader_id == leader.node.config.node), None
        )

    async def let_run(self) -> None:
        await self.cluster.ask(next(iter(self.cluster.nodes)), "GET", "/healthz")

    async def note(self, kind: str, change: Changed, *, taken: bool) -> None:
        """Count a change that was sent. A node that it ended is started again."""
        self.counted[kind, change.where] += 1
        self.answers["taken" if taken else "refused"] += 1
        for node_id, running in list(self.cluster.nodes.items()):
            if running.node.health.failure is not None:
                self.halts.append((f"{kind}.{change.where}: {change.how}", running.node.health.failure))
                await self._hang_up()
                await self.cluster.restart(node_id)

    # /peer

    async def links(self, stranger: Stranger, role: str, keep: float = 1.0) -> None:
        """Every change of every message of `/peer`."""
        await self._all(stranger, role, "peer", peer_examples, keep)

    async def streams(self, stranger: Stranger, role: str, keep: float = 1.0) -> None:
        """Every change of every message of a follower on `/peer/stream`."""
        await self._all(stranger, role, "stream", stream_examples, keep)

    async def _all(self, stranger: Stranger, role: str, purpose: str, examples: Any, keep: float) -> None:
        chance = random.Random(f"{self.seed} {role} {stranger.info.node_id} {purpose}")
        kinds = list(examples(await self._view(stranger, role)))
        for kind in kinds:
            number, view, plan = 0, None, []
            while True:
                fresh = await self._view(stranger, role)
                if view is None or fresh.promise != view.promise or fresh.tail != view.tail:
                    view = fresh
                    plan = [
                        (message, change)
                        for message in examples(view)[kind]
                        for change in changes_of(message, random.Random(self.seed))
                    ]
                if number >= len(plan):
                    break
                message, change = plan[number]
                number += 1
                if chance.random() < keep:
                    await self._one(stranger, role, purpose, message, view, change)
        await self._hang_up()

    async def _view(self, stranger: Stranger, role: str) -> View:
        return view_of(await self.node(role), stranger.info)

    async def _one(
        self, stranger: Stranger, role: str, purpose: str, message: Any, view: View, change: Changed
    ) -> None:
        kind, target = type(message).__name__, await self.node(role)
        if purpose == "stream":
            taken = await self._on_stream(stranger, target, kind, view, change)
        else:
            taken = await self._on_link(stranger, target, change)
        await self.note(kind, change, taken=taken)

    async def _on_link(self, stranger: Stranger, target: RunningNode, change: Changed) -> bool:
        key = (stranger.info.node_id, target.config.node)
        if self._line is None or self._key != key:
            await self._hang_up()
            dialled = stranger.dialled(target.config.listen, target.config.node)
            self._line, self._key = await self._lines.enter_async_context(dialled), key
        taken = await self._line.say(change.data)
        if not taken:
            await self._hang_up()
        return taken

    async def _hang_up(self) -> None:
        self._line = None
        await self._lines.aclose()

    async def _on_stream(self, stranger: Stranger, target: RunningNode, kind: str, view: View, change: Changed) -> bool:
        async with stranger.dialled(target.config.listen, target.config.node, "stream") as line:
            if kind != Open.__name__:
                await line.say(encode(stream_examples(view)[Open][-1]))
            return await line.say(change.data)

    # /peer/snapshot

    async def fetches(self, stranger: Stranger, role: str, keep: float = 1.0) -> None:
        """Every change of a request for a part of a snapshot."""
        chance = random.Random(f"{self.seed} {role} {stranger.info.node_id} snapshot")
        node_id = (await self.node(role)).config.node
        index = (await self.cluster.ask(node_id, "POST", "/admin/snapshot")).document["index"]
        for row in ([index, None], [index, 0]):
            for change in changes_of_values(row, ("index", "number"), chance):
                if chance.random() < keep:
                    target = self.cluster.nodes[node_id]
                    async with stranger.dialled(target.config.listen, node_id, "snapshot") as line:
                        taken = await line.say(change.data)
                    await self.note("Fetch", change, taken=taken)
