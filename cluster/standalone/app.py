"""The HTTP interface of a standalone log: a subset of a cluster's calls, with the same responses and problems."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TypeVar

import orjson
from aiohttp import web

from quire.log import Kind, Log, Record, Spool, StoredRecord, ValueStream, blob_head

from ..access.roles import Role
from ..errors import BodyTimeout, LimitExceeded, Malformed, WrongIndex
from ..http.admission.admission import ADMISSION, Admission
from ..http.admission.authorization import Authorization, Route
from ..http.admission.browsers import BrowserGuard
from ..http.admission.concurrency import ConcurrencyLimit
from ..http.admission.connections import ConnectionLimit, abort
from ..http.admission.slow_callers import STALL_TIMEOUT_S, BodyPace
from ..http.app import errors_as_problems, set_headers_of_all
from ..http.bodies import JSON, OCTETS, answer, content_type_of, decode_records, read_body
from ..http.front_page import FrontPage, front_page
from ..http.request import integer_of, parameters_of, parse_integer
from ..http.routes.records import BIN_LIMIT_BYTES, BODIES
from ..request_id import REQUEST_ID
from ..rows import KIND_NAMES
from ..values import decode_json
from .config import MODE
from .service import LogService

SERVICE: web.AppKey[LogService] = web.AppKey("service", LogService)
WRITES: web.AppKey[ConcurrencyLimit] = web.AppKey("writes", ConcurrencyLimit)
READS: web.AppKey[ConcurrencyLimit] = web.AppKey("reads", ConcurrencyLimit)

WRITES_LIMIT = 256  # Each may hold as much memory as the log's write buffer, 256 KiB.
READS_LIMIT = 256  # Each may hold a chunk of 1 MiB of a large record.
TRUNCATE_BODY_BYTES = 4 * 1024
QUIRE_HEADERS = "Quire-Headers"
QUIRE_KIND = "Quire-Kind"
HEADERS = frozenset(name.lower() for name in (REQUEST_ID, QUIRE_HEADERS))
ABOUT = "One durable log, without a cluster and without a machine."
UNKNOWN_PATH = "this is a standalone log, which has no cluster, no machine and no cursors; GET / lists its calls"
CALLS = {
    "GET /index_bounds": "the lowest and the highest index of the records",
    "GET /records/{index}": "one record",
    "POST /records": "appends records",
    "POST /rpc/truncate": "removes all records from an index on",
    "GET /healthz": "200 while the log accepts records",
}

Result = TypeVar("Result")


def make_app(service: LogService, connections: ConnectionLimit | None = None) -> web.Application:
    """The web application of one log."""
    app = web.Application(middlewares=[errors_as_problems(HEADERS, UNKNOWN_PATH)])
    app[SERVICE] = service
    config = service.config

    def names() -> Iterable[str]:
        tls = service.credentials.tls
        return () if tls is None else tls.dns_names

    browsers = BrowserGuard((config.listen,), config.allow, names)
    authorization = Authorization(service.credentials, MODE)
    app[ADMISSION] = Admission(ConnectionLimit() if connections is None else connections, browsers, authorization)
    app[WRITES], app[READS] = ConcurrencyLimit(WRITES_LIMIT), ConcurrencyLimit(READS_LIMIT)
    set_headers_of_all(app, browsers)
    app.cleanup_ctx.append(authorization.context())
    authorization.add_routes(app, ROUTES)
    return app


async def get_front(request: web.Request) -> web.Response:
    """What this server is and which calls it takes: a page, or a document if the caller accepts that."""
    parameters_of(request)
    is_open = request.app[SERVICE].credentials.tokens is None
    return front_page(request, FrontPage("quire, a standalone log", ABOUT, CALLS, is_open))


async def get_healthz(request: web.Request) -> web.Response:
    """200 while the log accepts records, else 503 with the reason; with its name, for a caller without a token."""
    parameters_of(request)
    service = request.app[SERVICE]
    failure = service.failure
    if failure is not None and not request.app[ADMISSION].authorization.knows(request):
        failure = "files_missing" if service.log.watch.lost else "log_failed"
    return web.json_response({"healthy": failure is None, "reason": failure}, status=200 if failure is None else 503)


async def get_index_bounds(request: web.Request) -> web.Response:
    """{"lowest_index", "highest_index"} of the readable records."""
    parameters_of(request)
    return answer(request, _bounds(request.app[SERVICE].log))


async def get_record(request: web.Request) -> web.StreamResponse:
    """The record: a bin as bytes, a blob as a stream of bytes, any other value as JSON or msgpack."""
    parameters_of(request)
    service, index = request.app[SERVICE], parse_integer(request.match_info["index"], "the index")
    with service.answering(index):
        if service.log.reader.header(index).kind != Kind.BLOB:
            return _small(request, service.log.read(index))
        stream = service.log.reader.value_stream(index)
    try:
        with request.app[READS].slot(), service.answering(index):
            await in_thread(stream.verify)
            return await _streamed(request, stream)
    finally:
        stream.close()


def _small(request: web.Request, record: StoredRecord) -> web.Response:
    headers = _headers_of(Kind(record.kind), record.headers)
    if isinstance(record.value, bytes):
        return web.Response(body=record.value, content_type=OCTETS, headers=headers)
    return answer(request, record.value, headers)


async def _streamed(request: web.Request, stream: ValueStream) -> web.StreamResponse:
    response = web.StreamResponse(headers=_headers_of(Kind.BLOB, stream.metadata))
    response.content_type, response.content_length = OCTETS, stream.length
    await response.prepare(request)
    chunks = iter(stream)
    while chunk := await in_thread(lambda: next(chunks, b"")):
        try:
            async with asyncio.timeout(STALL_TIMEOUT_S):
                await response.write(chunk)
        except TimeoutError:
            # A stuck reader would keep its slot. Abort, so that the client does not mistake this for the end.
            abort(request)
            break
    return response


def _headers_of(kind: Kind, headers: Mapping[str, str] | None) -> dict[str, str]:
    said = {QUIRE_KIND: KIND_NAMES[kind]}
    return said | {QUIRE_HEADERS: json.dumps(dict(headers))} if headers else said


async def post_records(request: web.Request) -> web.Response:
    """Append records; {"write_index", "count"} once they are as durable as the flush policy requires."""
    service = request.app[SERVICE]
    expected_index = integer_of(parameters_of(request, "index"), "index")
    content_type = content_type_of(request, BODIES)
    headers = _record_headers(request, content_type)
    with request.app[WRITES].slot(), service.answering():
        if expected_index is not None and expected_index != service.log.bounds.highest_index:
            raise WrongIndex(expected_index, service.log.bounds.highest_index)
        if content_type == OCTETS:
            index, count = await _append_bytes(request, service, headers, expected_index), 1
        else:
            limit = service.config.max_request_bytes
            body = await _in_time(service, read_body(request, limit))
            values = decode_records(content_type, body, service.config.max_commands)
            records = [Record(values[0], headers)] if headers else values
            index, count = service.log.append(records, expected_index=expected_index), len(values)
        await service.settled(index, count)
    return answer(request, {"write_index": index, "count": count})


async def _append_bytes(
    request: web.Request, service: LogService, headers: dict[str, str], expected_index: int | None
) -> int:
    """Append the raw body: up to 1 MiB as a bin, above that as a blob. It is spooled, so it blocks no other writer."""
    limit = service.config.max_record_bytes
    if request.content_length is not None and request.content_length > limit:
        raise LimitExceeded("the request body", request.content_length, limit)
    size, pace = 0, BodyPace(service.config.request_timeout_ms / 1000)
    with service.log.spools.begin(metadata=headers) as spool:
        while chunk := await _in_time(service, request.content.readany(), pace.patience_s(size)):
            size += len(chunk)
            if size > limit:
                raise LimitExceeded("the request body", size, limit)
            await in_thread(partial(spool.write, chunk))
        if size > BIN_LIMIT_BYTES:
            return service.log.spools.append(spool, expected_index=expected_index)
        value = _spooled_value(spool, headers)
    return service.log.append([Record(value, headers) if headers else value], expected_index=expected_index)


def _spooled_value(spool: Spool, headers: dict[str, str]) -> bytes:
    return b"".join(spool.pieces())[len(blob_head(headers)) :]


async def in_thread(block: Callable[[], Result]) -> Result:
    """Run `block` in a thread and return its result. If cancelled, it waits for the thread, which uses an open file."""
    running = asyncio.get_running_loop().run_in_executor(None, block)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        raise


async def _in_time(service: LogService, awaited: Awaitable[Result], patience_s: float | None = None) -> Result:
    """The result of `awaited`; raises BodyTimeout if it takes longer than that, or than `request_timeout_ms`."""
    timeout_ms = service.config.request_timeout_ms
    try:
        async with asyncio.timeout(timeout_ms / 1000 if patience_s is None else patience_s):
            return await awaited
    except TimeoutError:
        raise BodyTimeout(timeout_ms) from None


def _record_headers(request: web.Request, content_type: str) -> dict[str, str]:
    """The record's headers from `Quire-Headers`, a JSON object of strings. Raises Malformed."""
    text = request.headers.get(QUIRE_HEADERS)
    if text is None:
        return {}
    if content_type not in (OCTETS, JSON):
        raise Malformed(f"{QUIRE_HEADERS} is for a single record: raw bytes or {JSON}")
    try:
        headers = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise Malformed(f"{QUIRE_HEADERS} is not JSON: {error}") from None
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        raise Malformed(f"{QUIRE_HEADERS} is not a JSON object of strings")
    return headers


async def post_truncate(request: web.Request) -> web.Response:
    """Remove all records from `truncate_index` on; return the new bounds."""
    service = request.app[SERVICE]
    parameters_of(request)
    content_type_of(request, (JSON,))
    document = decode_json(await _in_time(service, read_body(request, TRUNCATE_BODY_BYTES)), 2)
    index = document.get("truncate_index") if isinstance(document, dict) and len(document) == 1 else None
    if type(index) is not int or index < 0:
        raise Malformed('the body must be {"truncate_index": n} and nothing else')
    with request.app[WRITES].slot(), service.answering(index):
        service.log.truncate(index)
    return answer(request, _bounds(service.log))


def _bounds(log: Log) -> dict[str, int]:
    return {"lowest_index": log.bounds.lowest_index, "highest_index": log.readable_index}


ROUTES = (
    Route("GET", "/index_bounds", get_index_bounds, Role.READ),
    Route("GET", "/records/{index}", get_record, Role.READ),
    Route("POST", "/records", post_records, Role.WRITE),
    Route("POST", "/rpc/truncate", post_truncate, Role.ADMIN),
    Route("GET", "/", get_front, Role.OPEN),
    Route("GET", "/healthz", get_healthz, Role.OPEN),
)
