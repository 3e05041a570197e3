"""HTTP requests from a client or a node to a node: each is sent exactly once, in a form that aiohttp accepts, and gets
its own answer.
"""

from io import BytesIO
from typing import ClassVar

import aiohttp
from aiohttp.connector import Connection
from aiohttp.payload import TOO_LARGE_BYTES_BODY

from .request_id import OTHER_ANSWER, REQUEST_ID

NO_NODE = "another program answered"


class ConnectionBroken(aiohttp.ClientError):
    """The connection broke after the request, or a part of it, was sent: it may have been executed."""


class OwnAnswer(aiohttp.ClientResponse):
    """The answer to its own request, which has an id. Another one is refused, and its connection closed.

    An answer without an id is not a node's. A client judges what a proxy says by itself.
    """

    is_a_node_s: ClassVar = False

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        """Read the head. Raises ConnectionBroken: it is that of another answer, so this one will not be known."""
        protocol = connection.protocol
        await super().start(connection)
        sent, returned = self.request_info.headers[REQUEST_ID], self.headers.get(REQUEST_ID)
        if returned != sent and (returned is not None or self.is_a_node_s):
            if protocol is not None:
                protocol.close()  # A whole answer has given it back already, to be used again.
            raise ConnectionBroken(NO_NODE if returned is None else OTHER_ANSWER)
        return self


class NodeAnswer(OwnAnswer):
    """As `OwnAnswer`, and an answer without an id is refused, too: only nodes are asked."""

    is_a_node_s = True


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
