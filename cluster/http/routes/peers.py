"""`/peer`, `/peer/stream` and `/peer/snapshot`: the routes for peers, on the same port as the clients'."""

from aiohttp import web

from quire.replication.net.hello import PATHS

from ...access.roles import Role
from ..admission.authorization import Route
from ..api import API


async def peer(request: web.Request) -> web.StreamResponse:
    """A link from a peer, or from a node that waits for the cluster to be formed."""
    node = request.app[API].node
    if node.formed is not None:
        return await node.formed.replica.network.link_server.serve(request)
    if node.forming is not None:
        return await node.forming.serve(request)
    raise web.HTTPServiceUnavailable


async def peer_stream(request: web.Request) -> web.StreamResponse:
    """A follower's stream."""
    node = request.app[API].node
    if node.formed is None:
        raise web.HTTPServiceUnavailable
    return await node.formed.replica.network.streams.server.serve(request)


async def peer_snapshot(request: web.Request) -> web.StreamResponse:
    """A follower that fetches a snapshot."""
    node = request.app[API].node
    if node.formed is None:
        raise web.HTTPServiceUnavailable
    return await node.formed.compaction.server.serve(request)


PEER_ROUTES = (
    Route("GET", PATHS["peer"], peer, Role.PEER),
    Route("GET", PATHS["stream"], peer_stream, Role.PEER),
    Route("GET", PATHS["snapshot"], peer_snapshot, Role.PEER),
)
