"""The limits that apply to every request of a server."""

from collections.abc import Container
from dataclasses import dataclass, field

from aiohttp import web

from ..request import FORWARDED
from .authorization import Authorization
from .browsers import BrowserGuard
from .connections import Connection, ConnectionLimit, peer_of
from .slow_callers import RequestBodyLimit, ResponseBodyLimit


@dataclass(slots=True)
class Admission:
    """The limits that apply to every request of a server."""

    connections: ConnectionLimit
    browsers: BrowserGuard
    authorization: Authorization
    members: Container[str] = ()
    request_bodies: RequestBodyLimit = field(default_factory=RequestBodyLimit)
    response_bodies: ResponseBodyLimit = field(default_factory=ResponseBodyLimit)

    def is_forwarded(self, request: web.Request) -> bool:
        """Whether a node has forwarded it. With certificates, only a node's own connection proves that."""
        member, credentials = request.headers.get(FORWARDED), self.authorization.credentials
        return member is not None and (credentials.tls is None or peer_of(request) == member)

    def origin_of(self, request: web.Request) -> str:
        """What the request counts against: the member that forwarded it, or else the address that it came from."""
        member = request.headers.get(FORWARDED)
        if member is not None and member in self.members and peer_of(request) == member:
            return f"member {member}"
        connection = request.protocol
        return connection.place.address if isinstance(connection, Connection) else ""


ADMISSION: web.AppKey[Admission] = web.AppKey("admission", Admission)
