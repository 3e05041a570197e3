"""HTTP requests from a client or a node to a node: each is sent exactly once, in a form that aiohttp accepts."""

from io import BytesIO

import aiohttp
from aiohttp.payload import TOO_LARGE_BYTES_BODY


class ConnectionBroken(aiohttp.ClientError):
    """The connection broke after the request, or a part of it, was sent: it may have been executed."""


async def send_once(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """An aiohttp middleware that sends a request only once.

    aiohttp repeats a DELETE or PUT whose connection broke. If the first one was executed, the response to the second
    would falsely say that there was nothing to do.
    """
    try:
        return await send(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise ConnectionBroken(str(error) or type(error).__name__) from error


def sendable(body: bytes | None) -> bytes | BytesIO | None:
    """The body in the form that aiohttp accepts without a warning: a large one as a file."""
    return body if body is None or len(body) <= TOO_LARGE_BYTES_BODY else BytesIO(body)
