"""PySyncObj, typed: the one module that imports it.

Only its elections are used. `Raft` has no replicated methods, no journal or dump on disk, no thread and no sockets: its
owner ticks it, carries its messages and tells it which nodes are connected.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from .envelope import MAX_NO_OPS, NotAdmitted

LEADER = 2  # PySyncObj's raft state
NEVER_S = 1e9


@dataclass(frozen=True, slots=True)
class RaftTimes:
    """In seconds. An election starts after `silence_min_s` to `silence_max_s` without a leader."""

    silence_min_s: float
    silence_max_s: float
    ping_s: float
    fallback_s: float


class RaftStatus(NamedTuple):
    """The part of PySyncObj's `getStatus()` used here. `leader` may be outdated: an isolated node keeps it."""

    leads: bool
    has_quorum: bool
    leader: str | None
    term: int
    log_length: int


class _PeerTransport(Transport):  # type: ignore[misc]  # PySyncObj is untyped.
    """Carries messages over the links to the peers, which it does not own."""

    def __init__(self, send: Callable[[str, Mapping[str, object]], None]) -> None:
        super().__init__(None, None, [])
        self._send = send

    @property
    def ready(self) -> Literal[True]:
        return True

    def send(self, node: Node, message: Mapping[str, object]) -> bool:
        self._send(node.id, message)
        return True

    def connected(self, node: Node) -> None:
        self._onNodeConnected(node)

    def disconnected(self, node: Node) -> None:
        self._onNodeDisconnected(node)

    def received(self, node: Node, message: Mapping[str, object]) -> None:
        self._onMessageReceived(node, message)

    def destroy(self) -> None:
        self.setOnMessageReceivedCallback(None)
        self.setOnNodeConnectedCallback(None)
        self.setOnNodeDisconnectedCallback(None)


class Raft:
    """One node's part in PySyncObj's elections. Any method may raise anything that PySyncObj raises."""

    def __init__(
        self,
        node_id: str,
        others: Iterable[str],
        times: RaftTimes,
        send: Callable[[str, Mapping[str, object]], None],
    ) -> None:
        conf = SyncObjConf(
            autoTick=False,
            raftMinTimeout=times.silence_min_s,
            raftMaxTimeout=times.silence_max_s,
            appendEntriesPeriod=times.ping_s,
            leaderFallbackTimeout=times.fallback_s,
            appendEntriesBatchSizeBytes=MAX_NO_OPS,  # A no-op has one byte.
            # No compaction: it makes dumps, which have no encoding here. The owner bounds the log instead.
            logCompactionMinEntries=int(NEVER_S),
            logCompactionMinTime=NEVER_S,
            dynamicMembershipChange=False,
            commandsWaitLeader=False,
        )
        self._nodes = {other: Node(other) for other in others}
        self._transport = _PeerTransport(send)
        self._raft = SyncObj(Node(node_id), list(self._nodes.values()), conf=conf, transport=self._transport)

    def connected(self, node_id: str) -> None:
        """Messages to this node arrive from now on."""
        self._transport.connected(self._nodes[node_id])

    def disconnected(self, node_id: str) -> None:
        """Messages to this node are lost from now on."""
        self._transport.disconnected(self._nodes[node_id])

    def received(self, node_id: str, message: Mapping[str, object]) -> None:
        """Take a decoded message from a node.

        Raises:
            NotAdmitted: it answers a leader with an index that is not in its log; nothing was done.
        """
        if message["type"] == "next_node_idx":
            self._check_next_index(cast("int", message["next_node_idx"]))
        self._transport.received(self._nodes[node_id], message)

    def _check_next_index(self, next_index: int) -> None:
        # Its pings begin at the next index of each peer, and fail where it has no entry before that.
        status = self.status()
        following = status.log_length + 1
        if status.leads and not 2 <= next_index <= following:
            raise NotAdmitted(f"the next index is {next_index}, and is from 2 to {following}")

    def tick(self) -> None:
        """Do what is due: elections, pings."""
        self._raft.doTick(0)

    def status(self) -> RaftStatus:
        """The current status. It is polled, because PySyncObj's callbacks miss a change from one leader to another."""
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
        """Release its resources."""
        self._raft.destroy()
