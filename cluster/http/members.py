"""The status of the other members, for `GET /cluster`.

It asks them over HTTP, and knows only the node's configuration and members.
"""

from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from ..node.components import NodeView
from .forwarding import KEEPALIVE_S, hop_headers

DEADLINE_S = 1.0  # For one member's status. A slower answer is of no use to someone watching a cluster.
ASKED_AT_ONCE = 4  # Connections to one member; further requests wait, within their deadline.
STATUS_LIMIT_BYTES = 1 << 20


class MemberStatuses:
    """Asks the other members for their status. `run` it as a cleanup context of the application."""

    def __init__(self, node: NodeView) -> None:
        self._node = node
        self._session: aiohttp.ClientSession

    async def run(self, _app: web.Application) -> AsyncIterator[None]:
        """Open connections of its own, so that a burst of forwarded writes does not make a member look silent."""
        connector = aiohttp.TCPConnector(limit_per_host=ASKED_AT_ONCE, keepalive_timeout=KEEPALIVE_S)
        async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as self._session:
            yield

    async def ask(self, request: web.Request, node_id: str) -> tuple[dict[str, Any] | None, str | None]:
        """A member's status, or why there is none."""
        scheme, context, name = self._node.credentials.dialled_by(node_id)
        url = f"{scheme}://{self._node.config.address_of(node_id)}/status"
        headers, timeout = hop_headers(self._node, request, node_id), aiohttp.ClientTimeout(total=DEADLINE_S)
        try:
            async with self._session.get(
                url, ssl=context, server_hostname=name, headers=headers, timeout=timeout, allow_redirects=False
            ) as response:
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
