"""One caller's connection: what is no HTTP is answered as a problem, and told in a line of the journal.

aiohttp would answer it in plain text, and write a traceback for each: whoever scans ports, speaks TLS to this one or
hangs up in the middle of a body would fill the journal.
"""

import asyncio
from typing import Any

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler

from ...errors import Malformed
from ..problems import problem_of
from ..request_ids import REQUEST_ID, SeldomLog, name_request
from ..tracebacks import let_go_of_frames

KEPT_ALIVE_S = 75.0  # Longer than clients and forwarding nodes keep their side, so that they never meet a closing one.
WHY_SHOWN = 120  # Characters.

seldom = SeldomLog(structlog.get_logger(__name__))


class Connection(RequestHandler):
    """What serves one connection. Bodies are taken as they are sent: none is inflated."""

    __slots__ = ()

    def __init__(self, server: web.Server) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), keepalive_timeout=KEPT_ALIVE_S, auto_decompress=False)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer where no handler gave one."""
        if isinstance(exc, ConnectionError):
            let_go_of_frames(exc)
            raise ConnectionResetError(str(exc)) from None  # The caller went away, or was cut off: nobody is to answer.
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        why = _why(exc.message)
        request_id = name_request(request)
        seldom.warning("not HTTP", why=why, peer=request.remote)
        response = problem_of(Malformed(f"this cannot be read as HTTP: {why}"), request_id)
        response.headers[REQUEST_ID] = request_id
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log what is no fault of the caller's: a body that breaks is known to be answered, or nobody is left."""
        if not isinstance(kw.get("exc_info"), HttpProcessingError | web.RequestPayloadError | ConnectionError):
            super().log_exception(*args, **kw)


def cut(request: web.BaseRequest) -> None:
    """End the caller's connection at once, if it still stands: what was sent so far is not taken for the end."""
    if request.transport is not None:
        request.transport.abort()


def _why(message: str) -> str:
    """The gist of what aiohttp's parser says, which quotes the input at length below a blank line."""
    return " ".join(message.partition("\n\n")[0].split())[:WHY_SHOWN].rstrip(":")
