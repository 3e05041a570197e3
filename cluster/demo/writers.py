"""The demo's workload: clients that write without pause, and their record of what was acknowledged."""

import asyncio
import time
from itertools import count
from typing import NamedTuple

from ..cli.nodes.rows import Rows
from ..client import Client, connect

BATCH_COMMANDS = 5
PATIENCE_S = 60.0
APART = 10**9  # Between the operands of two clients, so that no two commands are equal.

Command = list[int | str]


class Acknowledged(NamedTuple):
    """A batch acknowledged at [index, index + len(commands)); `at` is in monotonic seconds.

    `index` is None if the answer was a repeated one: the batch is somewhere in the log.
    """

    at: float
    index: int | None  # type: ignore[assignment]  # It hides tuple.index, which is not used here.
    epoch: int
    commands: list[Command]


class Writers:
    """A number of clients, each with its own session, that write from `run` to `end`."""

    def __init__(self, servers: str, clients: int, batch_commands: int = BATCH_COMMANDS) -> None:
        self.record: list[Acknowledged] = []
        self._servers = servers
        self._clients = clients
        self._batch_commands = batch_commands
        self._ending = False
        self._awaited: list[tuple[int, int, asyncio.Future[Acknowledged]]] = []

    async def run(self) -> None:
        """Write until `end`, and until every command is acknowledged. Raises what a client raises."""
        await asyncio.gather(*map(self._write, range(self._clients)))

    def end(self) -> None:
        """Stop sending."""
        self._ending = True

    async def acknowledged(self, commands: int, above_epoch: int = -1) -> Acknowledged:
        """Wait for this many more acknowledged commands, of epochs above `above_epoch`; return the last batch."""
        awaited: asyncio.Future[Acknowledged] = asyncio.get_running_loop().create_future()
        self._awaited.append((commands, above_epoch, awaited))
        return await awaited

    @property
    def commands(self) -> int:
        """The number of acknowledged commands."""
        return sum(len(batch.commands) for batch in self.record)

    @property
    def sum(self) -> int:
        """The sum that the acknowledged commands add to the state."""
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
        """The number of acknowledged commands that the log does not hold at the acknowledged index.

        Checks indices from `from_index` on. Where the log has expired, only the state can show a loss. A batch without
        an index may be anywhere, so it is looked for only in the whole log.
        """
        values = {record.index: record.value async for record in client.read_range(from_index)}
        somewhere = {tuple(value) for value in values.values() if isinstance(value, list)}
        lost = 0
        for batch in self.record:
            if batch.index is not None:
                logged = enumerate(batch.commands, batch.index)
                lost += sum(values.get(index) != command for index, command in logged if index >= from_index)
            elif from_index == 0:
                lost += sum(tuple(command) not in somewhere for command in batch.commands)
        return lost


def differences_in(rows: Rows, acknowledged: int, lost: int, off: int) -> list[str]:
    """What is wrong, in sentences: lost commands, a wrong state, nodes that differ. Empty if nothing is."""
    found = [f"acknowledged commands lost: {lost} of {acknowledged:,}"] if lost else []
    if off:
        found.append(f"the state is off by {off:,}: a command was executed twice or not at all")
    for name in ("applied_index", "digest"):
        values = {node_id: row.status[name] for node_id, row in rows.items() if row.status}
        if len(set(values.values())) != 1 or len(values) < len(rows):
            found.append(f"{name} differs: {values}")
    return found
