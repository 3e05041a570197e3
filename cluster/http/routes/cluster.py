"""`GET /cluster`: what every member says of itself, as far as this node reaches it."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from http import HTTPStatus
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from ..encoding import answer
from ..forwarding import hop_headers
from ..keys import ASKING, NODE
from ..parameters import parameters_of

DEADLINE_S = 1.0  # For one member's answer. Who needs longer is of no use to who watches a cluster.
ASKED_AT_ONCE = 4  # Connections to one member; what comes on top waits within its deadline.
STATUS_LIMIT_BYTES = 1 << 20


async def asking_session(app: web.Application) -> AsyncIterator[None]:
    """Connections of their own, so that a burst of forwarded writes makes no member look silent."""
    connector = aiohttp.TCPConnector(limit_per_host=ASKED_AT_ONCE, keepalive_timeout=15.0)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:
        app[ASKING] = session
        yield


async def get_cluster(request: web.Request) -> web.Response:
    """{"node_id", "leader", "leaders", "snapshots", "nodes"}: this node, the leader that it hears, every member by id.

    `leaders` is what the members that answered say of the epochs in which they led, oldest first. `snapshots` says at
    which indices several of them have a snapshot, and at which those differ. A member is {"address", "status",
    "failure"}: its own `/status`, or null and why it did not come in time.
    """
    parameters_of(request)
    node = request.app[NODE]
    others = [node_id for node_id in node.config.members if node_id != node.node_id]
    told = await asyncio.gather(*(_ask(request, node_id) for node_id in others))
    statuses = {node.node_id: (node.status(), None), **dict(zip(others, told, strict=True))}
    nodes: dict[str, Any] = {}
    for node_id, address in node.config.members.items():
        status, failure = statuses[node_id]
        nodes[node_id] = {"address": address, "status": status, "failure": failure}
    answered = [status for status, _ in statuses.values() if status]
    document = {
        "node_id": node.node_id,
        "leader": node.leader_id,
        "leaders": leaders_of(answered),
        "snapshots": compare_snapshots(answered),
        "nodes": nodes,
    }
    return answer(request, document)


def compare_snapshots(statuses: Iterable[dict[str, Any]]) -> dict[str, list[int]]:
    """{"compared", "differ"}: the indices at which several nodes have a snapshot, and at which it is not the same."""
    sums: dict[int, list[str]] = {}
    for status in statuses:
        for kept in status.get("snapshots", {}).get("kept", ()):
            sums.setdefault(kept["index"], []).append(kept["sha256"])
    compared = sorted(index for index, found in sums.items() if len(found) > 1)
    return {"compared": compared, "differ": [index for index in compared if len(set(sums[index])) > 1]}


def leaders_of(statuses: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """{"epoch", "leader", "at", "reason"} of each epoch that a node led: its own word, since it alone knows why."""
    own = [
        {name: change[name] for name in ("epoch", "leader", "at", "reason")}
        for status in statuses
        for change in status.get("leaders", ())
        if change["role"] == "leader"
    ]
    return sorted(own, key=lambda change: change["epoch"])


async def _ask(request: web.Request, node_id: str) -> tuple[dict[str, Any] | None, str | None]:
    """A member's status, or why there is none."""
    node = request.app[NODE]
    url = f"http://{node.config.address_of(node_id)}/status"
    headers, timeout = hop_headers(request), aiohttp.ClientTimeout(total=DEADLINE_S)
    try:
        async with request.app[ASKING].get(url, headers=headers, timeout=timeout, allow_redirects=False) as told:
            content = await _read(told)
    except TimeoutError:
        return None, f"no answer within {DEADLINE_S:g} s"
    except (aiohttp.ClientError, OSError) as error:
        return None, str(error) or type(error).__name__
    if told.status != HTTPStatus.OK or content is None:
        return None, f"it answered {told.status}" if content is not None else "its answer is too long"
    try:
        status = orjson.loads(content)
    except orjson.JSONDecodeError:
        status = None
    if not isinstance(status, dict) or status.get("node_id") != node_id:
        return None, "another program answers there"
    return status, None


async def _read(told: aiohttp.ClientResponse) -> bytes | None:
    """The whole body; None where it is too long."""
    content = b""
    async for chunk in told.content.iter_any():
        content += chunk
        if len(content) > STATUS_LIMIT_BYTES:
            return None
    return content
