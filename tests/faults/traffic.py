"""A scenario's clients, in a thread of their own: their load, and the record of what they were told.

Writers add numbers no two of which are equal, each in a session of its own, one command under way. A reader is bound to
each node and asks it for the sum, linearizably, again and again: if a node that no longer leads answers from the past,
it is asked while it does. A bulk writer, where there is one, adds padded zeros, most of a megabyte a batch, several
batches under way.

Where it is measured for how long nothing is committed, a steady writer is bound to each node, too. It adds padded
zeros, gives an attempt up soon, and makes the next one whatever became of it: so what it is told shows what the cluster
does, and not how patient a client is.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from itertools import count
from typing import Any

import aiohttp

from quire.cluster.client import Client, ClientError, OutcomeUnknown, Unavailable
from tests.processes.cluster import Cluster
from tests.processes.crowd import Crowd
from tests.processes.locked import CallerFiles
from tests.verdict.linearizable import NEVER, UNKNOWN, Operation
from tests.verdict.verdict import Answered, Wrong

WRITERS = 3
PATIENCE_S = 30.0
READ_PATIENCE_S = 1.0
APART = 10**9  # Between the operands of two writers.
BULK: list[Any] = [["add", 0, "0" * 10_000]] * 90  # They change nothing.
NO_BULK: list[Any] = []
BULK_AT_ONCE = 4
STEADY: list[Any] = ["add", 0, "0" * 16_000]
STEADY_PATIENCE_S = 1.0
STEADY_PAUSE_S = 0.03


class Traffic(Crowd):
    """Clients on all these addresses. `bulk` is a batch that is added again and again, or NO_BULK."""

    def __init__(self, addresses: Sequence[str], caller: CallerFiles, *, bulk: list[Any], steady: bool = False) -> None:
        super().__init__()
        self._addresses = list(addresses)
        self._caller = caller
        self.bulk = bulk
        self._is_steady = steady
        self.answered: dict[int, float] = {}  # When each client was answered last.

    @property
    def clients(self) -> int:
        """How many writers and readers there are."""
        return WRITERS + len(self._addresses)

    def longest_wait_s(self, began: float, ended: float) -> float:
        """The longest time for which one command of a writer waited between these times, its retries included."""
        writes = [each for each in self.history.operations if each.asked is not None]
        return max(0.0, *(min(each.ended, ended) - max(each.began, began) for each in writes))

    def wait_until_all_were_answered(self, cluster: Cluster, since: float) -> None:
        """Return when every writer and reader was answered what it asked since then. Raises what one died of."""

        def all_were() -> bool:
            self.raise_failure()
            return sum(began >= since for began in list(self.answered.values())) == self.clients

        cluster.wait_until("every client is answered again", all_were)

    def first_acknowledged(self, since: float) -> float | None:
        """When the first acknowledgement came since then; None if none has. Raises what a client died of."""
        self.raise_failure()
        return min((each.ended for each in list(self.history.answered) if each.ended >= since), default=None)

    async def _all(self) -> None:
        async with asyncio.TaskGroup() as clients:
            for writer in range(WRITERS):
                clients.create_task(self._write(writer))
            for number, address in enumerate(self._addresses, WRITERS):
                clients.create_task(self._read(number, address))
                if self._is_steady:
                    clients.create_task(self._write_steadily(number, address))
            if self.bulk:
                clients.create_task(self._write_bulk())

    async def _write(self, number: int) -> None:
        first = number % len(self._addresses)
        servers = self._addresses[first:] + self._addresses[:first]
        async with self._caller.connect(servers, timeout_s=PATIENCE_S) as client:
            for operand in count(number * APART + 1):
                if self.is_ending:
                    return
                await self._add(client, number, ["add", operand])

    async def _add(self, client: Client, number: int, command: list[Any]) -> None:
        began = time.monotonic()
        try:
            reply = await client.apply_batch([command])
        except Unavailable:
            return  # Provably not executed.
        except OutcomeUnknown:
            self.history.operations.append(Operation(number, command, UNKNOWN, began, NEVER))
            self.history.unknown.append([command])
            return
        except ClientError as error:
            raise Wrong(f"the session of client {number} was told, at {command}: {error}") from error
        ended = time.monotonic()
        self.history.operations.append(Operation(number, command, reply.results[0], began, ended))
        self.history.answered.append(Answered([command], reply.results, reply.index, reply.epoch, number, ended=ended))
        self.answered[number] = began

    async def _read(self, number: int, address: str) -> None:
        async with self._caller.connect([address], timeout_s=READ_PATIENCE_S) as client:
            while not self.is_ending:
                began = time.monotonic()
                try:
                    state = await client.state(server=address)
                except ClientError:
                    await asyncio.sleep(0)
                    continue  # A read that was not answered says nothing.
                self.history.operations.append(Operation(number, None, state.state, began, time.monotonic()))
                self.answered[number] = began

    async def _write_steadily(self, number: int, address: str) -> None:
        shown = self._caller.shown()
        body, headers = json.dumps({"commands": [STEADY]}), {"Content-Type": "application/json", **shown.headers}
        url, context, name = shown.url(address, "/commands"), shown.context or True, shown.server_name
        patience = aiohttp.ClientTimeout(total=STEADY_PATIENCE_S)
        async with aiohttp.ClientSession(timeout=patience) as http:
            while not self.is_ending:
                answered: Answered | None = None
                with suppress(aiohttp.ClientError, TimeoutError):
                    async with http.post(url, data=body, headers=headers, ssl=context, server_hostname=name) as reply:
                        if reply.status == HTTPStatus.OK:
                            told = await reply.json()
                            where = (told["index"], told["epoch"], number)
                            answered = Answered([STEADY], told["results"], *where, ended=time.monotonic())
                if answered is not None:
                    self.history.answered.append(answered)
                else:
                    self.history.unknown.append([STEADY])
                await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=STEADY_PAUSE_S)

    async def _write_bulk(self) -> None:
        async with self._caller.connect(self._addresses, timeout_s=PATIENCE_S) as client:
            lanes = [self._write_padded(client) for _ in range(BULK_AT_ONCE)]
            await asyncio.gather(*lanes)

    async def _write_padded(self, client: Client) -> None:
        while not self.is_ending:
            try:
                reply = await client.apply_batch(self.bulk)
            except Unavailable:
                continue  # Provably not executed.
            except OutcomeUnknown:
                self.history.unknown.append(self.bulk)
                continue
            ended = time.monotonic()
            self.history.answered.append(Answered(self.bulk, [], reply.index, reply.epoch, ended=ended))
