"""What must hold beside the verdict (`tests/verdict`): of committed logs, of operators' calls, of what a node keeps."""

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any

from quire.cluster.node.node import Node
from quire.log import Frame, IndexExpired, frame_values, walk_frames
from tests.glue.cluster import Cluster, Host
from tests.verdict.verdict import Wrong

READ_BYTES = 1 << 18
OUTBOX_SLACK_BYTES = 1 << 20
"""What a stream may hold beyond its window: one frame, cut into messages."""


class Violation(Wrong):
    """A rule was broken."""

    def __init__(self, rule: str, *values: object) -> None:
        super().__init__(f"{rule}: {', '.join(map(str, values))}")


COUNTER = "n"
"""The key that every write counts up."""


@dataclass
class Archive:
    """Every committed record of the history, as the first node had it that knew it committed."""

    frames: dict[int, Frame] = field(default_factory=dict)
    """By index."""
    _read: dict[tuple[str, int], int] = field(default_factory=dict)

    def look(self, host: Host) -> None:
        """Read what this node has committed since the last time.

        Raises:
            Violation: two nodes have committed different frames.
        """
        node = host.node
        if node is None or node.formed is None or node.health.failure is not None:
            return
        log, key = node.formed.log, (host.node_id, host.starts)
        to_index = min(node.formed.replica.core.commit_index, log.durable_index)
        from_index = max(self._read.get(key, 0), log.bounds.lowest_index)
        while from_index < to_index:
            try:
                raw, next_index = log.read_frames(from_index, READ_BYTES, to_index=to_index)
            except IndexExpired:
                break
            if next_index == from_index:
                break
            for frame in walk_frames(raw):
                self._note(host, frame)
            from_index = next_index
        self._read[key] = from_index

    def _note(self, host: Host, frame: Frame) -> None:
        header = frame.header
        known = self.frames.setdefault(header.index, frame)
        if known.header.crc32c != header.crc32c:
            raise Violation("committed records are the same on every node", host.node_id, header)

    @property
    def in_order(self) -> list[Frame]:
        """All of them."""
        return [self.frames[index] for index in sorted(self.frames)]

    def records(self) -> dict[int, tuple[Any, int]]:
        """(value, epoch) by index."""
        return {
            index: (value, frame.header.epoch)
            for first, frame in self.frames.items()
            for index, value in enumerate(frame_values(frame), first)
        }


def check_reads(reads: list[tuple[int, int]], archive: Archive) -> None:
    """Judge every answer of a machine, (applied_index, count), by the committed log, once it ends.

    Raises:
        Violation: it was not the state at that index.
    """
    counted = sorted(index for index, (value, _) in archive.records().items() if value == ["incr", COUNTER])
    for applied_index, count in reads:
        if count != (expected := bisect_left(counted, applied_index)):
            raise Violation("a read is of the state at its index", applied_index, count, expected)


@dataclass
class Asked:
    """An operator's call that was answered with 200."""

    path: str
    wanted: str | None
    document: dict[str, Any]


def check_asked(asked: list[Asked], archive: Archive) -> None:
    """Check the answers that operators got against the committed log.

    Raises:
        Violation: an operator was told what is not so.
    """
    records = archive.records()
    starts = {
        epoch: value["node_id"]
        for value, epoch in records.values()
        if isinstance(value, dict) and value["type"] == "epoch_start"
    }
    for call in asked:
        document = call.document
        match call.path:
            case "/admin/transfer":
                leader = document["leader"]
                if starts.get(document["epoch"], leader) != leader or call.wanted not in (None, leader):
                    raise Violation("a transfer's answer names who leads", call, starts.get(document["epoch"]))
            case path if path.startswith("/members/"):
                promoted = path.rpartition("/")[2]
                for index in document["changes"]:
                    value, _ = records.get(index, (None, 0))
                    if not isinstance(value, dict) or value["type"] != "members":
                        raise Violation("the records of a change are in the log", call, index, value)
                if document["changes"] and not any(
                    row[0] == promoted and row[3] == "voter" for row in records[document["changes"][-1]][0]["members"]
                ):
                    raise Violation("who was promoted votes", call)
            case _:
                pass


def check_bounds(cluster: Cluster) -> None:
    """The queues of every node are within their bounds.

    Raises:
        Violation: one is longer.
    """
    for host in cluster.hosts.values():
        node = host.node
        if node is None or node.formed is None:
            continue
        network: Any = node.formed.replica.network
        most = host.config.stream_window_bytes + OUTBOX_SLACK_BYTES
        for stream in network.streams._served.values():
            held = stream._outbox.waiting_bytes
            if held > most:
                raise Violation("an outbox holds a window at most", host.node_id, stream.peer_id, held)


def check_released(node: Node, others: set[str]) -> None:
    """A node of a whole cluster that nobody calls holds nothing for anybody.

    Raises:
        Violation: it does.
    """
    formed = node.components
    if formed.compaction.server.served:
        raise Violation("no snapshot stays pinned", node.config.node, formed.compaction.server.served)
    if len(formed.pending):
        raise Violation("no write waits for ever", node.config.node, len(formed.pending))
    network: Any = formed.replica.network
    leader = formed.replica.core.status().leader
    followers = {stream.node_id for stream in leader.streams} if leader else set()
    served = [stream.peer_id for stream in network.streams._served.values()]
    opened = [stream.peer_id for stream in network.streams.server._open]
    expected = sorted(others) if leader else []
    if not sorted(followers) == sorted(served) == sorted(opened) == expected:
        raise Violation("a leader has one stream a follower, others none", node.config.node, followers, served, opened)
    if leader and leader.installs:
        raise Violation("no install stays pinned", node.config.node, leader.installs)
