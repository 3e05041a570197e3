"""A stranger who holds a member's address and leads: what it says to the nodes that follow it and dial it."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from aiohttp import web
from crc32c import crc32c

from quire.log import pack
from quire.replication.core.messages import Ack, Heartbeat, Open, OpenAnswer, OpenVerb, Promise
from quire.replication.net.hello import PeerInfo
from quire.replication.net.wire import ANSWER, decode_stream, encode, to_messages
from quire.sm.snapshots.manifest import MANIFEST_NAME
from quire.sm.snapshots.store import SNAPSHOTS_FOLDER, chunk_name, snapshot_name
from tests.cluster.malformed.changed import Changed, changes_of_map, changes_of_values
from tests.cluster.malformed.peers import View, answer_examples, changes_of, committed_end, shipments, view_of
from tests.cluster.malformed.stranger import DEADLINE_S, Line
from tests.cluster.malformed.trial import Trial
from tests.cluster.running import RunningNode
from tests.packed import unpacked

AHEAD = 10
CRC_BYTES = 4
PART = b"-- and what announces it: "
FOLLOWED_S = 2.0
"""A node that has not dialled by then is told of a newer epoch."""


Plan = Callable[[View, random.Random], list[tuple[str, Changed]]]


class Serving(Protocol):
    """What the stranger says to a node that has opened a stream; whether the node takes the change."""

    async def __call__(self, line: Line, opening: Open, change: Changed) -> bool: ...


def of_log(view: View) -> object:
    return view.tail, view.tail_crc32c


class Served(NamedTuple):
    """A snapshot for a node that fetches it. `head`: what announces the manifest, if not its length."""

    manifest: bytes
    head: bytes | None
    chunks: list[bytes]
    over: asyncio.Event


def with_crc(body: bytes) -> bytes:
    return crc32c(body).to_bytes(CRC_BYTES, "little") + body


class FalseLeader:
    """Leads one node after the other, each time in a new epoch, and says one thing wrong."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._member = trial.world.member
        self._member.on_stream = self._streamed
        self._dialled: dict[str, asyncio.Queue[tuple[web.WebSocketResponse, asyncio.Event]]] = {}

    async def _streamed(self, socket: web.WebSocketResponse, peer: PeerInfo) -> None:
        over = asyncio.Event()
        self._dialled.setdefault(peer.node_id, asyncio.Queue()).put_nowait((socket, over))
        await over.wait()

    async def followed_by(self, target: RunningNode, serve: Callable[[Line, Open], Awaitable[bool]]) -> bool:
        """Have a node follow the stranger in a new epoch; return what `serve` says of its stream, which then ends."""
        node_id = target.config.node
        async with asyncio.timeout(DEADLINE_S), self._member.dialled(target.config.listen, node_id) as link:
            while target.node.health.failure is None:
                epoch = await self._heard_by(target, link)
                with suppress(TimeoutError):  # It has promised somebody else meanwhile.
                    async with asyncio.timeout(FOLLOWED_S):
                        return await self._served(node_id, epoch, serve)
        return False

    async def _heard_by(self, target: RunningNode, link: Line) -> int:
        """Say that the stranger leads in a new epoch, which is returned."""
        epoch, me = target.node.components.replica.core.status().promise.epoch + 1, self._member.info
        await link.say(encode(Heartbeat(Promise(epoch, me.node_id, me.incarnation), 1, 1)))
        return epoch

    async def _served(self, node_id: str, epoch: int, serve: Callable[[Line, Open], Awaitable[bool]]) -> bool:
        queue = self._dialled.setdefault(node_id, asyncio.Queue())
        while True:
            socket, over = await queue.get()
            try:
                line = Line(socket)
                if (message := await line.hear()) is not None:
                    opening = decode_stream(message.data)
                    if isinstance(opening, Open) and opening.promise.epoch == epoch:
                        return await serve(line, opening)
            finally:
                await socket.close()
                over.set()

    # What it says

    async def answers(self, node_id: str, keep: float = 1.0) -> None:
        """Every change of every answer to an opening."""

        def plan(view: View, chance: random.Random) -> list[tuple[str, Changed]]:
            return [("OpenAnswer", c) for answer in answer_examples(view) for c in changes_of(answer, chance)]

        async def serve(line: Line, opening: Open, change: Changed) -> bool:
            return await line.say(ANSWER + change.data)

        await self._each(node_id, plan, serve, keep)

    async def shipments(self, node_id: str, keep: float = 1.0) -> None:
        """Every change of a shipment, and of the frame in it."""

        def plan(view: View, chance: random.Random) -> list[tuple[str, Changed]]:
            return [("Shipment", change) for change in shipments(view, chance)]

        async def serve(line: Line, opening: Open, change: Changed) -> bool:
            parts = self._trial.cluster.nodes[node_id].node.components
            index, *_, crc32c = committed_end(parts.log, parts.replica.core.commit_index)
            verb = OpenVerb.RESUME if opening.highest_index == index else OpenVerb.TRUNCATE
            [answer] = to_messages(OpenAnswer(verb, index, crc32c, ""))
            await line.socket.send_bytes(answer)
            while (message := await line.hear()) is not None:
                if isinstance(ack := decode_stream(message.data), Ack) and ack.durable_index >= index:
                    return await line.say(change.data)
            return False

        await self._each(node_id, plan, serve, keep, lambda view: view)

    async def snapshots(self, node_id: str, keep: float = 1.0) -> None:
        """Every change of a manifest, and of the head of a part.

        Each chunk fails its crc, so that nothing is installed: what a leader writes is believed, whoever it is, and the
        others' logs would contradict it.
        """
        path = await self._snapshot_of(node_id)
        manifest = unpacked((path / MANIFEST_NAME).read_bytes()[4:])
        chunks = [(path / chunk_name(number)).read_bytes()[::-1] for number in range(len(manifest["chunks"]))]

        def plan(view: View, chance: random.Random) -> list[tuple[str, Changed]]:
            place = {"index": view.tail + AHEAD, "epoch": view.tail_epoch, "epochs": [list(e) for e in view.epochs]}
            changed = changes_of_map(manifest | place, chance)
            whole = pack(manifest | place)
            heads = changes_of_values([len(whole) + CRC_BYTES], ("length",), chance)
            parts = [Changed(head.where, head.how, with_crc(whole) + PART + head.data) for head in heads]
            return [
                *(("Manifest", Changed(c.where, c.how, with_crc(c.data))) for c in changed),
                *(("Part", part) for part in parts),
            ]

        async def serve(line: Line, opening: Open, change: Changed) -> bool:
            served, head = change.data.split(PART) if PART in change.data else (change.data, None)
            view = view_of(self._trial.cluster.nodes[node_id], self._member.info, next_epoch=True)
            self._member.on_snapshot = partial(self._fetched, Served(served, head, chunks, over := asyncio.Event()))
            [answer] = to_messages(OpenAnswer(OpenVerb.INSTALL, view.tail, 0, "", view.tail + AHEAD))
            taken = await line.say(answer)
            await over.wait()
            return taken

        await self._each(node_id, plan, serve, keep)

    async def _snapshot_of(self, node_id: str) -> Path:
        reply = await self._trial.cluster.ask(node_id, "POST", "/admin/snapshot")
        folder = self._trial.cluster.nodes[node_id].config.data_dir / SNAPSHOTS_FOLDER
        return folder / snapshot_name(reply.document["index"])

    async def _fetched(self, served: "Served", socket: web.WebSocketResponse, peer: PeerInfo) -> None:
        """Answer a node's requests for the parts of a snapshot."""
        try:
            line = Line(socket)
            while (message := await line.hear()) is not None:
                number = unpacked(message.data)[1]
                data = served.manifest if number is None else served.chunks[number % len(served.chunks)]
                changed = served.head if number is None else None
                await socket.send_bytes(pack([len(data)]) if changed is None else changed)
                await socket.send_bytes(data)
                if changed is not None:
                    return  # It may wait for more.
        finally:
            served.over.set()

    async def _each(
        self, node_id: str, plan: Plan, serve: Serving, keep: float, depends_on: Callable[[View], object] = of_log
    ) -> None:
        trial = self._trial
        chance = random.Random(f"{trial.seed} {node_id} {plan.__qualname__}")
        number, planned, cases = 0, None, []
        while True:
            target = trial.cluster.nodes[node_id]
            view = view_of(target, self._member.info, next_epoch=True)
            if (now := depends_on(view)) != planned:
                planned, cases = now, plan(view, random.Random(trial.seed))
            if number >= len(cases):
                return
            kind, change = cases[number]
            number += 1
            if chance.random() >= keep:
                continue
            taken = await self.followed_by(target, partial(serve, change=change))
            await trial.let_run()
            await trial.note(kind, change, taken=taken)
