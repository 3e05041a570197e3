"""What a backup reads of a node beside its frames: the genesis frame, and snapshots chunk by chunk."""

from aiohttp import web

from ...errors import StateUnavailable
from ..admission.authorization import note_call
from ..api import API
from ..bodies import OCTETS
from ..request import parameters_of, parse_integer


async def get_genesis(request: web.Request) -> web.Response:
    """The cluster's genesis frame, as it is in the log at index 0."""
    parameters_of(request)
    node = request.app[API].node
    if (resources := node.resources) is None or node.formed is None:
        raise StateUnavailable("this node has not joined a cluster yet")
    return _octets(resources.data_dir.genesis_frame())


async def get_snapshot(request: web.Request) -> web.Response:
    """The manifest of this node's snapshot at an index. The snapshot is kept for a minute."""
    parameters_of(request)
    reads = request.app[API].node.components.compaction.reads
    return _octets(await reads.manifest(_index_of(request)))


async def get_chunk(request: web.Request) -> web.Response:
    """A chunk of this node's snapshot at an index, by number from 0. The snapshot is kept for a minute."""
    parameters_of(request)
    note_call(request, request.match_info["index"], once=True)  # Not of each chunk.
    reads = request.app[API].node.components.compaction.reads
    number = parse_integer(request.match_info["chunk"], "the chunk")
    return _octets(await reads.chunk(_index_of(request), number))


def _index_of(request: web.Request) -> int:
    return parse_integer(request.match_info["index"], "the index")


def _octets(data: bytes) -> web.Response:
    return web.Response(body=data, content_type=OCTETS)
