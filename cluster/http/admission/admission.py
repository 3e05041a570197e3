"""The limits that apply to every request of a server."""

from collections.abc import Container
from dataclasses import dataclass, field
from functools import partial

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from ..request import FORWARDED
from .authorization import Authorization, caller_of
from .browsers import BrowserGuard
from .connections import Connection, ConnectionLimit, peer_of
from .slow_callers import RequestBodyLimit, ResponseBodyLimit
from .turns import Turns, Work


@dataclass(slots=True)
class Admission:
    """The limits that apply to every request of a server."""

    connections: ConnectionLimit
    browsers: BrowserGuard
    authorization: Authorization
    members: Container[str] = ()
    request_bodies: RequestBodyLimit = field(default_factory=RequestBodyLimit)
    response_bodies: ResponseBodyLimit = field(default_factory=ResponseBodyLimit)
    turns: Turns = field(default_factory=Turns)

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

    def work_of(self, request: web.Request) -> Work:
        """The work that the request causes, which waits for its turns."""
        work: Work | None = request.get(WORK)
        if work is None:
            name, resource = caller_of(request).name, request.match_info.route.resource
            share = self.origin_of(request) if name is None else f"token {name}"
            route = f"{request.method} {'' if resource is None else resource.canonical}"
            work = request[WORK] = self.turns.work(route, share, partial(_is_gone, request.protocol))
        return work


def _is_gone(connection: RequestHandler) -> bool:
    return connection.transport is None or connection.transport.is_closing()


WORK = web.RequestKey("work", Work)
ADMISSION: web.AppKey[Admission] = web.AppKey("admission", Admission)


def work_of(request: web.Request) -> Work:
    """`Admission.work_of` of the request's server."""
    return request.app[ADMISSION].work_of(request)
