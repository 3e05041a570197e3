"""Clients that write in a thread of their own until they are stopped, and record what was acknowledged."""

from __future__ import annotations

import asyncio
import decimal
import os
from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import Any

from quire.cluster.client import OutcomeUnknown, Unavailable
from quire.cluster.client.documents import document_of
from quire.cluster.client.transport import MSGPACK, Transport
from quire.log import pack
from tests.processes.cluster import Cluster
from tests.processes.crowd import Crowd
from tests.sm.commands import example
from tests.verdict.verdict import Answered

# The size of everything here: how many commands a load has. By hand: PROCESS_COMMANDS=1000000 pytest tests/processes
COMMANDS = int(os.environ.get("PROCESS_COMMANDS", "100000"))
BATCH = 200
PATIENCE_S = 30.0

classroom = example("classroom")
classroom_check = example("classroom_check")

Command = list[Any]


class Classroom:
    """The arithmetic machine by the classroom's script, which shares no code with quire."""

    def __init__(self) -> None:
        self._context = decimal.Context(prec=34, Emin=-6143, Emax=6144, clamp=1, capitals=1)
        self._value = decimal.Decimal(42)

    @property
    def state(self) -> str:
        """The value."""
        return self._context.to_sci_string(self._value)

    def apply(self, command: Command) -> str:
        """The new value."""
        self._value = classroom_check.step(self._value, command, self._context)
        return self.state


def classroom_commands(client: int) -> Iterator[Command]:
    """The classroom's instructions without end, others for each client."""
    source = classroom.Instructions(classroom.DEFAULT_SEED + client)
    while True:
        yield source.draw()


def unique_commands(client: int) -> Iterator[Command]:
    """Commands no two of which are equal, so that one that stands in the log twice shows."""
    for number in count(1):
        yield ["add", client * 10**12 + number]


class Load(Crowd):
    """Clients that write batch after batch, each when the one before was answered. Made by `running_load`.

    Without sessions, so that each batch stands in the log once at most: one whose outcome is unknown is never sent
    again. One that was provably not written is: the client's transport does that.
    """

    def __init__(self, servers: str, clients: int, commands_of: Callable[[int], Iterator[Command]], batch: int) -> None:
        super().__init__()
        self._servers = servers
        self._commands = [commands_of(client) for client in range(clients)]
        self._batch = batch
        self.not_written = 0

    @property
    def count(self) -> int:
        """How many commands are acknowledged. Raises what the clients died of."""
        self.raise_failure()
        return self.history.acknowledged

    def check(self, cluster: Cluster, *node_ids: str) -> None:
        """The verdict on these nodes (all, if none is named), of the arithmetic machine. Raises Wrong."""
        cluster.check(self.history, Classroom(), *node_ids)

    def wait_for_more(self, cluster: Cluster, commands: int) -> None:
        """Return when so many more commands are acknowledged than now."""
        goal = self.count + commands
        cluster.wait_until(f"{goal} commands are acknowledged", lambda: self.count >= goal)

    async def _all(self) -> None:
        transport = Transport(self._servers.split(","), PATIENCE_S)
        try:
            await asyncio.gather(*(self._write(transport, client) for client in range(len(self._commands))))
        finally:
            await transport.close()

    async def _write(self, transport: Transport, client: int) -> None:
        while not self.is_ending:
            commands = list(islice(self._commands[client], self._batch))
            body, headers = pack({"commands": commands}), {"Accept": MSGPACK, "Content-Type": MSGPACK}
            try:
                reply = document_of(
                    await transport.call("POST", "/commands", writes=True, body=body, headers=headers), dict[str, Any]
                )
            except OutcomeUnknown:
                self.history.unknown.append(commands)
            except Unavailable:
                self.not_written += 1
            else:
                self.history.answered.append(
                    Answered(commands, reply["results"], reply["index"], reply["epoch"], client)
                )


def running_load(
    cluster: Cluster,
    *,
    clients: int = 1,
    commands_of: Callable[[int], Iterator[Command]] = classroom_commands,
    batch: int = BATCH,
) -> Load:
    """A load on every node of the cluster."""
    return Load(cluster.servers, clients, commands_of, batch)
