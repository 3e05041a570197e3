"""A simulated node's sockets: each message is an action before which the node may die."""

from collections.abc import Callable

from quire.replication.core import actions
from quire.replication.core.messages import Ack, CrcMismatch, Open, OpenAnswer, PeerMessage
from quire.replication.net.wire import Shipment

from ..network import Network
from .life import Life


class SimSockets:
    """The driver's `Sockets`: sends what the checks have seen."""

    def __init__(self, life: Life, network: Network, before: Callable[[], None]) -> None:
        """`before` announces each action."""
        self._node = life.node
        self._checks = life.checks
        self._network = network
        self._before = before

    def send(self, node_id: str, message: PeerMessage) -> None:
        self._before()
        self._checks.sent(self._node, message)
        self._network.send(self._node, node_id, message)

    def dial_stream(self, action: actions.DialStream) -> None:
        self._before()
        self._network.dial_stream(self._node, action)

    def send_up(self, stream_id: int, message: Open | Ack | CrcMismatch) -> None:
        self._before()
        if (stream := self._node.upstreams.get(stream_id)) is not None:
            if isinstance(message, Ack):
                leader_id = stream.leader.node_id if stream.leader.life == stream.leader_life else ""
                self._checks.acknowledged(self._node, message, stream.promise_epoch, leader_id)
            self._network.send_up(stream, message)

    def send_down(self, stream_id: int, message: OpenAnswer | Shipment) -> bool:
        self._before()
        stream = self._node.downstreams.get(stream_id)
        return stream is not None and self._network.send_down(stream, message)

    def close_stream(self, stream_id: int) -> None:
        node = self._node
        stream = node.upstreams.get(stream_id) or node.downstreams.get(stream_id)
        if stream is not None:
            self._network.close_stream(node, stream)
