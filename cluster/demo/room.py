"""What the demos with a fault share: three nodes under load, who leads them, and what all must agree on at the end."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

from ..cli.status import Rows
from ..client import Client, ClientError, Unavailable, connect
from .nodes import DemoFailed, DemoNodes
from .scenario import READY_TIMEOUT_S, Stage
from .writers import BATCH_COMMANDS, Writers

CLIENTS = 4
LOOKS = 4
LOOK_EVERY_S = 0.7
LEVEL_TIMEOUT_S = 60.0
POLL_S = 0.02


class Leader(NamedTuple):
    """Who leads, since which epoch and why, in its own words."""

    node_id: str
    epoch: int
    reason: str


class Room(NamedTuple):
    """What a demo works with: the stage, a client, the writers, who led when it began, and the state before.

    `written` ends when the writers do.
    """

    stage: Stage
    client: Client
    writers: Writers
    leader: str
    before: int
    written: asyncio.Task[None]

    @property
    def nodes(self) -> DemoNodes:
        """The nodes."""
        return self.stage.nodes

    async def status(self, node_id: str) -> dict[str, Any]:
        """What a node says of itself. Raises ClientError."""
        return await self.client.status(self.nodes.addresses[node_id])

    async def until(self, what: str, condition: Callable[[], Awaitable[bool]]) -> None:
        """Return once it holds. Raises DemoFailed."""
        deadline = time.monotonic() + LEVEL_TIMEOUT_S
        while time.monotonic() < deadline:
            with suppress(ClientError):
                if await condition():
                    return
            await asyncio.sleep(POLL_S)
        raise DemoFailed(f"{what}: not within {LEVEL_TIMEOUT_S:g} s")

    async def end(self) -> tuple[Rows, int]:
        """End the writers; the nodes' rows once all have applied all of it, and by how much the state is off."""
        self.writers.end()
        await self.written
        rows = await self.stage.all_applied(self.client, (await self.client.status())["highest_index"])
        return rows, int((await self.client.state()).state) - self.before - self.writers.sum


@asynccontextmanager
async def writing(stage: Stage, first: int, batch_commands: int = BATCH_COMMANDS) -> AsyncGenerator[Room, None]:
    """A room whose writers have got so many commands acknowledged.

    Raises what goes wrong first, in the block or in a writer.
    """
    nodes = stage.nodes
    try:
        async with connect(nodes.servers, timeout_s=READY_TIMEOUT_S) as client, asyncio.TaskGroup() as tasks:
            await asyncio.gather(*map(client.ready, nodes.addresses.values()))
            before = int((await client.state()).state)
            writers = Writers(nodes.servers, CLIENTS, batch_commands)
            written = tasks.create_task(writers.run())
            await writers.acknowledged(first)
            yield Room(stage, client, writers, (await find_leader(client)).node_id, before, written)
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None


async def find_leader(client: Client) -> Leader:
    """Whoever serves as the leader now. Raises Unavailable: nobody did within the client's time."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        status: dict[str, Any] = await client.status()
        if status["serving"]:
            own = [change for change in status["leaders"] if change["role"] == "leader"]
            return Leader(status["node_id"], status["epoch"], own[-1]["reason"])
        await client.state()  # Linearizable: answered once a leader serves, and then the client knows it.
    raise Unavailable("no leader was found")
