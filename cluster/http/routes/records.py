"""`/records` and `/index_bounds`: appending values, reading one back. (Ranges: `ranges.py`.)"""

from typing import TYPE_CHECKING

from aiohttp import web

from quire.log import Kind, encode_blob
from quire.replication import Write

from ...config.serve import FRAME_OVERHEAD_BYTES
from ...errors import NotInThisMode
from ...node.pending import FutureWaiter
from ..decoding import JSON, MSGPACK, NDJSON, OCTETS, content_type_of, decode_records, read_body
from ..encoding import answer
from ..forwarding import forward
from ..keys import NODE
from ..parameters import integer_of, parameters_of, parse_integer
from .ranges import KIND_NAMES
from .sessions import Place, place_of
from .writing import write_values, write_within_deadline

if TYPE_CHECKING:
    from ...node.node import Node

BIN_LIMIT_BYTES = 1 << 20  # Raw bytes up to here are a record of type bin, above it a blob: DESIGN 7.
BODIES = (OCTETS, MSGPACK, NDJSON, JSON)


async def post_records(request: web.Request) -> web.StreamResponse:
    """{"write_index", "count"} of records that are on a majority's disks."""
    node = request.app[NODE]
    expected_index = integer_of(parameters_of(request, "index"), "index")
    place = place_of(request)
    content_type = content_type_of(request, BODIES)
    raw = content_type == OCTETS
    limit = node.config.max_frame_bytes - FRAME_OVERHEAD_BYTES if raw else node.config.max_request_bytes
    body = await read_body(request, limit)
    forwarded = await forward(request, body, writes=True)
    if forwarded is not None:
        return forwarded
    if raw and len(body) > BIN_LIMIT_BYTES:
        reply = await write_within_deadline(request.app, _blob(node, body, expected_index, place))
    else:
        values = [body] if raw else decode_records(content_type, body)
        room = limit + FRAME_OVERHEAD_BYTES if raw else limit
        reply = await write_values(request.app, values, room, applied=False, expected_index=expected_index, place=place)
    return answer(request, {"write_index": reply.index, "count": reply.count})


def _blob(node: "Node", body: bytes, expected_index: int | None, place: Place) -> Write[FutureWaiter]:
    if node.machine_name != "log":
        raise NotInThisMode(
            f"raw bytes above {BIN_LIMIT_BYTES} are a blob; the machine {node.machine_name} takes none, only log does"
        )
    session, sequence = place
    waiter = FutureWaiter(applied=False)
    return Write(encode_blob(body), 1, Kind.BLOB, expected_index, session, sequence, owner=waiter)


async def get_index_bounds(request: web.Request) -> web.Response:
    """{"lowest_index", "highest_index"} of what is visible on this node."""
    parameters_of(request)
    bounds = request.app[NODE].visible_bounds
    return answer(request, {"lowest_index": bounds.lowest_index, "highest_index": bounds.highest_index})


async def post_truncate(request: web.Request) -> web.Response:
    """No cluster forgets what it acknowledged."""
    parameters_of(request)
    raise NotInThisMode("only a standalone log can be truncated; a cluster keeps what it acknowledged")


async def get_record(request: web.Request) -> web.Response:
    """The bytes of a bin or blob; any other value as JSON or msgpack."""
    parameters_of(request)
    index = parse_integer(request.match_info["index"], "the index")
    record = request.app[NODE].components.reading.read(index)
    headers = {"Quire-Kind": KIND_NAMES[Kind(record.kind)]}
    if isinstance(record.value, bytes):
        return web.Response(body=record.value, content_type=OCTETS, headers=headers)
    return answer(request, record.value, headers)
