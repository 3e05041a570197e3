"""Clusters in every state in which a call has its own answer, and what brings a running cluster into such a state."""

import errno
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import ClientSession, DummyCookieJar, TCPConnector

from quire.cluster.config.serve import ServeConfig
from quire.cluster.http.admission.admission import ADMISSION
from quire.cluster.http.api import API
from quire.log import CONSUMERS, FEATURES
from quire.log.segment.write_segment import RECENT_BYTES
from tests.cluster import conditions
from tests.cluster.hop import cluster_with_hop
from tests.cluster.running import Reply, RunningCluster, applied_index, free_addresses, running_cluster, started

JSON = "application/json"
MOODY = "tests.cluster.machines:Moody"

Values = Mapping[str, str]
Condition = Callable[[RunningCluster, str], AbstractAsyncContextManager[Values]]


# Whole clusters. Each has three real nodes and n1 leads, unless its docstring says otherwise.

SEGMENT_BYTES = 1 << 16
HASTY_MS = 500
PATIENT_MS = 30_000  # An election timeout that a busy machine does not reach: n1 leads from first to last.


@asynccontextmanager
async def plain(folder: Path) -> AsyncGenerator[RunningCluster, None]:
    async with running_cluster(folder, election_timeout_ms=PATIENT_MS, segment_bytes=SEGMENT_BYTES) as cluster:
        yield cluster


@asynccontextmanager
async def log(folder: Path) -> AsyncGenerator[RunningCluster, None]:
    async with running_cluster(folder, machine="log", election_timeout_ms=PATIENT_MS) as cluster:
        yield cluster


@asynccontextmanager
async def older(folder: Path) -> AsyncGenerator[RunningCluster, None]:
    """The log does not use cursors: the nodes have a version without them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("quire.cluster.node.components.FEATURES", FEATURES - {CONSUMERS})
        async with running_cluster(folder, election_timeout_ms=PATIENT_MS) as cluster:
            yield cluster


@asynccontextmanager
async def moody(folder: Path) -> AsyncGenerator[RunningCluster, None]:
    settings: dict[str, Any] = {"machine": MOODY, "election_timeout_ms": PATIENT_MS, "state_limit_bytes": 1024}
    async with running_cluster(folder, **settings) as cluster:
        yield cluster


@asynccontextmanager
async def failed(folder: Path) -> AsyncGenerator[RunningCluster, None]:
    """On every node applying has stopped: the machine's apply raised an error other than Refused."""
    async with running_cluster(folder, machine=MOODY, election_timeout_ms=PATIENT_MS) as cluster:
        await cluster.ask("n1", "POST", "/commands", orjson.dumps({"commands": ["apply fails"]}), JSON)
        for node_id in cluster.nodes:
            while (await cluster.ask(node_id, "GET", "/state?consistency=local")).status == 200:
                await cluster.ask(node_id, "GET", "/healthz")
        yield cluster


@asynccontextmanager
async def headless(folder: Path) -> AsyncGenerator[RunningCluster, None]:
    """n2 is alone, and knows it."""
    async with running_cluster(folder) as cluster:
        await cluster.stop("n1")
        await cluster.stop("n3")
        while cluster.nodes["n2"].node.leadership.leader_id is not None:
            await cluster.ask("n2", "GET", "/healthz")
        yield cluster


@asynccontextmanager
async def cut(folder: Path) -> AsyncGenerator[RunningCluster, None]:
    """n2 hears its leader, but can make no new connection to it."""
    async with cluster_with_hop(folder, election_timeout_ms=PATIENT_MS) as (cluster, hop):
        hop.refuse()
        yield cluster


@asynccontextmanager
async def alone(folder: Path) -> AsyncGenerator[RunningCluster, None]:
    """The leader is alone, does not know it yet, and has a record that is not committed."""
    async with running_cluster(folder, election_timeout_ms=PATIENT_MS, request_timeout_ms=100) as cluster:
        await cluster.stop("n2")
        await cluster.stop("n3")
        await cluster.ask("n1", "POST", "/records", b'["add", 1]', JSON)
        yield cluster


@asynccontextmanager
async def forming(folder: Path) -> AsyncGenerator[RunningCluster, None]:
    """n1 waits for the others, which never come."""
    members: dict[str, str] = dict(zip(("n1", "n2", "n3"), free_addresses(3), strict=True))
    config = ServeConfig(node="n1", listen=members["n1"], members=members, data_dir=folder / "n1")
    async with ClientSession(cookie_jar=DummyCookieJar()) as session:
        cluster = RunningCluster(session, {"n1": await started(config)})
        try:
            yield cluster
        finally:
            await cluster.stop("n1")


@asynccontextmanager
async def rotten(folder: Path) -> AsyncGenerator[RunningCluster, None]:
    """On every node the last record's bytes on disk are corrupt. They are more than what stays in memory."""
    async with running_cluster(folder, machine="log", election_timeout_ms=PATIENT_MS) as cluster:
        value = b'"rotten soon%b"' % (b"." * RECENT_BYTES)
        last = (await cluster.ask("n1", "POST", "/records", value, JSON)).document["write_index"]
        for node_id in cluster.nodes:
            await cluster.ask(node_id, "GET", f"/records?from={last}&wait_ms=10000")
            [store] = (folder / node_id / "log").glob("*.store")
            at = store.read_bytes().index(b"rotten soon")
            with store.open("r+b") as file:
                file.seek(at)
                file.write(b"ROTTEN")
        yield cluster


WORLDS = {world.__name__: world for world in (plain, log, older, moody, failed, headless, cut, alone, forming, rotten)}


class Worlds:
    """One world at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = ""
        self._open = AsyncExitStack()
        self._cluster: RunningCluster | None = None

    async def enter(self, name: str) -> RunningCluster:
        if self._cluster is None or name != self._name:
            await self._open.aclose()
            self._name = name
            self._cluster = await self._open.enter_async_context(WORLDS[name](self._folder / name))
        return self._cluster

    async def close(self) -> None:
        await self._open.aclose()


# Conditions: what is done to a world for one call. Each gives the values for the names in the call's path and headers.


@asynccontextmanager
async def nothing(cluster: RunningCluster, at: str) -> AsyncGenerator[Values, None]:
    yield {}


async def _done(
    cluster: RunningCluster, path: str, body: bytes, headers: Mapping[str, str] | None = None, method: str = "POST"
) -> Reply:
    """The answer to a write that may be repeated, as it is if a busy machine took longer than the deadline."""
    while (reply := await cluster.ask("n1", method, path, body, JSON, headers)).status == 504:
        pass
    assert reply.status == 200, reply
    return reply


@asynccontextmanager
async def a_session(cluster: RunningCluster, at: str) -> AsyncGenerator[Values, None]:
    """A session with one executed command."""
    session = str((await _done(cluster, "/sessions", b"{}")).document["session"])
    await _done(cluster, "/commands", b'{"commands": [["add", 0]]}', {"Quire-Session": session, "Quire-Sequence": "1"})
    yield {"session": session}


@asynccontextmanager
async def a_cursor(cluster: RunningCluster, at: str) -> AsyncGenerator[Values, None]:
    """A cursor at the log's first record."""
    await _done(cluster, "/cursors/mail", b'{"index": 0, "rewind": true}', method="PUT")
    yield {"name": "mail"}


@asynccontextmanager
async def no_room_for_cursors(cluster: RunningCluster, at: str) -> AsyncGenerator[Values, None]:
    """There are as many cursors as the limit, on every node until all have applied the attempt."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("quire.sm.cursors.MAX_CURSORS", 0)
        yield {"name": "one-more"}
        end = applied_index(cluster.nodes["n1"].node)
        for node_id, running in cluster.nodes.items():
            while applied_index(running.node) < end:
                await cluster.ask(node_id, "GET", "/healthz")


@asynccontextmanager
async def a_fenced_session(cluster: RunningCluster, at: str) -> AsyncGenerator[Values, None]:
    """A session that another one of its name took over."""
    fenced, _ = [await _done(cluster, "/sessions", b'{"name": "fenced"}') for _ in range(2)]
    yield {"session": str(fenced.document["session"])}


@asynccontextmanager
async def the_leader(cluster: RunningCluster, at: str) -> AsyncGenerator[Values, None]:
    """The member that leads."""
    yield {"node": "n1"}


@asynccontextmanager
async def no_member(cluster: RunningCluster, at: str) -> AsyncGenerator[Values, None]:
    """A node that is no member."""
    yield {"node": "n9"}


@asynccontextmanager
async def a_record(cluster: RunningCluster, at: str) -> AsyncGenerator[Values, None]:
    """A record that is visible on the asked node."""
    index = (await cluster.ask("n1", "GET", "/index_bounds")).document["highest_index"] - 1
    await cluster.ask(at, "GET", f"/records?from={index}&kinds=all&wait_ms=10000")
    yield {"index": str(index), "next": str(index + 1)}


@asynccontextmanager
async def a_snapshot(cluster: RunningCluster, at: str) -> AsyncGenerator[Values, None]:
    """A snapshot on the asked node."""
    taken = await cluster.ask(at, "POST", "/admin/snapshot")
    yield {"index": str(taken.document["index"]), "chunk": "0"}


@asynccontextmanager
async def overloaded(cluster: RunningCluster, at: str) -> AsyncGenerator[Values, None]:
    """As many writes as the limit wait for the writer."""
    async with a_session(cluster, at) as values:
        with conditions.core_limits(cluster, waiting_requests=0):
            yield values


@asynccontextmanager
async def held(cluster: RunningCluster, at: str) -> AsyncGenerator[Values, None]:
    """The leader appends nothing, and requests time out soon."""
    async with a_session(cluster, at) as values:
        with conditions.held(cluster), pytest.MonkeyPatch.context() as patch:
            for running in cluster.nodes.values():
                hasty = running.node.config.model_copy(update={"request_timeout_ms": HASTY_MS})
                patch.setattr(running.node, "config", hasty)
            yield values
        await cluster.commands("n1", ["add", 0])  # The held writes are written before it.


@asynccontextmanager
async def no_reads(cluster: RunningCluster, at: str) -> AsyncGenerator[Values, None]:
    """As many reads as the limit wait for a majority's confirmation."""
    async with a_session(cluster, at) as values:
        with conditions.core_limits(cluster, reads_waiting=0):
            yield values


@asynccontextmanager
async def stopping(cluster: RunningCluster, at: str) -> AsyncGenerator[Values, None]:
    """The leader is stopping."""
    async with a_session(cluster, at) as values:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cluster.nodes["n1"].node.leadership, "_is_leaving", True)
            yield values


@asynccontextmanager
async def full_disk(cluster: RunningCluster, at: str) -> AsyncGenerator[Values, None]:
    """The next frame needs another segment, and no disk has room for it."""

    def full(descriptor: int, begin: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with a_session(cluster, at) as values:
        for _ in range(2):
            await cluster.commands("n1", *[["add", 0]] * (SEGMENT_BYTES // 8))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "posix_fallocate", full)
            yield values
        conditions.forget_fault(cluster)


@asynccontextmanager
async def no_room_for_sessions(cluster: RunningCluster, at: str) -> AsyncGenerator[Values, None]:
    """As many sessions as the limit are open, on every node."""
    with pytest.MonkeyPatch.context() as patch:
        for running in cluster.nodes.values():
            patch.setattr(running.node.components.applying.applier.sessions, "max_sessions", 0)
        yield {}


@asynccontextmanager
async def no_slots(cluster: RunningCluster, at: str) -> AsyncGenerator[Values, None]:
    """As many long polls and streams as the limits are open."""
    app = cluster.nodes[at].runner.app
    assert app is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app[API].long_polls, "_limit", 0)
        patch.setattr(app[API].leader_polls, "_limit", 0)
        patch.setattr(app[API].streams, "_limit", 0)
        yield {"session": str((await _done(cluster, "/sessions", b"{}")).document["session"])}


@asynccontextmanager
async def crowded(cluster: RunningCluster, at: str) -> AsyncGenerator[Values, None]:
    """As many connections as the limit are open, and the caller's is one more."""
    async with a_record(cluster, at) as record, a_session(cluster, at) as session:
        app = cluster.nodes[at].runner.app
        assert app is not None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(app[ADMISSION].connections, "limit", 0)
            async with ClientSession(connector=TCPConnector(), cookie_jar=DummyCookieJar()) as newcomer:
                patch.setattr(cluster, "session", newcomer)
                yield {**record, **session, "chunk": "0"}


def in_the_mood(mood: str) -> Condition:
    """The machine answers queries in this mood, on the asked node, too."""

    @asynccontextmanager
    async def condition(cluster: RunningCluster, at: str) -> AsyncGenerator[Values, None]:
        await cluster.commands("n1", mood)
        session = str((await _done(cluster, "/sessions", b"{}")).document["session"])
        async with a_record(cluster, at) as values:
            yield {**values, "session": session}

    return condition
