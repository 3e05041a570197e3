"""HTTP requests to a node, by a client or by another node: each is sent once, and in the form that aiohttp accepts."""

from io import BytesIO

import aiohttp
from aiohttp.payload import TOO_LARGE_BYTES_BODY


class ConnectionBroken(aiohttp.ClientError):
    """The connection broke when the request, or a part of it, was sent: it may have been executed."""


async def send_once(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Send a request, and never a second time: aiohttp's middleware.

    aiohttp repeats a DELETE or PUT whose connection broke. If the first was executed, the response to the second would
    claim, falsely, that there was nothing to do.
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
