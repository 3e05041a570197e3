"""Rule 13: which node should campaign. A node is nominated while PySyncObj leads there and hears a majority.

PySyncObj runs over the links to the peers, without sockets, threads, files or pickles. It may forget everything, or
elect two leaders or none: a nomination proves nothing, and without nominations voters campaign by themselves. If it
raises an exception, it is rebuilt.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import structlog

from quire.replication import next_tick

from .envelope import MAX_LOG_LENGTH, NotAdmitted, decode, encode
from .syncobj import Raft, RaftStatus, RaftTimes

REBUILD_PAUSE_S = 1.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ControlTimes:
    """The seconds between ticks, the seconds between those where PySyncObj leads, and its own times."""

    tick_s: float
    leading_tick_s: float
    raft: RaftTimes

    @classmethod
    def of_heartbeat(cls, heartbeat_s: float) -> "ControlTimes":
        """Times that find a candidate within a few heartbeats.

        They are shorter than a leader's election timeout. That is harmless: a nominated node campaigns only while it
        hears no leader.
        """
        return cls(
            tick_s=heartbeat_s / 2,
            leading_tick_s=heartbeat_s,  # Each has it ping, with the heartbeats of the log's leader.
            raft=RaftTimes(
                silence_min_s=2.5 * heartbeat_s,
                silence_max_s=5 * heartbeat_s,
                ping_s=heartbeat_s / 2,
                fallback_s=10 * heartbeat_s,
            ),
        )


class Control:
    """One voter's control plane. One event loop."""

    def __init__(
        self,
        node_id: str,
        others: Iterable[str],
        times: ControlTimes,
        send: Callable[[str, bytes], None],
        nominate: Callable[[bool], None],
        may_lead: Callable[[], bool],
        refused: Callable[[], None] = lambda: None,
    ) -> None:
        """`send` gets the messages to peers, `nominate` each change of the nomination.

        While `may_lead` is false the node sends nothing, so that another one is elected. `refused` is called for each
        message of a peer that is dropped.
        """
        self.nominated = False
        self._node_id = node_id
        self._others = frozenset(others)
        self._times = times
        self._send = send
        self._nominate = nominate
        self._may_lead = may_lead
        self._refused = refused
        self._connected: set[str] = set()
        self._raft: Raft | None = None
        self._is_spoilt = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to tick."""
        self._build()
        self._task = asyncio.create_task(self._run(), name="control plane")

    async def stop(self) -> None:
        """Stop; this node is no longer nominated."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self._drop()

    def status(self) -> RaftStatus | None:
        """PySyncObj's status; None while it is being rebuilt."""
        return self._raft.status() if self._raft else None

    def set_other_voters(self, others: Iterable[str]) -> None:
        """Set the other voters; if they change, PySyncObj is rebuilt (rule 13)."""
        if self._others != frozenset(others):
            self._others = frozenset(others)
            self._drop()

    # Links

    def peer_linked(self, node_id: str) -> None:
        """Messages to this node arrive from now on."""
        self._connected.add(node_id)
        if node_id in self._others:
            self._guarded(lambda raft: raft.connected(node_id))

    def peer_unlinked(self, node_id: str) -> None:
        """Messages to this node are lost from now on."""
        self._connected.discard(node_id)
        if node_id in self._others:
            self._guarded(lambda raft: raft.disconnected(node_id))

    def receive(self, node_id: str, data: bytes) -> None:
        """Take a message of another voter's control plane; an invalid one is dropped and counted."""
        if node_id not in self._others:
            return
        try:
            message = decode(data)
            if self._raft is not None:
                self._raft.received(node_id, message)
        except NotAdmitted as error:
            self._refused()
            log.warning("a message to the control plane was dropped", peer=node_id, why=str(error))
        except Exception as error:  # noqa: BLE001  # Whatever it is, it is the peer's doing, and no fault to trace here.
            self._refused()
            log.warning("a message made PySyncObj fail, which is rebuilt", peer=node_id, why=repr(error))
            self._drop()

    def _send_message(self, node_id: str, message: Mapping[str, object]) -> None:
        try:
            data = encode(message)
        except NotAdmitted as error:
            # A peer's message broke its state: it would fail again at every ping and never nominate anyone.
            self._is_spoilt = True
            log.warning("PySyncObj tried to send a message that it may not send", peer=node_id, why=str(error))
        else:
            self._send(node_id, data)

    # PySyncObj

    def _build(self) -> None:
        try:
            raft = Raft(self._node_id, self._others, self._times.raft, self._send_message)
            for node_id in self._connected & self._others:
                raft.connected(node_id)
        except Exception:
            log.exception("PySyncObj did not start and is rebuilt")
        else:
            self._raft = raft

    async def _run(self) -> None:
        while True:
            if self._is_spoilt or not self._may_lead():
                self._drop()
            elif self._raft is None:
                await asyncio.sleep(REBUILD_PAUSE_S)
                self._build()
            self._guarded(self._tick)
            await next_tick(self._times.leading_tick_s if self.nominated else self._times.tick_s)

    def _tick(self, raft: Raft) -> None:
        raft.tick()
        status = raft.status()
        self._set_nominated(status.leads and status.has_quorum)
        if status.log_length > MAX_LOG_LENGTH:
            self._drop()

    def _set_nominated(self, nominated: bool) -> None:
        if nominated != self.nominated:
            self.nominated = nominated
            self._nominate(nominated)

    def _guarded(self, block: Callable[[Raft], None]) -> None:
        """Run `block`; an exception of PySyncObj never stops the node."""
        if self._raft is None:
            return
        try:
            block(self._raft)
        except Exception:
            log.exception("PySyncObj failed and is rebuilt")
            self._drop()

    def _drop(self) -> None:
        raft, self._raft, self._is_spoilt = self._raft, None, False
        self._set_nominated(False)
        try:
            if raft is not None:
                raft.destroy()
        except Exception:
            log.exception("PySyncObj failed while it was stopped")
