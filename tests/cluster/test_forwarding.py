"""One hop to the leader: a write is written once and answered truthfully."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import orjson
import pytest

from quire.cluster.client import OutcomeUnknown, Unavailable, connect
from quire.cluster.http.forwarding import connect_timeout_s, ping_s
from quire.replication.address import host_and_port
from tests.cluster.running import RunningCluster, free_addresses, running_cluster
from tests.replication.loopback import until

JSON = "application/json"
DEADLINE_S = 30.0
LOCAL_STATE = "/state?consistency=local"
ADD_3 = orjson.dumps({"commands": [["add", 3]]})


class Relay:
    """A relay to a node. It passes everything on until `cut` says otherwise for a request."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.address = ""
        self.requests: list[bytes] = []
        self.cut: Callable[[bytes], bool] = lambda _request: False
        self.swallow: Callable[[bytes], bool] = lambda _request: False
        self.deafens: Callable[[bytes], bool] = lambda _request: False
        self.held: list[bytes] = []
        self.lost: set[asyncio.StreamWriter] = set()
        self.connections: dict[asyncio.StreamWriter, bytes] = {}
        self.breaks = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one connection on; a request to be cut reaches the node, but its answer does not come back.

        A swallowed one does not reach it, nor does what comes on a `lost` one of the `connections`, each with its last
        request; and `deafens` has the node answer in vain: the connection stays open, until `breaks`.
        """
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(*host_and_port(self.target))
        except ConnectionError:
            writer.transport.abort()
            return
        self.connections[writer] = b""
        back = asyncio.create_task(_copy(upstream_reader, writer))
        try:
            while chunk := await reader.read(1 << 16):
                self.requests.append(chunk.partition(b"\r\n")[0])
                self.connections[writer] = chunk
                if writer in self.lost or self.swallow(chunk) or self.deafens(chunk):  # Now it is silent, both ways.
                    back.cancel()
                    if self.deafens(chunk):
                        upstream_writer.write(chunk)
                        await upstream_reader.read(1)
                    self.held.append(chunk)
                    await self.breaks.wait()
                    return
                upstream_writer.write(chunk)
                if self.cut(chunk):
                    back.cancel()
                    await upstream_reader.read(1)  # The node has answered: it is done.
                    return
        finally:
            del self.connections[writer]
            back.cancel()
            upstream_writer.close()
            writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while chunk := await reader.read(1 << 16):
            writer.write(chunk)
        writer.close()


@asynccontextmanager
async def relaying(target: str) -> AsyncGenerator[Relay]:
    relay = Relay(target)
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
    relay.address = "{}:{}".format(*server.sockets[0].getsockname()[:2])
    try:
        yield relay
    finally:
        server.close()


@asynccontextmanager
async def relayed(directory: Path, **settings: Any) -> AsyncGenerator[tuple[RunningCluster, Relay], None]:
    """Three nodes, of which n2 reaches the leader only by a relay."""
    addresses = free_addresses(3)
    async with relaying(addresses[0]) as relay:
        links = {"n2": {"n1": relay.address}}
        async with running_cluster(directory, addresses=addresses, links=links, **settings) as cluster:
            yield cluster, relay


async def test_a_write_through_a_follower_costs_one_hop_and_is_written_once(tmp_path: Path) -> None:
    async with relayed(tmp_path) as (cluster, relay):
        relay.requests.clear()
        answer = await cluster.commands("n2", ["add", 3])

        assert answer["results"] == ["45"]
        assert [line for line in relay.requests if b"/commands" in line] == [b"POST /commands HTTP/1.1"]
        assert (await cluster.ask("n1", "GET", "/state")).document["state"] == "45"


async def test_query_body_and_encoding_are_forwarded_as_they_came(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, machine="log") as cluster:
        highest = (await cluster.ask("n1", "GET", "/index_bounds")).document["highest_index"]

        written = await cluster.ask("n2", "POST", f"/records?index={highest}", b'{"a": 1}', JSON)
        wrong = await cluster.ask("n2", "POST", f"/records?index={highest}", b'{"a": 1}', JSON)

        assert written.document == {"write_index": highest, "count": 1}
        assert (wrong.status, wrong.problem, wrong.document["highest_index"]) == (409, "wrong-index", highest + 1)


async def test_a_forwarded_request_is_not_forwarded_again(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        reply = await cluster.ask("n2", "POST", "/commands", ADD_3, JSON, {"Quire-Forwarded": "n3"})

        assert (reply.status, reply.problem, reply.document["leader"]) == (503, "not-leader", "n1")
        assert reply.headers["Retry-After"] == "1"
        assert (await cluster.ask("n1", "GET", "/state")).document["state"] == "42"


async def test_a_write_whose_answer_is_lost_on_the_hop_has_an_unknown_outcome(tmp_path: Path) -> None:
    async with relayed(tmp_path) as (cluster, relay):
        relay.cut = lambda request: request.startswith((b"POST /commands", b"POST /records"))

        reply = await cluster.ask("n2", "POST", "/commands", ADD_3, JSON)
        async with connect(cluster.address("n2")) as client:
            with pytest.raises(OutcomeUnknown):
                await client.append(["add", 3])

        assert (reply.status, reply.problem) == (504, "outcome-unknown")
        # Both were written, each once, although the outcome was unknown to the caller.
        assert (await cluster.ask("n1", "GET", "/state")).document["state"] == "48"


async def test_a_read_whose_answer_is_lost_on_the_hop_is_unavailable(tmp_path: Path) -> None:
    async with relayed(tmp_path) as (cluster, relay):
        relay.cut = lambda request: request.startswith(b"GET /state")

        reply = await cluster.ask("n2", "GET", "/state?consistency=leader")

        assert (reply.status, reply.problem) == (503, "leader-unreachable")


@pytest.mark.full
async def test_a_hop_that_carries_nothing_back_leaves_the_outcome_of_a_write_unknown(tmp_path: Path) -> None:
    async with relayed(tmp_path, request_timeout_ms=3_000) as (cluster, relay):
        relay.swallow = lambda request: request.startswith((b"POST /commands", b"GET /state"))

        write, read = await asyncio.gather(
            cluster.ask("n2", "POST", "/commands", ADD_3, JSON),
            cluster.ask("n2", "GET", "/state?consistency=leader"),
        )

        assert (write.status, write.problem) == (504, "outcome-unknown")
        assert (read.status, read.problem) == (503, "leader-unreachable")


@pytest.mark.full
async def test_a_call_to_a_leader_that_is_heard_no_longer_ends_long_before_its_deadline(tmp_path: Path) -> None:
    async with relayed(tmp_path, request_timeout_ms=600_000) as (cluster, relay):
        relay.swallow = lambda request: request.startswith(b"POST /commands")
        call = asyncio.create_task(cluster.ask("n2", "POST", "/commands", ADD_3, JSON))
        await until(lambda: any(request.startswith(b"POST /commands") for request in relay.requests))
        await cluster.stop("n1")

        reply = await asyncio.wait_for(call, DEADLINE_S)

        assert (reply.status, reply.problem) == (504, "outcome-unknown")


async def test_a_leader_that_is_gone_is_503_and_nothing_is_written(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        await cluster.commands("n1", ["add", 3])
        async with asyncio.timeout(DEADLINE_S):
            while (await cluster.ask("n2", "GET", LOCAL_STATE)).document["state"] != "45":
                pass  # A follower learns of a commit a moment after the client.
        await cluster.stop("n3")  # So that n2 cannot win an election.
        await cluster.stop("n1")
        problems = set()
        while True:
            reply = await cluster.ask("n2", "POST", "/commands", ADD_3, JSON)
            assert reply.status == 503
            problems.add(reply.problem)
            if reply.problem == "no-leader":
                break
        assert problems <= {"leader-unreachable", "no-leader"}

        assert (await cluster.ask("n2", "GET", LOCAL_STATE)).document["state"] == "45"
        assert (await cluster.ask("n2", "GET", "/readyz")).document["reasons"]


@pytest.mark.parametrize(
    ("election_timeout_ms", "request_timeout_ms", "seconds"),
    [(300, 10_000, 1.0), (1_000, 10_000, 1.0), (5_000, 10_000, 5.0), (60_000, 2_000, 2.0), (60_000, 500, 1.0)],
)
async def test_connecting_to_the_leader_may_take_as_long_as_it_may_be_silent_within_the_request_s_deadline(
    tmp_path: Path, election_timeout_ms: int, request_timeout_ms: int, seconds: float
) -> None:
    times: dict[str, Any] = {"election_timeout_ms": election_timeout_ms, "request_timeout_ms": request_timeout_ms}
    async with running_cluster(tmp_path, count=1, **times) as cluster:
        assert connect_timeout_s(cluster.nodes["n1"].node) == seconds


@pytest.mark.parametrize(("election_timeout_ms", "seconds"), [(300, 2.0), (1_000, 2.0), (5_000, 10.0)])
async def test_a_stream_to_the_leader_is_given_up_after_three_election_timeouts_of_silence_at_most_and_three_seconds(
    tmp_path: Path, election_timeout_ms: int, seconds: float
) -> None:
    """The pong has half as long again as the ping waits."""
    async with running_cluster(tmp_path, count=1, election_timeout_ms=election_timeout_ms) as cluster:
        assert ping_s(cluster.nodes["n1"].node) == seconds


async def test_a_leader_without_a_majority_leaves_the_outcome_unknown(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, request_timeout_ms=500) as cluster:
        await cluster.stop("n2")
        await cluster.stop("n3")

        reply = await cluster.ask("n1", "POST", "/commands", ADD_3, JSON)

        assert reply.status in (503, 504)
        assert reply.problem in ("outcome-unknown", "no-leader")


@pytest.mark.full
async def test_a_client_rides_over_a_restart_of_the_leader(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster, connect(cluster.address("n2"), timeout_s=20) as client:
        assert await client.apply(["add", 3]) == "45"
        await cluster.restart("n1")
        assert await client.apply(["div", 5]) == "9"


async def test_a_client_that_finds_no_leader_says_so_in_time(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        for node_id in ("n1", "n2"):
            await cluster.stop(node_id)
        async with connect(cluster.address("n3"), timeout_s=0.5) as client:
            with pytest.raises(Unavailable):
                await client.apply(["add", 3])
