"""PySyncObj, typed: the one module that imports it.

What of it is used: elections. `Raft` has no replicated methods, no journal or dump on disk, no thread and no sockets of
its own; whoever owns it ticks it, carries its messages and tells it who is connected.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from .envelope import MAX_NO_OPS

LEADER = 2  # PySyncObj's raft state
NEVER_S = 1e9


@dataclass(frozen=True, slots=True)
class RaftTimes:
    """Seconds: an election begins after a silence of `silence_min_s` to `silence_max_s`."""

    silence_min_s: float
    silence_max_s: float
    ping_s: float
    fallback_s: float


class RaftStatus(NamedTuple):
    """What PySyncObj's `getStatus()` says that matters here. `leader` may be long gone: an isolated node keeps it."""

    leads: bool
    has_quorum: bool
    leader: str | None
    term: int
    log_length: int


class _PeerTransport(Transport):  # type: ignore[misc]  # PySyncObj has no types
    """Carries messages over the peers' links, which others keep."""

    def __init__(self, send: Callable[[str, Mapping[str, Any]], None]) -> None:
        super().__init__(None, None, [])
        self._send = send

    @property
    def ready(self) -> Literal[True]:
        return True

    def send(self, node: Node, message: Mapping[str, Any]) -> bool:
        self._send(node.id, message)
        return True

    def connected(self, node: Node) -> None:
        self._onNodeConnected(node)

    def disconnected(self, node: Node) -> None:
        self._onNodeDisconnected(node)

    def received(self, node: Node, message: dict[str, Any]) -> None:
        self._onMessageReceived(node, message)

    def destroy(self) -> None:
        self.setOnMessageReceivedCallback(None)
        self.setOnNodeConnectedCallback(None)
        self.setOnNodeDisconnectedCallback(None)


class Raft:
    """One node's part in PySyncObj's elections. Any method may raise what PySyncObj raises."""

    def __init__(
        self,
        node_id: str,
        others: Iterable[str],
        times: RaftTimes,
        send: Callable[[str, Mapping[str, Any]], None],
    ) -> None:
        conf = SyncObjConf(
            autoTick=False,
            raftMinTimeout=times.silence_min_s,
            raftMaxTimeout=times.silence_max_s,
            appendEntriesPeriod=times.ping_s,
            leaderFallbackTimeout=times.fallback_s,
            appendEntriesBatchSizeBytes=MAX_NO_OPS,  # a no-op has one byte
            # Its compaction would make dumps, which no message here can carry; the owner bounds the log instead.
            logCompactionMinEntries=int(NEVER_S),
            logCompactionMinTime=NEVER_S,
            dynamicMembershipChange=False,
            commandsWaitLeader=False,
        )
        self._nodes = {other: Node(other) for other in others}
        self._transport = _PeerTransport(send)
        self._raft = SyncObj(Node(node_id), list(self._nodes.values()), conf=conf, transport=self._transport)

    def connected(self, node_id: str) -> None:
        """Messages to this node arrive."""
        self._transport.connected(self._nodes[node_id])

    def disconnected(self, node_id: str) -> None:
        """They are lost."""
        self._transport.disconnected(self._nodes[node_id])

    def received(self, node_id: str, message: dict[str, Any]) -> None:
        """Hand over what a node said."""
        self._transport.received(self._nodes[node_id], message)

    def tick(self) -> None:
        """Let time pass: elections, pings."""
        self._raft.doTick(0)

    def status(self) -> RaftStatus:
        """Where it stands. Polled, since PySyncObj's callbacks miss a change from one leader to another."""
        status = self._raft.getStatus()
        leader = status["leader"]
        return RaftStatus(
            leads=status["state"] == LEADER,
            has_quorum=bool(status["has_quorum"]),
            leader=None if leader is None else leader.id,
            term=status["raft_term"],
            log_length=status["log_len"],
        )

    def destroy(self) -> None:
        """Give back what it holds."""
        self._raft.destroy()
