"""The log of a running cluster, read from its nodes as raw frames and verified again here.

Nodes return committed records only, and every node has the same record at an index. So if a node dies or the leader
changes, the read continues at the next index from another node: answers hold whole frames, and no index is read twice.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from urllib.parse import quote, urlencode

from quire.log import ChainBroken, FrameHeader, FrameInvalid, PayloadInvalid, Tail, UnknownVersion, follow, walk_headers
from quire.log.packing import Skimmer

from ..errors import ClusterUnavailable, ForeignLog, RecordsLost
from .access import PLAIN, Access
from .nodes import Answer, Gone, Nodes, TryNext, document_of
from .origin import Bounds, Stretch
from .rows import RowBuilder, Rows

ROLES_FOR_S = 30.0
"""How long a driver relies on what it has learned about leader and members."""
RAW_FRAMES = "application/vnd.quire.frames"
PAGE_BYTES = 2 << 20
"""The size of a request: the node and the task each hold it in memory."""
STRETCH_BYTES = 64 << 20
"""About what one task reads: the usual size of a segment."""


class ClusterLog:
    """The log of a cluster; see `Origin`. Close it."""

    def __init__(
        self,
        servers: Sequence[str],
        timeout_s: float,
        *,
        known: str | None = None,
        task_number: int = 0,
        page_bytes: int = PAGE_BYTES,
        access: Access = PLAIN,
    ) -> None:
        """`known`: the cluster's id, if the servers are all of its members; None: ask them for id and members.

        `task_number`: tasks with different numbers ask different followers first. The leader is last in `servers`.

        Raises:
            AccessRefused: a file that `access` names cannot be used on this host.
        """
        *followers, last = servers
        shift = task_number % max(1, len(followers))
        self.name = ",".join(servers)
        self._access = access
        self._nodes = Nodes([*followers[shift:], *followers[:shift], last], timeout_s, access)
        self._timeout_s = timeout_s
        self._page_bytes = page_bytes
        self._known = known
        self._learn_again_at = 0.0 if known is None else math.inf
        self._checked: set[str] = set()
        self._record_bytes: float | None = None

    @property
    def servers(self) -> tuple[str, ...]:
        """The members, followers first."""
        self.cluster_id()
        return self._nodes.servers

    def cluster_id(self) -> str:
        if self._known is None:
            self._known = self._learn(None)
        return self._known

    def _learn(self, known_before: str | None) -> str:
        """Ask each server for members and leader; return the id of their cluster, which must not have changed."""
        answers = self._nodes.every("/cluster", "its members")
        ids = {server: id_of(_own_status(document)) for server, document in answers.items()}
        known = {server: found for server, found in ids.items() if isinstance(found, str)}
        if not known:
            self._nodes.first("/status", "the cluster's id", _cluster_id_of)
            return self._learn(known_before)
        first = known_before or next(iter(known.values()))
        for server, found in known.items():
            if found != first:
                raise ForeignLog(server, found, first)
        roles = _roles(answers)
        rest = {server: "unknown" for server in self._nodes.servers if server not in roles}
        ordered = sorted({**roles, **rest}.items(), key=lambda each: each[1] == "leader")
        self._nodes.close()
        self._nodes = Nodes([server for server, _ in ordered], self._timeout_s, self._access)
        self._learn_again_at = time.monotonic() + ROLES_FOR_S
        return first

    def bounds(self) -> Bounds:
        known = self.cluster_id()
        if time.monotonic() >= self._learn_again_at:
            self._learn(known)  # A stream runs for months: members and leaders change.
        answers = self._nodes.every("/index_bounds", "its bounds")
        found = [(each.get("lowest_index"), each.get("highest_index")) for each in answers.values()]
        pairs = [(low, high) for low, high in found if isinstance(low, int) and isinstance(high, int)]
        if not pairs:
            reasons = dict.fromkeys(answers, "its answer has no bounds")
            raise ClusterUnavailable("its bounds", self._timeout_s, reasons)
        # A member with an empty disk answers 0 and 0 until it installs a snapshot: ignore nodes without records.
        holding = [(low, high) for low, high in pairs if low < high] or pairs
        return Bounds(min(low for low, _ in holding), max(high for _, high in holding))

    def index_at(self, timestamp: int, bounds: Bounds) -> int:
        low, high = bounds
        while low < high:
            header = self._header((low + high) // 2)
            if header.timestamp < timestamp:
                low = header.next_index
            else:
                high = max(low, header.index)
        return min(low, bounds.highest_index)

    def _header(self, index: int) -> FrameHeader:
        """The header of the frame that holds an index."""
        stretch = Stretch(index, index + 1, None)
        gathering, _ = self._page(stretch, index, None, Skimmer(), max_bytes=1)
        return gathering.frames[0][0]

    def crc32c_before(self, index: int) -> int:
        return self._header(index - 1).crc32c

    def index_within_bytes(self, from_index: int, to_index: int, max_bytes: int) -> int:
        return min(to_index, from_index + max(1, int(max_bytes / self._bytes_per_record())))

    def stretches(self, from_index: int, to_index: int) -> list[Stretch]:
        if from_index >= to_index:
            return []  # A log without a record has no record's size.
        size = max(1, int(STRETCH_BYTES / self._bytes_per_record()))
        starts = range(from_index, to_index, size)
        return [Stretch(start, min(start + size, to_index), None) for start in starts]

    def _bytes_per_record(self) -> float:
        """The average of the whole log: nodes do not report where a byte of it is."""
        if self._record_bytes is None:
            self._record_bytes = self._nodes.first("/status", "the size of its log", _bytes_per_record)
        return self._record_bytes

    def rows(self, stretch: Stretch, skimmer: Skimmer) -> Iterator[Rows]:
        index, tail = stretch.from_index, None
        while index < stretch.to_index:
            gathering, tail = self._page(stretch, index, tail, skimmer, self._page_bytes)
            yield gathering.rows(stretch.from_index, stretch.to_index)
            index = tail.index

    def close(self) -> None:
        """Close the connections."""
        self._nodes.close()

    def _page(
        self, stretch: Stretch, index: int, tail: Tail | None, skimmer: Skimmer, max_bytes: int
    ) -> tuple[RowBuilder, Tail]:
        """The frames from the one that holds `index` on, as many as a node returns, and the tail after them."""

        def parse(answer: Answer) -> tuple[RowBuilder, Tail]:
            self._check_server(answer.server)
            return _verified(answer, index, stretch.to_index, tail, skimmer)

        path = "/records?" + urlencode({"from": index, "max_bytes": max_bytes})
        what = f"the records from index {index} on"
        try:
            return self._nodes.first(path, what, parse, RAW_FRAMES)
        except Gone as error:
            lowest = self.bounds().lowest_index
            if lowest <= index:  # Some node claims to have it: the end of the lost range is unknown.
                reason = f"{error}, although the log starts at index {lowest}"
                raise ClusterUnavailable(what, self._timeout_s, {self.name: reason}) from error
            raise RecordsLost(self.name, index, min(lowest, stretch.to_index), str(error)) from error

    def _check_server(self, server: str) -> None:
        """Check a server's cluster id once: frames do not carry it. Raises TryNext: it does not answer."""
        if server in self._checked:
            return
        found = _cluster_id_of(self._nodes.ask(server, "/status"))
        if found != self.cluster_id():
            raise ForeignLog(server, found, self.cluster_id())
        self._checked.add(server)


def _verified(
    answer: Answer, index: int, to_index: int, tail: Tail | None, skimmer: Skimmer
) -> tuple[RowBuilder, Tail]:
    """The frames of an answer, verified by crc and chain; the first one must hold `index`. Raises TryNext."""
    raw = memoryview(answer.body)
    gathering = RowBuilder(raw, skimmer)
    try:
        for offset, header in walk_headers(raw):
            if tail is None:
                if not header.index <= index < header.next_index:
                    raise TryNext(f"it sent index {header.index} instead of {index}")
                tail = Tail(header.index, header.epoch, header.timestamp, header.prev_crc32c)
            tail = follow(tail, header)
            gathering.add(header, offset)
            if tail.index >= to_index:
                break
    except (FrameInvalid, ChainBroken, PayloadInvalid, UnknownVersion) as error:
        raise TryNext(f"it sent bytes that are not part of the log: {error}") from error
    if tail is None or not gathering.frames:
        raise TryNext(f"it has not reached index {index} yet")
    return gathering, tail


def id_of(status: Mapping[str, object]) -> object:
    """The id of a node's history in its status; one of an earlier version names its cluster only."""
    return status.get("history", status.get("cluster_id"))


def cursor_index(servers: Sequence[str], timeout_s: float, access: Access, name: str) -> int:
    """Where a cursor of the cluster of these nodes is: the leader's answer, which any of them passes on.

    Raises:
        CursorUnknown: there is no such cursor.
        ClusterUnavailable: no node said so in time.
    """
    with closing(Nodes(servers, timeout_s, access)) as nodes:
        return nodes.first(f"/cursors/{quote(name, safe='')}", f"where the cursor {name} is", _index_of)


def _index_of(answer: Answer) -> int:
    match document_of(answer):
        case {"index": int(index)}:
            return index
        case _:
            raise TryNext("its answer has no index")


def _own_status(document: Mapping[str, object]) -> Mapping[str, object]:
    """The status of the node that answered `/cluster`."""
    match document:
        case {"node_id": str(node_id), "nodes": {**nodes}}:
            own = nodes.get(node_id)
            status = own.get("status") if isinstance(own, dict) else None
            return status if isinstance(status, dict) else {}
        case _:
            return {}


def _roles(answers: Mapping[str, Mapping[str, object]]) -> dict[str, str]:
    """The role of every member by its address; "unknown" if no node knows it."""
    roles: dict[str, str] = {}
    for document in answers.values():
        nodes = document.get("nodes")
        for node in nodes.values() if isinstance(nodes, dict) else ():
            match node:
                case {"address": str(address), "status": {"role": str(role)}}:
                    roles[address] = role
                case {"address": str(address)}:
                    roles.setdefault(address, "unknown")
                case _:
                    pass
    return roles


def _cluster_id_of(answer: Answer) -> str:
    cluster_id = id_of(document_of(answer))
    if not isinstance(cluster_id, str):
        raise TryNext("its cluster is not formed yet")
    return cluster_id


def _bytes_per_record(answer: Answer) -> float:
    match document_of(answer):
        case {"log_bytes": int(size), "lowest_index": int(lowest), "highest_index": int(highest)} if highest > lowest:
            return max(1.0, size / (highest - lowest))
        case _:
            raise TryNext("its status lacks the size of its log")
