"""A client's call goes on to the next server while one is silent: it is dialled, and neither answers nor refuses.

No time passes here that would end the attempt at the silent one: it has an hour.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web

from quire.cluster.client import Client, OutcomeUnknown, connect
from quire.cluster.request_id import REQUEST_ID
from quire.log import pack
from tests.cluster.running import RunningCluster, running_cluster
from tests.cluster.scripted import appended, broken, document, scripted
from tests.replication.loopback import until

DEADLINE_S = 20
AN_HOUR_S = 3600.0
STATE = {"state": 45, "applied_index": 8, "digest": "00"}


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("READ_ATTEMPT_TIMEOUT_S", "STREAM_CONNECT_TIMEOUT_S", "CONNECT_TIMEOUT_S"):
        monkeypatch.setattr(f"quire.cluster.client.transport.{name}", AN_HOUR_S)


@dataclass
class Frozen:
    """A server whose connections are accepted and never read by anybody: it keeps what was sent."""

    address: str = ""
    heard: list[bytes] = field(default_factory=list)

    @property
    def requests(self) -> list[bytes]:
        """The first line of each request."""
        return [each.partition(b" HTTP")[0] for each in self.heard]


@asynccontextmanager
async def frozen() -> AsyncGenerator[Frozen, None]:
    kept = Frozen()

    async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while chunk := await reader.read(1 << 16):
                kept.heard.append(chunk)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(keep, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    kept.address = f"{host}:{port}"
    try:
        yield kept
    finally:
        server.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[RunningCluster, None]:
    folder: Path = tmp_path_factory.mktemp("silent")
    async with running_cluster(folder) as running:
        yield running


CALLS: dict[str, Callable[[Client], Awaitable[object]]] = {
    "a command with a session": lambda client: client.apply(["add", 1]),
    "a write without one": lambda client: client.append(["add", 1]),
    "a read of the machine": lambda client: client.state(),
    "a read of the log": lambda client: client.read(0),
    "an operator's read": lambda client: client.members(),
    "an operator's change": lambda client: client.transfer("n1"),
}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("call", CALLS)
async def test_a_fresh_client_begins_with_the_next_server_if_the_first_is_silent(
    cluster: RunningCluster, call: str
) -> None:
    async with (
        frozen() as silent,
        asyncio.timeout(DEADLINE_S),
        connect([silent.address, cluster.address("n2"), cluster.address("n1")]) as client,
    ):
        await CALLS[call](client)


async def test_what_must_not_be_sent_twice_is_not_sent_to_a_silent_server() -> None:
    async with frozen() as silent, scripted(broken) as server, asyncio.timeout(DEADLINE_S):
        async with connect([silent.address, server.address]) as client:
            with pytest.raises(OutcomeUnknown):
                await client.append("x")
        assert silent.requests == [b"GET /healthz"]
        assert [request[:2] for request in server.requests] == [("POST", "/records")]


async def test_a_server_that_was_silent_is_dialled_last_even_if_it_is_named_as_the_leader() -> None:
    async with frozen() as silent, scripted(appended(1)) as server, asyncio.timeout(DEADLINE_S):
        server.steps[:] = [appended(1, leader=silent.address)]
        async with connect([silent.address, server.address]) as client:
            for _ in range(5):
                await client.append("x")
        assert silent.requests == [b"GET /healthz"]
        assert len(server.requests) == 5


async def test_a_read_of_a_slow_server_is_waited_for_and_not_sent_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.cluster.client.leader.turns.PING_S", AN_HOUR_S)
    pinged, reads = asyncio.Event(), list[str]()

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/healthz":
            pinged.set()
            body: object = {"alive": True}
        else:
            reads.append(request.path)
            await pinged.wait()
            await until(lambda: True)
            body = STATE
        headers = {REQUEST_ID: request.headers[REQUEST_ID]}
        return web.Response(body=pack(body), content_type="application/msgpack", headers=headers)

    app = web.Application()
    app.router.add_route("GET", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        async with scripted(document(STATE)) as other, asyncio.timeout(DEADLINE_S):
            async with connect([f"{host}:{port}", other.address]) as client:
                assert (await client.state()).state == 45
            assert (len(reads), other.requests) == (1, [])
    finally:
        await runner.cleanup()
