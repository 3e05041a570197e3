"""The control planes of several nodes on one event loop, with links that a test can cut."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from quire.cluster.control import Control, ControlTimes

TIMES = ControlTimes.of_heartbeat(0.04)


class Plane:
    """Control planes by node id, and the nominations that each has made."""

    def __init__(self, *node_ids: str) -> None:
        self.levels: dict[str, list[bool]] = {node_id: [] for node_id in node_ids}
        self.sent: list[bytes] = []
        self.unfit: set[str] = set()
        self.cut: set[tuple[str, str]] = set()
        self.controls: dict[str, Control] = {}
        for node_id in node_ids:
            self.make(node_id)

    def make(self, node_id: str) -> Control:
        """A new control plane, without any state."""
        others = [other for other in self.levels if other != node_id]

        def send(target: str, data: bytes) -> None:
            self.sent.append(data)
            if target in self.controls and (node_id, target) not in self.cut:
                asyncio.get_running_loop().call_soon(self._arrive, node_id, target, data)

        self.controls[node_id] = Control(
            node_id, others, TIMES, send, self.levels[node_id].append, lambda: node_id not in self.unfit
        )
        return self.controls[node_id]

    def _arrive(self, source: str, target: str, data: bytes) -> None:
        if target in self.controls:
            self.controls[target].receive(source, data)

    def link(self) -> None:
        """Connect all links that are not cut."""
        for source, control in self.controls.items():
            for target in self.levels:
                linked = target in self.controls and (source, target) not in self.cut
                (control.peer_linked if linked else control.peer_unlinked)(target)

    def isolate(self, node_id: str) -> None:
        """Cut all links to and from a node."""
        self.cut |= {(node_id, other) for other in self.levels} | {(other, node_id) for other in self.levels}
        self.link()

    async def lose(self, node_id: str) -> None:
        """A node's process is gone."""
        await self.controls.pop(node_id).stop()
        self.link()

    @property
    def candidates(self) -> list[str]:
        """Who is suggested now."""
        return [node_id for node_id, control in self.controls.items() if control.nominated]


@asynccontextmanager
async def planes(*node_ids: str) -> AsyncGenerator[Plane]:
    """Control planes that run and are linked."""
    plane = Plane(*node_ids)
    for control in plane.controls.values():
        control.start()
    plane.link()
    try:
        yield plane
    finally:
        for control in plane.controls.values():
            await control.stop()
