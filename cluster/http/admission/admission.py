"""The limits that apply to every request of a server."""

from collections.abc import Container
from dataclasses import dataclass, field

from aiohttp import web

from ..request import FORWARDED
from .addresses import address_of
from .authorization import Authorization
from .browsers import BrowserGuard
from .connections import ConnectionLimit
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
        return member is not None and (credentials.tls is None or credentials.node_of(request) == member)

    def origin_of(self, request: web.Request) -> str:
        """What the request counts against: the member that forwarded it, or else the address that it came from."""
        member = request.headers.get(FORWARDED)
        if member in self.members and self.authorization.credentials.node_of(request) == member:
            return f"member {member}"
        return "" if request.transport is None else address_of(request.transport.get_extra_info("peername"))


ADMISSION: web.AppKey[Admission] = web.AppKey("admission", Admission)
