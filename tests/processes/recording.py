"""Clients that write and read until they are stopped; then their answers are checked."""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from itertools import count
from typing import Any

from quire.cluster.client import Client, OutcomeUnknown, Unavailable
from tests.processes.cluster import Cluster, Node
from tests.processes.crowd import Crowd
from tests.processes.load import Classroom
from tests.processes.locked import CallerFiles
from tests.verdict.linearizable import NEVER, UNKNOWN, Operation, check_linearizable, step_sum
from tests.verdict.verdict import Answered

CLIENTS = 4
PATIENCE_S = 30.0
APART = 10**9  # Between the operands of two clients: no two writes are equal, so no state comes twice.
READS = 3  # Every third operation is a read.
INITIAL = 42


class Recording(Crowd):
    """Clients with sessions, each with one operation under way; made by `recording`."""

    def __init__(self, servers: list[str], caller: CallerFiles, clients: int) -> None:
        super().__init__()
        self._servers = servers
        self._caller = caller
        self._clients = clients
        self.not_executed = 0

    @property
    def count(self) -> int:
        """How many operations were answered. Raises what a client died of."""
        self.raise_failure()
        return len(self.history.operations)

    @property
    def unknown(self) -> int:
        """How many ended without anybody knowing whether they were executed."""
        return sum(operation.answer is UNKNOWN for operation in self.history.operations)

    def wait_for_more(self, cluster: Cluster, operations: int = 100) -> None:
        """Return when every client was answered again, and all of them together so often."""
        goal, before = self.count + operations, len(self.history.operations)

        def went_on() -> bool:
            clients = {operation.client for operation in self.history.operations[before:]}
            return self.count >= goal and len(clients) == self._clients

        cluster.wait_until(f"every client goes on, to {goal} operations", went_on)

    def check(self, cluster: Cluster) -> None:
        """End; all that was answered is in every log once, and linearizable with what every node answers then."""
        self.end()
        cluster.check(self.history, Classroom())
        for node in cluster:
            began = time.monotonic()
            state = node.local_state()["state"]  # All that was committed is applied: it can be no older.
            self.history.operations.append(Operation(-1, None, state, began, time.monotonic()))
        for node in cluster:  # A disk that was slow for a moment is told of for a few election timeouts.
            cluster.wait_until(f"{node.node_id} has no alarm", partial(_has_no_alarm, node))
        check_linearizable(self.history.operations, INITIAL, step_sum)

    async def _all(self) -> None:
        await asyncio.gather(*map(self._one, range(self._clients)))

    async def _one(self, client: int) -> None:
        first = client % len(self._servers)
        servers = self._servers[first:] + self._servers[:first]
        async with self._caller.connect(servers, timeout_s=PATIENCE_S) as connection:
            for number in count(client * APART):
                if self.is_ending:
                    return
                await self._ask(connection, client, None if number % READS == 0 else ["add", number])

    async def _ask(self, connection: Client, client: int, asked: Any) -> None:
        began = time.monotonic()
        told = self.history
        try:
            if asked is None:
                answer = (await connection.state()).state
            else:
                reply = await connection.apply_batch([asked])
                answer = reply.results[0]
                told.answered.append(Answered([asked], reply.results, reply.index, reply.epoch, client))
        except Unavailable:
            self.not_executed += 1
        except OutcomeUnknown:
            told.operations.append(Operation(client, asked, UNKNOWN, began, NEVER))
            told.unknown += [] if asked is None else [[asked]]
        else:
            told.operations.append(Operation(client, asked, answer, began, time.monotonic()))


def _has_no_alarm(node: Node) -> bool:
    return not node.alarms()


def recording(cluster: Cluster, clients: int = CLIENTS) -> Recording:
    """Clients on every node of the cluster."""
    return Recording([node.address for node in cluster], cluster.caller, clients)


def rounds(default: int) -> int:
    """How often a test does what it does; by hand more: FAILOVER_ROUNDS=50 pytest tests/processes/test_failover.py."""
    return int(os.environ.get("FAILOVER_ROUNDS", default))
