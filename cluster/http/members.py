"""What a node asks of other members over HTTP: their status, and what an operator wants of one of them."""

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any

import aiohttp
import orjson
from aiohttp import hdrs, web
from yarl import URL

from quire.replication.names import Connector

from ..errors import NodeUnreachable
from ..node.components import NodeView
from ..outgoing import NO_NODE, OwnAnswer
from ..request_id import REQUEST_ID
from .admission.admission import ADMISSION
from .forwarding import KEEPALIVE_S, hop_headers

PASS_ON_DEADLINE_S = 5.0
DEADLINE_S = 1.0  # For one member's status. A slower answer is of no use to someone watching a cluster.
ASKED_AT_ONCE = 4  # Connections to one member; further requests wait, within their deadline.
STATUS_LIMIT_BYTES = 1 << 20

Asked = tuple[dict[str, Any] | None, str | None]
"""A member's status, or why there is none."""


class MemberStatuses:
    """Asks the other members for their status. `run` it as a cleanup context of the application."""

    def __init__(self, node: NodeView) -> None:
        self._node = node
        self._connector: Connector
        self._session: aiohttp.ClientSession

    async def run(self, _app: web.Application) -> AsyncIterator[None]:
        """Open connections of its own, so that a burst of forwarded writes does not make a member look silent."""
        names, most = self._node.names, ASKED_AT_ONCE
        self._connector = Connector(names, DEADLINE_S, limit_per_host=most, keepalive_timeout=KEEPALIVE_S)
        async with aiohttp.ClientSession(
            connector=self._connector, cookie_jar=aiohttp.DummyCookieJar(), response_class=OwnAnswer
        ) as self._session:
            yield

    async def ask_all(self, request: web.Request) -> dict[str, Asked]:
        """The status of each other member, or why there is none."""
        others = [node_id for node_id in self._node.addresses.all() if node_id != self._node.config.node]
        asked = await asyncio.gather(*(self.ask(request, node_id) for node_id in others))
        return dict(zip(others, asked, strict=True))

    async def pass_on(self, request: web.Request, node_id: str, body: bytes) -> web.Response:
        """Another node's answer to this request, which is for that node alone.

        Raises:
            NodeUnreachable: it does not answer; NotLeader: the request was passed on already.
        """
        if request.app[ADMISSION].is_forwarded(request):
            raise NodeUnreachable(node_id, "the request was passed on already")
        scheme, context, name = self._node.credentials.dialled_by(node_id)
        address = self._node.addresses.reached(node_id)
        url = URL(f"{scheme}://{address}{request.rel_url.raw_path_qs}", encoded=True)
        kept = {name: request.headers[name] for name in (hdrs.ACCEPT, hdrs.CONTENT_TYPE) if name in request.headers}
        try:
            async with self._session.request(
                request.method,
                url,
                data=body,
                ssl=context,
                server_hostname=name,
                headers=kept | hop_headers(self._node, request, node_id),
                timeout=aiohttp.ClientTimeout(total=PASS_ON_DEADLINE_S),
                allow_redirects=False,
            ) as response:
                content = await _read(response)
        except (aiohttp.ClientError, OSError) as error:
            raise NodeUnreachable(node_id, self._lost(url, error, PASS_ON_DEADLINE_S)) from None
        if REQUEST_ID not in response.headers:
            raise NodeUnreachable(node_id, NO_NODE)
        if content is None:
            raise NodeUnreachable(node_id, "its answer is too long")
        return web.Response(status=response.status, body=content, content_type=response.content_type)

    async def ask(self, request: web.Request, node_id: str) -> Asked:
        """A member's status, or why there is none."""
        scheme, context, name = self._node.credentials.dialled_by(node_id)
        url = URL(f"{scheme}://{self._node.addresses.reached(node_id)}/status")
        headers, timeout = hop_headers(self._node, request, node_id), aiohttp.ClientTimeout(total=DEADLINE_S)
        try:
            async with self._session.get(
                url, ssl=context, server_hostname=name, headers=headers, timeout=timeout, allow_redirects=False
            ) as response:
                content = await _read(response)
        except (aiohttp.ClientError, OSError) as error:
            return None, self._lost(url, error, DEADLINE_S)
        if response.status != HTTPStatus.OK or content is None:
            return None, f"it answered {response.status}" if content is not None else "its answer is too long"
        try:
            status = orjson.loads(content)
        except orjson.JSONDecodeError:
            status = None
        if not isinstance(status, dict) or status.get("node_id") != node_id:
            return None, "another program answered"
        return status, None

    def _lost(self, url: URL, error: Exception, deadline_s: float) -> str:
        """Why no answer came."""
        self._connector.drop_kept(url)
        is_late = isinstance(error, TimeoutError)
        return f"no answer within {deadline_s:g} s" if is_late else str(error) or type(error).__name__


async def _read(response: aiohttp.ClientResponse) -> bytes | None:
    """The whole body; None if it is too long."""
    content = b""
    async for chunk in response.content.iter_any():
        content += chunk
        if len(content) > STATUS_LIMIT_BYTES:
            return None
    return content
