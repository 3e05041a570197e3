"""What a backup reads: one node of a cluster, over HTTP, and which node that is.

A follower is preferred, so that the leader's clients feel nothing. Any node will do: only committed records are
visible, and every node has the same ones.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from quire.log import (
    HEADER_BYTES,
    ChainBroken,
    FrameInvalid,
    Kind,
    PayloadInvalid,
    Tail,
    UnknownVersion,
    check_frame,
    decode_system,
    follow,
    time_since_boot,
    walk_headers,
)

from ..client import Client, ClientError, NotFound, Status, Unavailable
from ..client.documents import cluster_clock
from ..data_dir.survivor import HISTORY_TYPE
from .manifest import BackupInvalid, BackupRefused, Manifest

EXPIRED = "urn:quire:problem:expired"
ASKED_BYTES = 8 << 20
"""Of frames, in one answer: what a node gives at most."""
STATUS_TIMEOUT_S = 5.0
BEHIND_S = 10.0
"""A machine that is further behind does not hold up the backup: it ends at what is committed."""


class SourceUnavailable(ClientError):
    """No node can be backed up now; the text says why each cannot."""


class FramesExpired(ClientError):
    """The source has no longer the frames that were asked for."""


class Range(NamedTuple):
    """Whole frames, the end of the chain after them, and the `history` records among them as (history, next index)."""

    raw: bytes
    end: Tail
    histories: tuple[tuple[str, int], ...]


class Source:
    """One node, with its status of now."""

    def __init__(self, client: Client, server: str, status: Status) -> None:
        """`status` has just arrived."""
        self._client = client
        self._server = server
        self.status = status
        self.clock_offset = cluster_clock(status) - time_since_boot()
        """The cluster's clock less the time since boot here, in microseconds; short by what the answer took.

        Until `choose` has asked the others, as this node knows it.
        """
        self.known_end = committed_end(status["commit_index"], status["durable_index"])
        """The end of what any node that was asked has committed."""

    @property
    def node(self) -> str:
        """The node's id."""
        return self.status["node_id"]

    @property
    def clock(self) -> int:
        """The cluster's clock now, in microseconds since 1970.

        It is the latest time that it has reached for a majority of the nodes that answered.
        """
        return time_since_boot() + self.clock_offset

    @property
    def end(self) -> int:
        """Where a backup of it ends now: at its applied_index, where its digest is known, unless that is far behind."""
        if self.status["apply_lag"]["seconds"] > BEHIND_S:
            return committed_end(self.status["commit_index"], self.status["durable_index"])
        return self.status["applied_index"]

    async def frames(self, begin: Tail, to_index: int, max_bytes: int = ASKED_BYTES) -> Range:
        """The frames from a frame boundary on, up to the boundary `to_index`, checked; one at least.

        Raises:
            FramesExpired: the node has them no longer.
            BackupInvalid: they do not follow `begin`, or are damaged.
            ClientError: the node does not answer.
        """
        files, history = self._client.files, self.status["history"]
        try:
            raw = await files.frames(begin.index, to_index, history, self._server, max_bytes)
        except NotFound as error:
            if error.type != EXPIRED:
                raise
            raise FramesExpired(str(error)) from error
        return checked_range(raw, begin, f"from {self.node}")

    async def genesis(self) -> bytes:
        """The cluster's genesis frame."""
        return await self._client.files.genesis(self._server)

    async def snapshot_manifest(self, index: int) -> bytes:
        """The manifest of a snapshot, which is then kept for a minute."""
        return await self._client.files.snapshot_manifest(index, self._server)

    async def snapshot_chunk(self, index: int, number: int) -> bytes:
        """A chunk of a snapshot, which is then kept for a minute."""
        return await self._client.files.snapshot_chunk(index, number, self._server)


def committed_end(commit_index: int, durable_index: int) -> int:
    """The end of what a node's backup may hold: sealed segments and the tail may hold more, which may be truncated."""
    return min(commit_index, durable_index)


def checked_range(raw: bytes, begin: Tail, what: str) -> Range:
    """Whole frames that follow `begin`.

    Raises:
        BackupInvalid: they do not, or are damaged; the text begins with `what`.
        BackupRefused: a later version of quire wrote them.
    """
    end, histories, view = begin, list[tuple[str, int]](), memoryview(raw)
    try:
        for offset, header in walk_headers(view):
            payload, following = view[offset + HEADER_BYTES : offset + header.size], follow(end, header)
            check_frame(header.kind, payload)
            if header.kind == Kind.SYSTEM:
                record = decode_system(payload)
                history = record.get("history")
                if record["type"] == HISTORY_TYPE and isinstance(history, bytes):
                    histories.append((history.hex(), header.index))
            end = following
    except UnknownVersion as error:
        raise BackupRefused(f"{what}: {error}; a later quire wrote it: upgrade this one") from error
    except (FrameInvalid, ChainBroken, PayloadInvalid) as error:
        raise BackupInvalid(f"{what}: the frames from index {end.index} on are damaged: {error}") from error
    return Range(raw, end, tuple(histories))


async def choose(client: Client, servers: Sequence[str], node: str | None, place: str, last: Manifest | None) -> Source:
    """The node to back up: `node`, or else a ready follower, the leader, or any, in this order.

    Of several the most advanced is taken. `last` is the last manifest in `place`: a node that has not applied that much
    has nothing to give.

    Raises:
        SourceUnavailable: there is none.
        BackupRefused: the servers are of several histories, or the place has the backup of another.
    """
    found, failures = await _all_of(client, servers)
    if len({source.status["history"] for source in found}) > 1:
        nodes = ", ".join(f"{source.node} has {source.status['history']}" for source in found)
        raise BackupRefused(f"the servers are of several histories: {nodes}; name those of one in --server")
    if last is not None and found:
        _refuse_foreign(place, last, found[0])
    at_least = 0 if last is None else last.end.index
    if node is not None and found and node not in {source.node for source in found}:
        failures.append(f"{node} is not among the nodes that answered ({', '.join(source.node for source in found)})")
    usable = list[Source]()
    for source in found:
        if node is not None and source.node != node:
            continue
        if source.end < at_least:
            failures.append(f"{source.node} has applied {source.end} records, and the backup ends at {at_least}")
            continue
        usable.append(source)
    if not usable:
        raise SourceUnavailable("; ".join(failures) or "no node answered")
    chosen = max(usable, key=_preference)
    chosen.known_end = max(source.known_end for source in found)
    chosen.clock_offset = sorted(source.clock_offset for source in found)[(len(found) - 1) // 2]
    return chosen


def _refuse_foreign(place: str, last: Manifest, source: Source) -> None:
    """Raise BackupRefused if the place has the backup of another cluster or history."""
    cluster, history = source.status["cluster_id"], source.status["history"]
    if last.cluster_id != cluster:
        what = f"the cluster {last.cluster_id}, and this one is {cluster}"
    elif last.history != history:
        what = (
            f"the history {last.history}, and the cluster has the history {history} since it was recovered or restored"
        )
    else:
        return
    raise BackupRefused(f"{place} has a backup of {what}; choose another place, and keep this one")


def _preference(source: Source) -> tuple[bool, bool, int]:
    status = source.status
    return status["ready"], not status["serving"], source.end


async def _source_of(client: Client, server: str) -> Source | str:
    """A node with its status, or why there is none."""
    try:
        async with asyncio.timeout(STATUS_TIMEOUT_S):
            status = await client.status(server)
        return Source(client, server, status) if status.get("cluster_id") else f"{server} has not joined a cluster"
    except TimeoutError:
        return f"{server} does not answer"
    except Unavailable as error:
        return error.reason
    except ClientError as error:
        return str(error)


async def _all_of(client: Client, servers: Sequence[str]) -> tuple[list[Source], list[str]]:
    """The formed nodes among the servers and the members that they name, one for each id; and why others are not."""
    asked, waiting = set[str](), list(servers)
    found, failures = dict[str, Source](), list[str]()
    while waiting:
        asked |= set(waiting)
        known = set[str]()
        for source in await asyncio.gather(*(_source_of(client, server) for server in waiting)):
            if isinstance(source, str):
                failures.append(source)
            else:
                found.setdefault(source.node, source)
                known |= {member["address"] for member in source.status["members"]}
        named = {source.status["node_id"] for source in found.values()}
        rows = {row["address"]: row["node_id"] for source in found.values() for row in source.status["members"]}
        waiting = [address for address in sorted(known - asked) if rows[address] not in named]
    return list(found.values()), failures
