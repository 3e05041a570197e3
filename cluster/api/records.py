"""`/records` and `/index_bounds`: appending values, reading them back."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from aiohttp import web

from quire.log import Kind, StoredRecord, encode_blob, stored_records, walk_frames
from quire.replication import Write

from ..config import FRAME_OVERHEAD_BYTES
from ..errors import Expired, Malformed, NotInThisMode, OutOfBounds
from .decoding import JSON, MSGPACK, NDJSON, OCTETS, content_type_of, decode_records, read_body
from .encoding import RAW_FRAMES, accepted, answer, records_answer
from .forwarding import forward
from .keys import NODE
from .parameters import integer_of, parameters_of, parse_integer
from .sessions import Place, place_of
from .writing import write_values, write_within_deadline

if TYPE_CHECKING:
    from ..node import Node

BIN_LIMIT_BYTES = 1 << 20  # Raw bytes up to here are a record of type bin, above it a blob: DESIGN 7.
BODIES = (OCTETS, MSGPACK, NDJSON, JSON)

# Decoding a range holds up everything else on this node, so less of it is done at a time than of raw bytes.
DECODED_RANGE_BYTES = 1 << 18
RAW_RANGE_BYTES = 8 << 20

KIND_NAMES = {Kind.RECORDS: "records", Kind.RUNS: "records", Kind.BLOB: "blob", Kind.SYSTEM: "system"}


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
        reply = await write_within_deadline(node, _blob(node, body, expected_index, place), applied=False)
    else:
        values = [body] if raw else decode_records(content_type, body)
        room = limit + FRAME_OVERHEAD_BYTES if raw else limit
        reply = await write_values(node, values, room, applied=False, expected_index=expected_index, place=place)
    return answer(request, {"write_index": reply.index, "count": reply.count})


def _blob(node: "Node", body: bytes, expected_index: int | None, place: Place) -> Write:
    if node.machine_name != "log":
        raise NotInThisMode(
            f"raw bytes above {BIN_LIMIT_BYTES} are a blob; the machine {node.machine_name} takes none, only log does"
        )
    session, sequence = place
    return Write(encode_blob(body), 1, Kind.BLOB, expected_index, session, sequence)


async def get_index_bounds(request: web.Request) -> web.Response:
    """{"lowest_index", "highest_index"} of what is visible on this node."""
    parameters_of(request)
    bounds = request.app[NODE].visible_bounds
    return answer(request, {"lowest_index": bounds.lowest_index, "highest_index": bounds.highest_index})


async def get_record(request: web.Request) -> web.Response:
    """The bytes of a bin or blob; any other value as JSON or msgpack."""
    parameters_of(request)
    index = parse_integer(request.match_info["index"], "the index")
    record = request.app[NODE].read(index)
    headers = {"Quire-Kind": KIND_NAMES[Kind(record.kind)]}
    if isinstance(record.value, bytes):
        return web.Response(body=record.value, content_type=OCTETS, headers=headers)
    return answer(request, record.value, headers)


async def get_records(request: web.Request) -> web.Response:
    """Records [from, to) that are visible here, as many as max_bytes of frames hold; `Quire-Next-Index` says where to
    go on. System records are left out, except of raw frames.
    """
    node = request.app[NODE]
    parameters = parameters_of(request, "from", "to", "max_bytes")
    content_type = accepted(request, (NDJSON, MSGPACK, RAW_FRAMES))
    largest = RAW_RANGE_BYTES if content_type == RAW_FRAMES else DECODED_RANGE_BYTES
    bounds = node.visible_bounds
    from_index = integer_of(parameters, "from")
    from_index = bounds.lowest_index if from_index is None else from_index
    to_index = integer_of(parameters, "to")
    to_index = bounds.highest_index if to_index is None else min(to_index, bounds.highest_index)
    max_bytes = integer_of(parameters, "max_bytes", largest)
    _check_range(from_index, integer_of(parameters, "to"), bounds.lowest_index, bounds.highest_index)
    raw, next_index = b"", from_index
    if from_index < to_index:
        raw, next_index = node.read_frames(from_index, largest if max_bytes is None else max_bytes)
    if content_type == RAW_FRAMES:
        return web.Response(body=raw, content_type=RAW_FRAMES, headers={"Quire-Next-Index": str(next_index)})
    return records_answer(request, list(_lines(raw, from_index, to_index)), min(next_index, to_index))


def _check_range(from_index: int, to_index: int | None, lowest: int, highest: int) -> None:
    if to_index is not None and to_index < from_index:
        raise Malformed(f"to={to_index} lies before from={from_index}")
    if from_index < lowest:
        raise Expired(from_index, lowest)
    if from_index > highest:
        raise OutOfBounds(from_index, lowest, highest)


def _lines(raw: bytes, from_index: int, to_index: int) -> Iterator[dict[str, Any]]:
    for frame in walk_frames(raw):
        if frame.header.kind == Kind.SYSTEM:
            continue
        for record in stored_records(frame):
            if from_index <= record.index < to_index:
                yield _line(record)


def _line(record: StoredRecord) -> dict[str, Any]:
    return {
        "index": record.index,
        "epoch": record.epoch,
        "timestamp": record.timestamp,
        "kind": KIND_NAMES[Kind(record.kind)],
        "headers": dict(record.headers) if record.headers else {},
        "value": record.value,
    }
