"""The log of a running cluster, read from its nodes as raw frames and verified again here.

Nodes return committed records only, and every node has the same record at an index. So if a node dies or the leader
changes, the read continues at the next index from another node: answers hold whole frames, and no index is read twice.

Nodes also say where frames begin, and how many bytes lie between two of them. So a part of the log ends where a frame
ends, and a task fetches the frames of its own part.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from itertools import groupby, pairwise
from typing import TypeVar
from urllib.parse import quote, urlencode

from quire.log import ChainBroken, FrameHeader, FrameInvalid, PayloadInvalid, Tail, UnknownVersion, follow, walk_headers
from quire.log.packing import Skimmer

from ..errors import ClusterUnavailable, ForeignLog, RecordsLost
from .access import PLAIN, Access
from .nodes import JSON, Answer, Gone, Nodes, TryNext, document_of
from .origin import STRETCH_BYTES, Bounds, Stretch
from .rows import RowBuilder, Rows

ROLES_FOR_S = 30.0
"""How long a driver relies on what it has learned about leader and members."""
RAW_FRAMES = "application/vnd.quire.frames"
PAGE_BYTES = 2 << 20
"""The size of a request: the node and the task each hold it in memory."""
RANKS = {"observer": 0, "voter": 1}
"""Which members are asked first; then those of which nothing is known, and last the leader."""
UNKNOWN_RANK, LEADER_RANK = 2, 3

Parsed = TypeVar("Parsed")


class ClusterLog:
    """The log of a cluster; see `Origin`. Close it."""

    def __init__(
        self,
        servers: Sequence[str],
        timeout_s: float,
        *,
        known: str | None = None,
        page_bytes: int = PAGE_BYTES,
        access: Access = PLAIN,
    ) -> None:
        """`known`: the cluster's id, if the servers are all of its members, in the order in which to ask them.

        None: ask them for id and members.

        Raises:
            AccessRefused: a file that `access` names cannot be used on this host.
        """
        self.name = ",".join(servers)
        self._nodes = Nodes(servers, timeout_s, access)
        self._ranks: dict[str, int] = {}
        self._timeout_s = timeout_s
        self._page_bytes = page_bytes
        self._known = known
        self._learn_again_at = 0.0 if known is None else math.inf
        self._checked: set[str] = set()

    @property
    def servers(self) -> tuple[str, ...]:
        return self.servers_of(0)

    def servers_of(self, task_number: int) -> tuple[str, ...]:
        self.cluster_id()
        ordered: list[str] = []
        for _, equals in groupby(sorted(self._nodes.servers, key=self._rank), self._rank):
            servers = list(equals)
            shift = task_number % len(servers)
            ordered += [*servers[shift:], *servers[:shift]]
        return tuple(ordered)

    def _rank(self, server: str) -> tuple[bool, int]:
        return self._nodes.is_silent(server), self._ranks.get(server, UNKNOWN_RANK)

    def cluster_id(self) -> str:
        if self._known is None:
            self._known = self._learn(None)
        return self._known

    def _learn(self, known_before: str | None) -> str:
        """Ask each server for members and leader; return the id of their cluster, which must not have changed."""
        answers = self._nodes.every("/status", "its members", patient=False)
        ids = {server: id_of(status) for server, status in answers.items()}
        known = {server: found for server, found in ids.items() if isinstance(found, str)}
        if not known:
            self._nodes.first("/status", "the cluster's id", _cluster_id_of)
            return self._learn(known_before)
        first = known_before or next(iter(known.values()))
        for server, found in known.items():
            if found != first:
                raise ForeignLog(server, found, first)
        self._checked.update(known)
        self._ranks = _ranks(answers.values())
        members = dict.fromkeys([*self._ranks, *self._nodes.servers])
        self._nodes.servers = tuple(sorted(members, key=lambda server: self._ranks.get(server, UNKNOWN_RANK)))
        self._learn_again_at = time.monotonic() + ROLES_FOR_S
        return first

    def bounds(self, *, quick: bool = False) -> Bounds:
        known = self.cluster_id()
        if time.monotonic() >= self._learn_again_at:
            self._learn(known)  # A stream runs for months: members and leaders change.
        ranges = _not_empty(self._ranges("/index_bounds", patient=not quick))
        if not ranges:
            reasons = {self.name: "no answer has bounds"}
            raise ClusterUnavailable("its bounds", self._timeout_s, reasons)
        return Bounds(min(low for low, _ in ranges), max(high for _, high in ranges))

    def _ranges(self, path: str, *, patient: bool) -> list[tuple[int, int]]:
        """The ranges of the nodes that answer: of what they know to be committed, or, by `/status`, of their logs."""
        answers = self._nodes.every(path, "its bounds", patient=patient)
        ranges: list[tuple[int, int]] = []
        for server, document in answers.items():
            match document:
                case {"lowest_index": int(low), "highest_index": int(high)}:
                    with suppress(TryNext):
                        self._check_server(server)
                        ranges.append((low, high))
                case _:
                    pass
        return ranges

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
        gathering, _ = self._page(stretch, index, None, None, max_bytes=1)
        return gathering.frames[0][0]

    def crc32c_before(self, index: int) -> int:
        return self._header(index - 1).crc32c

    def index_within_bytes(self, from_index: int, to_index: int, max_bytes: int) -> int:
        index, _ = next(self._boundaries(from_index, to_index, max_bytes, is_one=True))
        return index

    def stretches(self, from_index: int, to_index: int, least: int = 1) -> list[Stretch]:
        parts = list(self._boundaries(from_index, to_index, STRETCH_BYTES))
        if len(parts) < least:
            size = sum(size for _, size in parts)
            parts = list(self._boundaries(from_index, to_index, size // least))
        return [Stretch(first, last, None) for first, last in pairwise([from_index, *(index for index, _ in parts)])]

    def _boundaries(
        self, from_index: int, to_index: int, max_bytes: int, *, is_one: bool = False
    ) -> Iterator[tuple[int, int]]:
        """The ends of parts of at most so many bytes, but of one frame at least, and the bytes of each; frames are not
        cut, but at the end of the range.
        """
        reached, wanted = from_index, {"boundaries": max_bytes}
        if is_one:
            wanted["limit"] = 1  # Otherwise a node names as many as it may.
        while reached < to_index:
            for index, size in self._asked(reached, to_index, wanted, JSON, _boundaries_of):
                reached = index
                yield min(index, to_index), size

    def rows(self, stretch: Stretch, skimmer: Skimmer | None) -> Iterator[Rows]:
        index, tail = stretch.from_index, None
        while index < stretch.to_index:
            gathering, tail = self._page(stretch, index, tail, skimmer, self._page_bytes)
            yield gathering.rows(stretch.from_index, stretch.to_index)
            index = tail.index

    def close(self) -> None:
        """Close the connections."""
        self._nodes.close()

    def _page(
        self, stretch: Stretch, index: int, tail: Tail | None, skimmer: Skimmer | None, max_bytes: int
    ) -> tuple[RowBuilder, Tail]:
        """The frames from the one that holds `index` on, as many as a node returns, and the tail after them."""

        def parse(answer: Answer, index: int) -> tuple[RowBuilder, Tail]:
            return _verified(answer, index, stretch.to_index, tail, skimmer)

        return self._asked(index, stretch.to_index, {"max_bytes": max_bytes}, RAW_FRAMES, parse)

    def _asked(
        self,
        index: int,
        to_index: int,
        wanted: Mapping[str, int],
        accept: str,
        parse: Callable[[Answer, int], Parsed],
    ) -> Parsed:
        """What a node says of the records [index, to_index), as `parse` makes it of the answer and the index.

        Raises:
            RecordsLost: they have expired.
            ClusterUnavailable: no node said it in time.
        """

        def checked(answer: Answer) -> Parsed:
            self._check_server(answer.server)
            return parse(answer, index)

        path = "/records?" + urlencode({"from": index, "to": to_index, **wanted})
        what = f"the records from index {index} on"
        try:
            return self._nodes.first(path, what, checked, accept)
        except Gone as error:
            lowest = self._lowest_after(index)
            if lowest <= index:  # Some node claims to have it: the end of the lost range is unknown.
                reason = f"{error}, although the log starts at index {lowest}"
                raise ClusterUnavailable(what, self._timeout_s, {self.name: reason}) from error
            raise RecordsLost(self.name, index, min(lowest, to_index), str(error)) from error

    def _lowest_after(self, index: int) -> int:
        """The lowest index of the nodes that have later records than `index`; `index`, if none has.

        A node that ends before does not have it, unless it does not know yet that it is committed, as after a restart.
        """
        ranges = self._ranges("/index_bounds", patient=True) + self._ranges("/status", patient=True)
        return min((low for low, high in _not_empty(ranges) if index < high), default=index)

    def _check_server(self, server: str) -> None:
        """Check a server's cluster id once: frames do not carry it. Raises TryNext: it does not answer."""
        if server in self._checked:
            return
        found = _cluster_id_of(self._nodes.ask(server, "/status"))
        if found != self.cluster_id():
            raise ForeignLog(server, found, self.cluster_id())
        self._checked.add(server)


def _verified(
    answer: Answer, index: int, to_index: int, tail: Tail | None, skimmer: Skimmer | None
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


def _not_empty(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges without those of members with an empty disk, which say 0 and 0 until they install a snapshot; or all."""
    return [(low, high) for low, high in ranges if low < high] or ranges


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


def _ranks(statuses: Iterable[Mapping[str, object]]) -> dict[str, int]:
    """The rank of every member by its address, as the statuses of nodes tell it."""
    statuses = list(statuses)
    leaders = {status.get("leader") for status in statuses}
    ranks: dict[str, int] = {}
    for status in statuses:
        members = status.get("members")
        for member in members if isinstance(members, list) else ():
            match member:
                case {"node_id": str(node_id), "address": str(address), "role": str(role)}:
                    ranks[address] = LEADER_RANK if node_id in leaders else RANKS.get(role, UNKNOWN_RANK)
                case _:
                    pass
    return ranks


def _boundaries_of(answer: Answer, index: int) -> list[tuple[int, int]]:
    """The boundaries in an answer, all after an index. Raises TryNext."""
    found: list[tuple[int, int]] = []
    named = document_of(answer).get("boundaries")
    if not isinstance(named, list):
        raise TryNext("its answer has no boundaries")
    for each in named:
        match each:
            case [int(boundary), int(size)] if boundary > index and size > 0:
                found.append((boundary, size))
                index = boundary
            case _:
                raise TryNext(f"its answer has an invalid boundary: {each}")
    if not found:
        raise TryNext(f"it has not reached index {index} yet")
    return found


def _cluster_id_of(answer: Answer) -> str:
    cluster_id = id_of(document_of(answer))
    if not isinstance(cluster_id, str):
        raise TryNext("its cluster is not formed yet")
    return cluster_id
