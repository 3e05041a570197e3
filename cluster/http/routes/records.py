"""`/records` and `/index_bounds`: appending values and reading one record. (`ranges.py` reads many.)"""

import asyncio

from aiohttp import web

from quire.log import Kind, encode_blob
from quire.log.payload import stored_record
from quire.replication import Write

from ...config.serve import FRAME_OVERHEAD_BYTES
from ...errors import Malformed, NotInThisMode, StateUnavailable
from ...node.components import NodeView
from ...node.reading import Consistency, late_read
from ...node.views.status import visible_bounds
from ...node.writing import FutureWaiter
from ...rows import KIND_NAMES
from ..admission.admission import work_of
from ..admission.slow_callers import SENDING_COST
from ..api import API
from ..bodies import JSON, MSGPACK, NDJSON, OCTETS, answer, content_type_of, decode_records, read_body, size_of
from ..request import NO_SESSION, WriteId, integer_of, parameters_of, parse_integer, timeout_ms_of, write_id_of
from .commands import records_written, write_values, write_within_deadline

BIN_LIMIT_BYTES = 1 << 20  # Raw bytes up to this size are a record of type bin, longer ones a blob.
BODIES = (OCTETS, MSGPACK, NDJSON, JSON)


async def post_records(request: web.Request) -> web.StreamResponse:
    """{"write_index", "count"} of records that are on a majority's disks; under a session, also applied on this node.

    Under a session, `refused`, `cut` and `repeated` are as in the answer to `POST /commands`; a repeated write has no
    `write_index`. `index` is a condition for writing now, so a retry of an executed write is answered regardless of it.
    """
    api = request.app[API]
    node = api.node
    expected_index = integer_of(parameters_of(request, "index"), "index")
    write_id = write_id_of(request)
    content_type = content_type_of(request, BODIES)
    raw = content_type == OCTETS
    limit = node.config.max_frame_bytes - FRAME_OVERHEAD_BYTES if raw else node.config.max_request_bytes
    body = await read_body(request, limit)
    forwarded = await api.leader.forward(request, body, writes=True, repeats=write_id != NO_SESSION)
    if forwarded is not None:
        return forwarded
    await api.decoding.turn(len(body))
    if raw and len(body) > BIN_LIMIT_BYTES:
        reply = await write_within_deadline(request, _blob(node, body, expected_index, write_id))
    elif raw:
        room = limit + FRAME_OVERHEAD_BYTES
        reply = await write_values(
            request, [body], room, are_commands=False, expected_index=expected_index, write_id=write_id
        )
    else:
        values = decode_records(content_type, body, node.config.max_commands)
        reply = await write_values(
            request, values, limit, are_commands=False, expected_index=expected_index, write_id=write_id
        )
    return await records_written(request, reply)


def _blob(node: NodeView, body: bytes, expected_index: int | None, write_id: WriteId) -> Write[FutureWaiter]:
    if node.machine_name != "log":
        raise NotInThisMode(
            f"raw bytes above {BIN_LIMIT_BYTES} are a blob; the machine {node.machine_name} takes none, only log does"
        )
    session, sequence = write_id
    waiter = FutureWaiter(applied=session != 0)
    return Write(encode_blob(body), 1, Kind.BLOB, expected_index, session, sequence, owner=waiter)


async def get_index_bounds(request: web.Request) -> web.StreamResponse:
    """{"lowest_index", "highest_index"} of the records that are visible on this node.

    With `consistency=linearizable`, those of the leader: everything acknowledged before the request is below
    `highest_index`.
    """
    api = request.app[API]
    consistency = parameters_of(request, "consistency").get("consistency", Consistency.LOCAL)
    if consistency not in (Consistency.LINEARIZABLE, Consistency.LOCAL):
        known = f"{Consistency.LINEARIZABLE} or {Consistency.LOCAL}"
        raise Malformed(f"consistency must be {known} here, not {consistency[:24]!r}")
    if consistency == Consistency.LINEARIZABLE:
        forwarded = await api.leader.forward(request, None, writes=False)
        if forwarded is not None:
            return forwarded
        await _pass_barrier(request)
    bounds = visible_bounds(api.node)
    return answer(request, {"lowest_index": bounds.lowest_index, "highest_index": bounds.highest_index})


async def _pass_barrier(request: web.Request) -> None:
    """Return when a majority confirmed that this node leads. Raises NotLeader, NoLeader, StateUnavailable."""
    node = request.app[API].node
    if (error := node.leadership.not_leader()) is not None:
        raise error
    components, timeout_ms = node.components, timeout_ms_of(request, node.config.request_timeout_ms)
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await components.reading.barrier()
    except TimeoutError:
        raise StateUnavailable(late_read(Consistency.LINEARIZABLE, timeout_ms, components.writing.backlog)) from None


async def post_truncate(request: web.Request) -> web.Response:
    """Refused: a cluster keeps what it acknowledged."""
    parameters_of(request)
    raise NotInThisMode("only a standalone log can be truncated; a cluster keeps what it acknowledged")


async def get_record(request: web.Request) -> web.Response:
    """A record's value: the bytes of a bin or blob, anything else as JSON or msgpack."""
    parameters_of(request)
    index, work = parse_integer(request.match_info["index"], "the index"), work_of(request)
    await work.turn(alone=True)
    frame = request.app[API].node.components.reading.frame(index)
    record = stored_record(frame, index)
    if frame.header.count > 1:  # The records before it are passed over.
        work.charge(size=frame.header.length)
    headers = {"Quire-Kind": KIND_NAMES[Kind(record.kind)]}
    if isinstance(record.value, bytes):
        work.charge(size=len(record.value) // SENDING_COST)
        return web.Response(body=record.value, content_type=OCTETS, headers=headers)
    response = answer(request, record.value, headers)
    work.charge(size=size_of(response))
    return response
