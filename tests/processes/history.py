"""Clients that write and read until they are told to stop, and the history of it, which a checker judges."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from typing import Any

from quire.cluster.client import Client, OutcomeUnknown, Unavailable, connect
from tests.linear.checker import NEVER, UNKNOWN, Operation, check_linearizable, step_sum
from tests.processes.cluster import DEADLINE_S, Cluster

CLIENTS = 4
PATIENCE_S = 30.0
APART = 10**9  # Between the operands of two clients: no two writes are equal, so no state comes twice.
READS = 3  # Every third operation is a read.
INITIAL = 42


class Recording:
    """Clients with sessions, each with one operation under way; made by `recording`."""

    def __init__(self, servers: list[str], clients: int) -> None:
        self._servers = servers
        self._clients = clients
        self._ending = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="recording", daemon=True)
        self.history: list[Operation] = []
        self.not_executed = 0

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def count(self) -> int:
        """How many operations were answered. Raises what a client died of."""
        if self._failure is not None:
            raise self._failure
        return len(self.history)

    @property
    def unknown(self) -> int:
        """How many ended without anybody knowing whether they were executed."""
        return sum(operation.answer is UNKNOWN for operation in self.history)

    def wait_for_more(self, cluster: Cluster, operations: int = 100) -> None:
        """Return when every client was answered again, and all of them together so often."""
        goal, before = self.count + operations, len(self.history)

        def went_on() -> bool:
            clients = {operation.client for operation in self.history[before:]}
            return self.count >= goal and len(clients) == self._clients

        cluster.wait_until(f"every client goes on, to {goal} operations", went_on)

    def end(self) -> None:
        """Let every client end its operation. Raises what they died of."""
        self._ending.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), f"the clients did not end within {DEADLINE_S:g} s"
        if self._failure is not None:
            raise self._failure

    def abandon(self) -> None:
        """Ask the clients to end; waits no longer than an operation may take."""
        self._ending.set()
        self._thread.join(DEADLINE_S)

    def check(self, cluster: Cluster) -> None:
        """End; what every node answers then, and all that was answered before, is linearizable."""
        self.end()
        statuses = cluster.wait_for_equal()
        for node in cluster:
            began = time.monotonic()
            state = node.local_state()["state"]  # All that was committed is applied: it can be no older.
            self.history.append(Operation(-1, None, state, began, time.monotonic()))
        assert all(not status["alarms"] for status in statuses.values()), statuses
        check_linearizable(self.history, INITIAL, step_sum)

    def _run(self) -> None:
        try:
            asyncio.run(self._all())
        except BaseException as error:  # noqa: BLE001  # Raised again where the test asks.
            self._failure = error

    async def _all(self) -> None:
        await asyncio.gather(*map(self._one, range(self._clients)))

    async def _one(self, client: int) -> None:
        first = client % len(self._servers)
        servers = self._servers[first:] + self._servers[:first]
        async with connect(servers, timeout_s=PATIENCE_S) as connection:
            for number in count(client * APART):
                if self._ending.is_set():
                    return
                await self._ask(connection, client, None if number % READS == 0 else ["add", number])

    async def _ask(self, connection: Client, client: int, asked: Any) -> None:
        began = time.monotonic()
        try:
            answer = (await connection.state()).state if asked is None else await connection.apply(asked)
        except Unavailable:
            self.not_executed += 1
        except OutcomeUnknown:
            self.history.append(Operation(client, asked, UNKNOWN, began, NEVER))
        else:
            self.history.append(Operation(client, asked, answer, began, time.monotonic()))


@contextmanager
def recording(cluster: Cluster, clients: int = CLIENTS) -> Generator[Recording]:
    """Clients on every node of the cluster, ended whatever happens inside."""
    clients_of = Recording([node.address for node in cluster], clients)
    clients_of.start()
    try:
        yield clients_of
    finally:
        clients_of.abandon()


def rounds(default: int) -> int:
    """How often a test does what it does; by hand more: FAILOVER_ROUNDS=50 pytest tests/processes/test_failover.py."""
    return int(os.environ.get("FAILOVER_ROUNDS", default))
