"""`GET /records?from=...`: a range of the visible records; a long poll at the end of the log."""

import asyncio
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from aiohttp import web

from quire.log import Bounds, Frame, FrameHeader, Kind, cut_frames, each_stored_record, pack
from quire.log.json_text import to_json
from quire.log.packing import array_head, array_items
from quire.sm import ApplyFailed

from ...errors import Expired, Malformed, OutOfBounds
from ...node.components import NodeView
from ...node.tables.sessions import refuse_other_history
from ...node.views.status import visible_bounds
from ...rows import line_of
from ..admission.admission import ADMISSION, work_of
from ..admission.slow_callers import SENDING_COST
from ..admission.turns import ROWS_IN_TURN, Work
from ..api import API
from ..bodies import MSGPACK, NDJSON, RAW_FRAMES, accepted, answer
from ..request import HISTORY, integer_of, parameters_of

# Decoding a range blocks the event loop, so an answer holds less of it than of raw bytes.
DECODED_RANGE_BYTES = 1 << 18
RANGE_RECORDS = 8192  # Decoded for one answer: a frame of 1 MiB may hold half a million.
RAW_RANGE_BYTES = 8 << 20
READ_BYTES = 1 << 15  # In one turn, unless a frame is longer: some 500 frames of one record take as long as their rows.
SCANNED_RECORDS = 100_000  # Scanned for one answer. If none matches, the empty answer says where the next range begins.
WAIT_LIMIT_MS = 60_000
NEXT_INDEX, LOWEST_INDEX = "Quire-Next-Index", "Quire-Lowest-Index"
APPLIED_WAIT_S = 1.0  # How long a waiting read waits for the machine to reach its first record.
SHARDS_LIMIT = 65_536
BOUNDARIES_LIMIT = 1024
BOUNDARY_ROWS = 16
"""To find a boundary takes as long as so many rows."""

_SHARD = re.compile(r"([0-9]{1,5})/([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class Range:
    """The requested records: [from_index, to_index) with index % shards == shard, up to max_bytes."""

    content_type: str
    from_index: int | None
    to_index: int | None
    max_bytes: int
    wait_s: float
    shard: int
    shards: int
    system: bool


@dataclass(slots=True)
class _Chunk:
    """A part of a range, encoded. `count` is 0 if it holds nothing; `next_index` is where the next part begins."""

    body: bytes
    count: int
    next_index: int


async def get_records(request: web.Request) -> web.StreamResponse:
    """Records [from, to) that are visible here: at most `max_bytes` of frames, and at most RANGE_RECORDS records.

    `Quire-Next-Index` is where the next range begins, `Quire-Lowest-Index` where the log does. With `wait_ms` the
    answer comes as soon as there is a record. It is empty after that time, or after SCANNED_RECORDS that did not match.
    System records are left out unless the request has `kinds=all`; raw frames contain them. A reader that continues
    gives the `Quire-History` of its last page as `history`, and is refused if the cluster has another one now.

    With `boundaries=BYTES` the answer has no records: {"boundaries": [[index, bytes], ...]} are the frame boundaries at
    which to cut the range into parts of at most BYTES, but of one frame at least, each with the bytes of the frames
    since the one before; the first part begins with the frame that holds `from`, and the last ends with the one that
    holds the range's last record. At most `limit` are in one answer, or BOUNDARIES_LIMIT.
    """
    if "boundaries" in request.query:
        return await _get_boundaries(request)
    api = request.app[API]
    node = api.node
    asked = _range_of(request)
    if (history := request.query.get("history")) is not None:
        refuse_other_history(history, node.components.history)
    if asked.wait_s:
        with api.long_polls.slot(request, request.app[ADMISSION].origin_of(request)):
            chunk = await _waited_for(node, asked, work_of(request))
    else:
        bounds = visible_bounds(node)
        from_index = bounds.lowest_index if asked.from_index is None else asked.from_index
        _refuse_outside(bounds, from_index, asked.to_index)
        chunk = await _read(node, asked, from_index, work_of(request))
    return web.Response(body=chunk.body, content_type=asked.content_type, headers=_headers(node, chunk.next_index))


def _headers(node: NodeView, next_index: int) -> dict[str, str]:
    headers = {NEXT_INDEX: str(next_index), LOWEST_INDEX: str(visible_bounds(node).lowest_index)}
    if node.formed is not None:
        headers[HISTORY] = node.formed.history
    return headers


async def _get_boundaries(request: web.Request) -> web.Response:
    """Where to cut a range, without its records: see `get_records`."""
    node, work = request.app[API].node, work_of(request)
    parameters = parameters_of(request, "from", "to", "boundaries", "limit", "history")
    if (history := parameters.get("history")) is not None:
        refuse_other_history(history, node.components.history)
    max_bytes = integer_of(parameters, "boundaries") or 0
    limit = integer_of(parameters, "limit", BOUNDARIES_LIMIT)
    most = BOUNDARIES_LIMIT if limit is None else limit
    bounds = visible_bounds(node)
    index, to_index = integer_of(parameters, "from"), integer_of(parameters, "to")
    index = bounds.lowest_index if index is None else index
    _refuse_outside(bounds, index, to_index)
    end = bounds.highest_index if to_index is None else min(to_index, bounds.highest_index)
    found: list[tuple[int, int]] = []
    while index < end and len(found) < most:
        await work.turn(BOUNDARY_ROWS)
        index, size = node.components.reading.boundary_within(index, end, max_bytes)
        found.append((index, size))
    return answer(request, {"boundaries": found}, _headers(node, index))


async def _waited_for(node: NodeView, asked: Range, work: Work) -> _Chunk:
    """The first chunk with a record; an empty one at the deadline, at the end of the range, or after a long scan."""
    deadline = time.monotonic() + asked.wait_s
    index = visible_bounds(node).lowest_index if asked.from_index is None else asked.from_index
    while index > visible_bounds(node).highest_index:  # As on a follower whose commit_index lags behind the leader's.
        if not await node.visibility.next_growth(deadline - time.monotonic()):
            break
    _refuse_outside(visible_bounds(node), index, asked.to_index)
    scanned = 0
    while True:
        if index < visible_bounds(node).highest_index:
            await _applied(node, index, deadline)
        chunk = await _read(node, asked, index, work)
        at_end = asked.to_index is not None and chunk.next_index >= asked.to_index
        scanned += chunk.next_index - index
        if chunk.count or at_end or scanned >= SCANNED_RECORDS or time.monotonic() >= deadline:
            return chunk
        index = chunk.next_index
        if index >= visible_bounds(node).highest_index:
            if not await node.visibility.next_growth(deadline - time.monotonic()):
                return chunk


async def _applied(node: NodeView, index: int, deadline: float) -> None:
    """Wait briefly for the machine to reach a visible record: only then is it known whether the record executed."""
    wait_s = min(APPLIED_WAIT_S, deadline - time.monotonic())
    with suppress(TimeoutError, ApplyFailed):
        async with asyncio.timeout(wait_s):
            await node.components.applying.reached(index + 1)


def _range_of(request: web.Request) -> Range:
    parameters = parameters_of(request, "from", "to", "max_bytes", "wait_ms", "shard", "kinds", "history")
    content_type = accepted(request, (NDJSON, MSGPACK, RAW_FRAMES))
    largest = RAW_RANGE_BYTES if content_type == RAW_FRAMES else DECODED_RANGE_BYTES
    from_index, to_index = integer_of(parameters, "from"), integer_of(parameters, "to")
    if from_index is not None and to_index is not None and to_index < from_index:
        raise Malformed(f"to={to_index} is below from={from_index}")
    max_bytes = integer_of(parameters, "max_bytes", largest)
    wait_ms = integer_of(parameters, "wait_ms", WAIT_LIMIT_MS) or 0
    kinds = parameters.get("kinds")
    if kinds not in (None, "all"):
        raise Malformed(f"kinds can only be all, not {kinds[:24]!r}; without it there are no system records")
    shard, shards = _shard_of(parameters)
    if shards > 1 and content_type == RAW_FRAMES:
        raise Malformed("a shard consists of records, so raw frames have none; ask for NDJSON or msgpack")
    return Range(
        content_type=content_type,
        from_index=from_index,
        to_index=to_index,
        max_bytes=largest if max_bytes is None else max_bytes,
        wait_s=wait_ms / 1000,
        shard=shard,
        shards=shards,
        system=kinds == "all",
    )


def _shard_of(parameters: Mapping[str, str]) -> tuple[int, int]:
    text = parameters.get("shard")
    if text is None:
        return 0, 1
    match = _SHARD.fullmatch(text)
    shard, shards = (int(match[1]), int(match[2])) if match else (0, 0)
    if not shard < shards <= SHARDS_LIMIT:
        raise Malformed(f"shard must be i/n with i below n and n at most {SHARDS_LIMIT}, as in 0/4, not {text[:24]!r}")
    return shard, shards


def _refuse_outside(bounds: Bounds, index: int, to_index: int | None) -> None:
    if to_index is not None and to_index < index:
        raise Malformed(f"to={to_index} is below from={index}")
    if index < bounds.lowest_index:
        raise Expired(index, bounds.lowest_index)
    if index > bounds.highest_index:
        raise OutOfBounds(index, bounds.lowest_index, bounds.highest_index)


async def _read(node: NodeView, asked: Range, from_index: int, work: Work) -> _Chunk:
    """As much of the range as one answer holds, from an index within the bounds; it is read and decoded in turns."""
    await work.turn(alone=True)
    to_index = _end_of(node, asked, from_index)
    parts, count, size, index = list[bytes](), 0, 0, from_index
    while index < to_index and (not size or size < asked.max_bytes):
        if size:
            await work.turn(alone=True)
        left = asked.max_bytes - size
        raw, read_to = node.components.reading.read_frames(index, min(READ_BYTES, left))
        if not raw or (size and len(raw) > left):  # At least one frame is read, and may be too long.
            break
        size += len(raw)
        frames = list(cut_frames(raw))
        work.charge(len(frames), len(raw) // SENDING_COST)  # To verify bytes costs about as little as to send them.
        if asked.content_type == RAW_FRAMES:
            part = _frames_below(raw, frames, to_index)
        else:
            lines = _lines(frames, asked, index, to_index, node.components.applying.executed, work)
            part = await _decoded(lines, asked, RANGE_RECORDS - count, min(read_to, to_index), work)
        parts.append(part.body)
        count, index = count + part.count, part.next_index
        if index < min(read_to, to_index):
            break
    head = array_head(count) if asked.content_type == MSGPACK else b""
    return _Chunk(head + b"".join(parts), count, index)


def _end_of(node: NodeView, asked: Range, from_index: int) -> int:
    """Where the range ends now."""
    highest = visible_bounds(node).highest_index
    to_index = highest if asked.to_index is None else min(asked.to_index, highest)
    applied = 0 if node.formed is None else node.formed.applying.applied_index
    if asked.content_type != RAW_FRAMES and from_index < applied < to_index:
        return applied  # Whether the rest executed is not known yet; the next answer begins there.
    return to_index


async def _decoded(lines: Iterator[dict[str, Any]], asked: Range, most: int, next_index: int, work: Work) -> _Chunk:
    """At most so many of the lines, encoded; `next_index` is behind all of them."""
    pieces, count = list[bytes](), 0
    while found := list(islice(lines, min(ROWS_IN_TURN, most - count))):
        pieces.append(_encoded(found, asked.content_type))
        count += len(found)
        work.charge(len(found), len(pieces[-1]))
        if len(found) == ROWS_IN_TURN:
            await work.turn(alone=True)
    left = next(lines, None)
    return _Chunk(b"".join(pieces), count, next_index if left is None else left["index"])


def _encoded(lines: list[dict[str, Any]], content_type: str) -> bytes:
    if content_type == NDJSON:
        return b"".join(to_json(line) + b"\n" for line in lines)
    return array_items(pack(lines), len(lines))


def _frames_below(raw: bytes, frames: list[Frame], to_index: int) -> _Chunk:
    """The whole frames that hold records below an index."""
    kept = [frame.header for frame in frames if frame.header.index < to_index]
    return _Chunk(raw[: sum(header.size for header in kept)], len(kept), kept[-1].next_index)


def _lines(
    frames: list[Frame],
    asked: Range,
    from_index: int,
    to_index: int,
    executed: Callable[[int], bool | None],
    work: Work,
) -> Iterator[dict[str, Any]]:
    """The records as lines. Each is unpacked and made when it is asked for; what a frame holds is charged before."""
    for frame in frames:
        if frame.header.kind == Kind.SYSTEM and not asked.system:
            continue
        offsets = _offsets(asked, frame.header, from_index, to_index)
        if offsets:
            work.charge(size=frame.header.length)
            for record in each_stored_record(frame, slice(offsets.start, offsets.stop, offsets.step)):
                yield line_of(record, executed(record.index))


def _offsets(asked: Range, header: FrameHeader, from_index: int, to_index: int) -> range:
    """The offsets in a frame of the requested records."""
    start = max(from_index, header.index)
    start += (asked.shard - start) % asked.shards
    return range(start - header.index, min(header.count, to_index - header.index), asked.shards)
