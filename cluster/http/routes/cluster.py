"""`GET /cluster`: the status of every member that this node reaches."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson
from aiohttp import web

from ..api import API
from ..bodies import answer
from ..forwarding import KEEPALIVE_S, hop_headers
from ..request import parameters_of

if TYPE_CHECKING:
    from ...node.node import Node

DEADLINE_S = 1.0  # For one member's status. A slower answer is of no use to someone watching a cluster.
ASKED_AT_ONCE = 4  # Connections to one member; further requests wait, within their deadline.
STATUS_LIMIT_BYTES = 1 << 20


class MemberStatuses:
    """Asks the other members for their status. `run` it as a cleanup context of the application."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._session: aiohttp.ClientSession

    async def run(self, _app: web.Application) -> AsyncIterator[None]:
        """Open connections of its own, so that a burst of forwarded writes does not make a member look silent."""
        connector = aiohttp.TCPConnector(limit_per_host=ASKED_AT_ONCE, keepalive_timeout=KEEPALIVE_S)
        async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as self._session:
            yield

    async def ask(self, request: web.Request, node_id: str) -> tuple[dict[str, Any] | None, str | None]:
        """A member's status, or why there is none."""
        url = f"http://{self._node.config.address_of(node_id)}/status"
        headers, timeout = hop_headers(self._node, request, node_id), aiohttp.ClientTimeout(total=DEADLINE_S)
        try:
            async with self._session.get(url, headers=headers, timeout=timeout, allow_redirects=False) as response:
                content = await _read(response)
        except TimeoutError:
            return None, f"no answer within {DEADLINE_S:g} s"
        except (aiohttp.ClientError, OSError) as error:
            return None, str(error) or type(error).__name__
        if response.status != HTTPStatus.OK or content is None:
            return None, f"it answered {response.status}" if content is not None else "its answer is too long"
        try:
            status = orjson.loads(content)
        except orjson.JSONDecodeError:
            status = None
        if not isinstance(status, dict) or status.get("node_id") != node_id:
            return None, "another program answered"
        return status, None


async def _read(response: aiohttp.ClientResponse) -> bytes | None:
    """The whole body; None if it is too long."""
    content = b""
    async for chunk in response.content.iter_any():
        content += chunk
        if len(content) > STATUS_LIMIT_BYTES:
            return None
    return content


async def get_cluster(request: web.Request) -> web.Response:
    """{"node_id", "leader", "leaders", "snapshots", "nodes"}: this node, the leader that it hears, every member by id.

    `leaders` lists the epochs in which the members that answered have led, oldest first. `snapshots` has the indices at
    which several of them have a snapshot, and those at which these differ. A member is {"address", "status",
    "failure"}: its own `/status`, or null and the reason.
    """
    parameters_of(request)
    api = request.app[API]
    node = api.node
    others = [node_id for node_id in node.config.members if node_id != node.node_id]
    asked = await asyncio.gather(*(api.members.ask(request, node_id) for node_id in others))
    statuses = {node.node_id: (node.status(), None), **dict(zip(others, asked, strict=True))}
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
    """{"compared", "differ"}: the indices at which several nodes have a snapshot, and those at which they differ."""
    sums: dict[int, list[str]] = {}
    for status in statuses:
        for kept in status.get("snapshots", {}).get("kept", ()):
            sums.setdefault(kept["index"], []).append(kept["sha256"])
    compared = sorted(index for index, found in sums.items() if len(found) > 1)
    return {"compared": compared, "differ": [index for index in compared if len(set(sums[index])) > 1]}


def leaders_of(statuses: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """{"epoch", "leader", "at", "reason"} of each epoch, from the node that led it: only that one knows the reason."""
    own = [
        {name: change[name] for name in ("epoch", "leader", "at", "reason")}
        for status in statuses
        for change in status.get("leaders", ())
        if change["role"] == "leader"
    ]
    return sorted(own, key=lambda change: change["epoch"])
