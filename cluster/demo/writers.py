"""Clients that write without a pause, and their record of what was acknowledged: to be held against the log."""

import asyncio
import time
from itertools import count
from typing import NamedTuple

from ..cli.status import Rows
from ..client import Client, connect

BATCH_COMMANDS = 5
PATIENCE_S = 60.0
APART = 10**9  # Between the operands of two clients: no two commands are equal, so each can be found in the log.

Command = list[int | str]


class Acknowledged(NamedTuple):
    """A batch that a client was told stands at [index, index + len(commands)); `at` in monotonic seconds."""

    at: float
    index: int  # type: ignore[assignment]  # It hides tuple.index, which nobody needs here.
    epoch: int
    commands: list[Command]


class Writers:
    """So many clients, each with a session of its own; `run` until `end`."""

    def __init__(self, servers: str, clients: int, batch_commands: int = BATCH_COMMANDS) -> None:
        self.record: list[Acknowledged] = []
        self._servers = servers
        self._clients = clients
        self._batch_commands = batch_commands
        self._ending = False
        self._awaited: list[tuple[int, int, asyncio.Future[Acknowledged]]] = []

    async def run(self) -> None:
        """Write until `end`; each command was acknowledged then, or this raises what its client raised."""
        await asyncio.gather(*map(self._write, range(self._clients)))

    def end(self) -> None:
        """Send nothing more."""
        self._ending = True

    async def acknowledged(self, commands: int, above_epoch: int = -1) -> Acknowledged:
        """The batch that is acknowledged as this many commands are, counted from now, in epochs above `above_epoch`."""
        awaited: asyncio.Future[Acknowledged] = asyncio.get_running_loop().create_future()
        self._awaited.append((commands, above_epoch, awaited))
        return await awaited

    @property
    def commands(self) -> int:
        """How many are acknowledged."""
        return sum(len(batch.commands) for batch in self.record)

    @property
    def sum(self) -> int:
        """What all that is acknowledged adds to the state."""
        return sum(int(command[1]) for batch in self.record for command in batch.commands)

    async def _write(self, number: int) -> None:
        async with connect(self._servers, timeout_s=PATIENCE_S) as client:
            operands = count(number * APART)
            while not self._ending:
                commands: list[Command] = [["add", next(operands)] for _ in range(self._batch_commands)]
                reply = await client.apply_batch(commands)
                self._note(Acknowledged(time.monotonic(), reply.index, reply.epoch, commands))

    def _note(self, batch: Acknowledged) -> None:
        self.record.append(batch)
        awaited, self._awaited = self._awaited, []
        for commands, above_epoch, future in awaited:
            left = commands - len(batch.commands) if batch.epoch > above_epoch else commands
            if left > 0:
                self._awaited.append((left, above_epoch, future))
            elif not future.done():
                future.set_result(batch)

    async def lost(self, client: Client, from_index: int = 0) -> int:
        """How many acknowledged commands do not stand in the log where their client was told that they do.

        Only what stands at `from_index` and above is looked at: where the log has expired, the state alone tells.
        """
        values = {record.index: record.value async for record in client.read_range(from_index)}
        return sum(
            values.get(batch.index + place) != command
            for batch in self.record
            for place, command in enumerate(batch.commands)
            if batch.index + place >= from_index
        )


def differences_in(rows: Rows, acknowledged: int, lost: int, off: int) -> list[str]:
    """What is not as it must be, in words: acknowledged commands lost, the state off by so much, nodes that differ."""
    found = [f"acknowledged commands lost: {lost} of {acknowledged:,}"] if lost else []
    if off:
        found.append(f"the state is off by {off:,}: a command executed twice, or not at all")
    for name in ("applied_index", "digest"):
        values = {node_id: row.status[name] for node_id, row in rows.items() if row.status}
        if len(set(values.values())) != 1 or len(values) < len(rows):
            found.append(f"{name} differs: {values}")
    return found
