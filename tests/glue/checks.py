"""What must hold: of the logs, of every answer that a caller got, and of what a node keeps for others."""

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any

from quire.cluster.node.node import Node
from quire.log import IndexExpired, frame_values, walk_frames
from tests.glue.cluster import Answer, Cluster, Host

READ_BYTES = 1 << 18
OUTBOX_SLACK_BYTES = 1 << 20
"""What a stream may hold beyond its window: one frame, cut into messages."""
COUNTER = "n"


class Violation(Exception):
    """A rule was broken."""

    def __init__(self, rule: str, *values: object) -> None:
        super().__init__(f"{rule}: {', '.join(map(str, values))}")
        self.rule = rule


@dataclass
class Call:
    """A write, and what its caller was told; no answer: the outcome is unknown."""

    number: int
    node_id: str
    commands: list[Any]
    answer: Answer | None = None

    @property
    def is_refused(self) -> bool:
        """Whether the caller may take it that nothing was written."""
        if self.answer is None or self.answer.status == 200:
            return False
        return self.answer.status not in (500, 504) or self.answer.problem == "check-failed"


@dataclass
class Archive:
    """Every committed record of the history, as the first node had it that knew it committed."""

    frames: dict[int, tuple[int, list[Any], int]] = field(default_factory=dict)
    """By the index of a frame: its crc, its values, its epoch."""
    next_index: int = 0
    _read: dict[tuple[str, int], int] = field(default_factory=dict)

    def look(self, host: Host) -> None:
        """Read what this node has committed since the last time.

        Raises:
            Violation: two nodes have committed different frames.
        """
        node = host.node
        if node is None or node.formed is None or node.failure is not None:
            return
        log, key = node.formed.log, (host.node_id, host.starts)
        to_index = min(node.formed.replica.commit_index, log.durable_index)
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

    def _note(self, host: Host, frame: Any) -> None:
        header = frame.header
        known = self.frames.get(header.index)
        if known is None:
            self.frames[header.index] = (header.crc32c, frame_values(frame), header.epoch)
            self.next_index = max(self.next_index, header.next_index)
        elif known[0] != header.crc32c:
            raise Violation("committed records are the same on every node", host.node_id, header)

    def records(self) -> dict[int, tuple[Any, int]]:
        """(value, epoch) by index."""
        return {
            index + place: (value, epoch)
            for index, (_, values, epoch) in self.frames.items()
            for place, value in enumerate(values)
        }


def check_answers(calls: list[Call], archive: Archive) -> None:
    """Judge every answer to a write by the committed log, once it ends.

    Raises:
        Violation: a caller was told what is not so.
    """
    records = archive.records()
    written: dict[Any, int] = {}
    count = 0
    counted: dict[int, int] = {}
    for index in sorted(records):
        value = records[index][0]
        if isinstance(value, list) and value[0] == "put":
            number = value[2][0]
            if number in written:
                raise Violation("a write is in the log once", number, written[number], index)
            written[number] = index
        if value == ["incr", COUNTER]:
            count += 1
            counted[index] = count
    for call in calls:
        if call.is_refused and call.number in written:
            raise Violation("what was refused is not in the log", call.number, call.node_id, call.answer)
        if call.answer is not None and call.answer.status == 200:
            _check_written(call, call.answer.document, records, counted)


def check_reads(reads: list[tuple[int, int]], archive: Archive) -> None:
    """Judge every answer of a machine, (applied_index, count), by the committed log, once it ends.

    Raises:
        Violation: it was not the state at that index.
    """
    counted = sorted(index for index, (value, _) in archive.records().items() if value == ["incr", COUNTER])
    for applied_index, count in reads:
        if count != (expected := bisect_left(counted, applied_index)):
            raise Violation("a read is of the state at its index", applied_index, count, expected)


def _check_written(
    call: Call, document: dict[str, Any], records: dict[int, tuple[Any, int]], counted: dict[int, int]
) -> None:
    first: int = document["index"] if "index" in document else document["write_index"]
    last = first + len(call.commands) - 1
    for index, command in enumerate(call.commands, first):
        value, epoch = records.get(index, (None, None))
        if value != command or document.get("epoch", epoch) != epoch:
            found = str(value)[:80], epoch
            raise Violation("the record at an answer's index is the command", call.number, document, found)
    if "results" in document and document["results"][-1] != counted[last]:
        raise Violation("a result is that of its command", call.number, document, counted[last])


@dataclass
class Asked:
    """An operator's call that was answered with 200."""

    path: str
    wanted: str | None
    document: dict[str, Any]


def check_asked(asked: list[Asked], archive: Archive) -> None:
    """Judge what operators were told by the committed log.

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
            case "/admin/members":
                for index in document["changes"]:
                    value, _ = records.get(index, (None, 0))
                    if not isinstance(value, dict) or value["type"] != "members":
                        raise Violation("the records of a change are in the log", call, index, value)
                if document["changes"] and not any(
                    row[0] == call.wanted and row[3] == "voter"
                    for row in records[document["changes"][-1]][0]["members"]
                ):
                    raise Violation("who was promoted votes", call)
            case _:
                pass


@dataclass
class Tally:
    """What a session's caller knows: its commands count up by one each."""

    answered: int = 0
    unknown: int = 0
    last: int = 0

    def note(self, result: int) -> None:
        """An answer. Raises Violation."""
        self.answered += 1
        if not self.last < result <= self.answered + self.unknown:
            raise Violation("a session's command executes once, in order", result, self)
        self.last = result

    def check(self, counted: int) -> None:
        """The sum at the end. Raises Violation."""
        if not self.answered <= counted <= self.answered + self.unknown:
            raise Violation("a session's command executes once", counted, self)


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
        for stream in network._served.values():
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
        raise Violation("no snapshot stays pinned", node.node_id, formed.compaction.server.served)
    inside: Any = node
    if len(inside._pending):
        raise Violation("no write waits for ever", node.node_id, len(inside._pending))
    network: Any = formed.replica.network
    leader = formed.replica.status().leader
    followers = {stream.node_id for stream in leader.streams} if leader else set()
    served = [stream.peer_id for stream in network._served.values()]
    opened = [stream.peer_id for stream in network.stream_server._open]
    expected = sorted(others) if leader else []
    if not sorted(followers) == sorted(served) == sorted(opened) == expected:
        raise Violation("a leader has one stream a follower, others none", node.node_id, followers, served, opened)
    if leader and leader.installs:
        raise Violation("no install stays pinned", node.node_id, leader.installs)
