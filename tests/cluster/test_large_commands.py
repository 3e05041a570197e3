"""With `max_request_bytes` raised, a command of nearly that size passes on every way to the log.

It is larger than each window that it passes: the client's, the stream's at the node, and a follower's.
"""

from collections.abc import AsyncGenerator
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import WSMsgType

from quire.cluster.client import BadRequest, connect
from quire.cluster.client.pipeline import WINDOW_BYTES as CLIENT_WINDOW_BYTES
from quire.cluster.http.routes.stream import WINDOW_BYTES as STREAM_WINDOW_BYTES
from quire.log import pack
from tests.cluster.running import RunningCluster, running_cluster
from tests.packed import unpacked

pytestmark = pytest.mark.asyncio(loop_scope="module")

EVERYWHERE = pytest.mark.parametrize("at", ["n1", "n3"])
MSGPACK = "application/msgpack"
LIMIT = 9 << 20
HEADS_BYTES = 32
LARGE = "x" * (LIMIT - HEADS_BYTES)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[RunningCluster, None]:
    settings: dict[str, Any] = {
        "max_request_bytes": LIMIT,
        "max_frame_bytes": LIMIT + (1 << 20),
        "check_invariants": False,
    }
    async with running_cluster(tmp_path_factory.mktemp("large"), machine="log", **settings) as running:
        config = running.nodes["n1"].config
        assert max(CLIENT_WINDOW_BYTES, STREAM_WINDOW_BYTES, config.stream_window_bytes) < len(LARGE)
        yield running


async def test_a_large_command_passes_by_apply_and_the_next_ones_too(cluster: RunningCluster) -> None:
    async with connect(cluster.address("n3"), timeout_s=60.0) as client:
        first = await client.submit("small")
        large = await client.submit(LARGE)
        last = await client.submit("small")

        assert [await answer for answer in (first, large, last)] == [None] * 3
        with pytest.raises(BadRequest, match=f"above the limit of {LIMIT}"):
            await client.apply(LARGE + "x" * HEADS_BYTES)
        reply = await client.apply_batch([LARGE])
        assert reply.index is not None
        assert await client.read(reply.index) == LARGE


@EVERYWHERE
async def test_a_large_command_passes_by_post(cluster: RunningCluster, at: str) -> None:
    reply = await cluster.ask(at, "POST", "/commands", pack({"commands": [LARGE]}), MSGPACK)

    assert reply.status == 200, reply


@EVERYWHERE
async def test_a_large_command_passes_by_a_stream(cluster: RunningCluster, at: str) -> None:
    session = (await cluster.ask(at, "POST", "/sessions", b"{}", "application/json")).document["session"]
    url = f"http://{cluster.address(at)}/commands/stream?session={session}"
    async with cluster.session.ws_connect(url) as socket:
        for sequence in (1, 2):
            await socket.send_bytes(pack([sequence, [LARGE]]))
        for sequence in (1, 2):
            message = await socket.receive(60.0)
            assert message.type is WSMsgType.BINARY
            assert (unpacked(message.data)[0], unpacked(message.data)[3]) == (sequence, [None])
