"""Rule 13: who should try to lead. A level, told on each change: PySyncObj leads here and hears a majority.

PySyncObj runs on the peers' links, without sockets, threads, files or pickles. It may forget all that it knew, elect
two leaders or none: a nomination proves nothing, and where it is missing the voters stand by themselves. If it raises,
it is made anew.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from .envelope import NotAdmitted, decode, encode
from .syncobj import Raft, RaftStatus, RaftTimes

MAX_LOG_LENGTH = 10_000  # One no-op an election; above it PySyncObj begins anew, which costs one election.
REBUILD_PAUSE_S = 1.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ControlTimes:
    """Seconds between ticks, and PySyncObj's own times."""

    tick_s: float
    raft: RaftTimes

    @classmethod
    def of_heartbeat(cls, heartbeat_s: float) -> "ControlTimes":
        """Times that find a candidate within a few heartbeats.

        Shorter than a leader's election timeout, since a candidate that comes too early harms nobody: it stands only
        while no leader is heard.
        """
        return cls(
            tick_s=heartbeat_s / 5,
            raft=RaftTimes(
                silence_min_s=2.5 * heartbeat_s,
                silence_max_s=5 * heartbeat_s,
                ping_s=heartbeat_s / 2,
                fallback_s=10 * heartbeat_s,
            ),
        )


class Control:
    """One voter's control plane, on one event loop."""

    def __init__(
        self,
        node_id: str,
        others: Iterable[str],
        times: ControlTimes,
        send: Callable[[str, bytes], None],
        nominate: Callable[[bool], None],
        fit: Callable[[], bool],
    ) -> None:
        """`send` and `nominate` are told; while the node is not `fit` to lead it is silent, and another is elected."""
        self.nominated = False
        self._node_id = node_id
        self._others = frozenset(others)
        self._times = times
        self._send = send
        self._nominate = nominate
        self._fit = fit
        self._connected: set[str] = set()
        self._raft: Raft | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to tick."""
        self._build()
        self._task = asyncio.create_task(self._run(), name="control plane")

    async def stop(self) -> None:
        """Take no further part; this node is nominated no longer."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self._drop()

    def status(self) -> RaftStatus | None:
        """What PySyncObj says; None while it is being made anew."""
        return self._raft.status() if self._raft else None

    def regroup(self, others: Iterable[str]) -> None:
        """From now on these are the other voters: PySyncObj is made anew for them (rule 13)."""
        if self._others != frozenset(others):
            self._others = frozenset(others)
            self._drop()

    # Links

    def peer_linked(self, node_id: str) -> None:
        """What is said to this node arrives."""
        self._connected.add(node_id)
        if node_id in self._others:
            self._guarded(lambda raft: raft.connected(node_id))

    def peer_unlinked(self, node_id: str) -> None:
        """It is lost."""
        self._connected.discard(node_id)
        if node_id in self._others:
            self._guarded(lambda raft: raft.disconnected(node_id))

    def told(self, node_id: str, data: bytes) -> None:
        """Take what a voter's control plane said; what is no message of it is dropped."""
        if node_id not in self._others:
            return
        try:
            message = decode(data)
        except NotAdmitted as error:
            log.warning("a message to the control plane was dropped", peer=node_id, why=str(error))
            return
        self._guarded(lambda raft: raft.received(node_id, message))

    def _say(self, node_id: str, message: Mapping[str, Any]) -> None:
        try:
            data = encode(message)
        except NotAdmitted as error:
            log.warning("PySyncObj asked for more than it may say", peer=node_id, why=str(error))
        else:
            self._send(node_id, data)

    # PySyncObj

    def _build(self) -> None:
        try:
            raft = Raft(self._node_id, self._others, self._times.raft, self._say)
            for node_id in self._connected & self._others:
                raft.connected(node_id)
        except Exception:
            log.exception("PySyncObj did not begin and is made anew")
        else:
            self._raft = raft

    async def _run(self) -> None:
        while True:
            if not self._fit():
                self._drop()
            elif self._raft is None:
                await asyncio.sleep(REBUILD_PAUSE_S)
                self._build()
            self._guarded(self._tick)
            await asyncio.sleep(self._times.tick_s)

    def _tick(self, raft: Raft) -> None:
        raft.tick()
        status = raft.status()
        self._level(status.leads and status.has_quorum)
        if status.log_length > MAX_LOG_LENGTH:
            self._drop()

    def _level(self, nominated: bool) -> None:
        if nominated != self.nominated:
            self.nominated = nominated
            self._nominate(nominated)

    def _guarded(self, block: Callable[[Raft], None]) -> None:
        """Nothing that PySyncObj raises ends a node: it only suggests."""
        if self._raft is None:
            return
        try:
            block(self._raft)
        except Exception:
            log.exception("PySyncObj failed and is made anew")
            self._drop()

    def _drop(self) -> None:
        raft, self._raft = self._raft, None
        self._level(False)
        try:
            if raft is not None:
                raft.destroy()
        except Exception:
            log.exception("PySyncObj did not end well")
