"""Which caller may use which route. It is decided before a body is read.

Each route names its role where it is defined. A server without tokens lets every caller do everything. With tokens, a
caller shows one (`Authorization: Bearer TOKEN`) whose role is at least the route's. `/peer` and what is below it is for
peers alone: with certificates, for callers that have shown a node's.

A token that is revoked, or expires, ends what it has opened: its streams, within a second, and requests that wait.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from quire.replication.net.sockets import end_all

from ...access.audit import Audit, Call
from ...access.credentials import LOOK_S, Credentials
from ...access.roles import Role
from ...access.tokens import Token, digits_of, has_token
from ...errors import CursorOwned, Forbidden, HostRefused, Malformed, OriginRefused, SessionOwned, Unauthorized
from ..request import REQUEST_ID_KEY, waits_on_purpose
from .connections import peer_of
from .streams import OpenStream

SCHEME = "bearer"
READING_METHODS = frozenset({hdrs.METH_GET, hdrs.METH_HEAD})
TOKEN_PARAMETERS = frozenset({"token", "access_token", "authorization"})
DECODINGS = 8
"""How often a URL may be percent-encoded."""
NOBODY = "nobody"
ANYBODY = "anybody"

_PARAMETER = re.compile("[?&;#]")

Refusal = Unauthorized | Forbidden | HostRefused | OriginRefused | SessionOwned | CursorOwned


class Route(NamedTuple):
    """A route of the server, and the role that a caller needs for it."""

    method: str
    path: str
    handler: Handler
    role: Role


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request. Without tokens nobody has a name, and everybody may do everything."""

    name: str | None
    role: Role
    token: Token | None = None


CALLER = web.RequestKey("caller", Caller)
ANY_CALLER = Caller(None, Role.ADMIN)
ADMITTED = web.RequestKey("admitted", bool)
"""Whether the caller may send the request."""
REFUSED_TOKEN = web.RequestKey("refused token", str)
"""The first digits of its SHA-256; empty if it has not the form of a token."""
STREAM_ENDED = web.RequestKey("stream ended", bool)


class Noted(NamedTuple):
    """What the audit log says of an operator's call: what it is about, what it does, if only its first is logged."""

    subject: str
    action: str
    once: bool


NOTED = web.RequestKey("noted", Noted)


def note_call(request: web.Request, subject: str, action: str = "", *, once: bool = False) -> None:
    """Have the audit log say what an operator's call is about, and log it even if its route is for others, too."""
    request[NOTED] = Noted(subject, action, once)


def caller_of(request: web.Request) -> Caller:
    """Who sent this request, as it was decided when it arrived."""
    caller: Caller = request.get(CALLER, ANY_CALLER)
    return caller


class Authorization:
    """Decides what the callers of one server may do. One event loop."""

    def __init__(self, credentials: Credentials, title: str) -> None:
        """`title` is what the server is called in a refusal."""
        self.credentials = credentials
        self._title = title
        self._roles: dict[object, Role] = {}
        self._audit = Audit()

    def add_routes(self, app: web.Application, routes: Iterable[Route]) -> None:
        """Add the routes to the application, which does not start with a route that has no role."""
        for route in routes:
            app.router.add_route(route.method, route.path, route.handler)
            if route.method == hdrs.METH_GET:
                app.router.add_route(hdrs.METH_HEAD, route.path, route.handler)
            self._roles[route.handler] = route.role
        if self._check_roles not in app.on_startup:
            app.on_startup.append(self._check_roles)

    async def _check_roles(self, app: web.Application) -> None:
        for route in app.router.routes():
            if route.handler not in self._roles:
                raise RuntimeError(f"{route!r} has no role; add it with Authorization.add_routes")

    async def watch(self, streams: Iterable[OpenStream]) -> None:
        """End the streams of tokens that have no effect any more, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            for stream in streams:
                if not stream.is_allowed():
                    stream.ended.set()

    def context(self, streams: Iterable[OpenStream] = ()) -> Callable[[web.Application], AsyncIterator[None]]:
        """A cleanup context that reads the files again when they change, and ends streams."""

        async def run(_app: web.Application) -> AsyncIterator[None]:
            tasks = [
                asyncio.create_task(self.credentials.watch(), name="credentials"),
                asyncio.create_task(self.watch(streams), name="streams of revoked tokens"),
            ]
            yield
            await end_all(tasks)

        return run

    def role_of(self, request: web.Request) -> Role:
        """The role that the request needs. What matches no route needs the least: a stranger does not learn of it."""
        return self._roles.get(request.match_info.handler, Role.READ)

    def admit(self, request: web.Request) -> None:
        """Check that the caller may send this request, and note who it is.

        Raises:
            Unauthorized, Forbidden: nothing was done.
        """
        needed = self.role_of(request)
        if needed is Role.PEER:
            self._admit_peer(request)
        elif needed is not Role.OPEN and self.credentials.tokens is not None:
            request[CALLER] = caller = self._known(request)
            if caller.role < needed:
                raise Forbidden(caller.role.word, needed.word)
            self._audit.used(_call_of(request, caller.token))
        request[ADMITTED] = True

    def _admit_peer(self, request: web.Request) -> None:
        if self.credentials.tls is None or peer_of(request) is not None:
            return
        has = "none"
        with suppress(Unauthorized):
            has = self._known(request).role.word if self.credentials.tokens is not None else Role.ADMIN.word
        raise Forbidden(has, f"{Role.PEER.word}, which a node's certificate proves")

    def _known(self, request: web.Request) -> Caller:
        """The caller that the token names. Raises Unauthorized."""
        tokens, header = self.credentials.tokens, request.headers.get(hdrs.AUTHORIZATION)
        if header is None or tokens is None:
            why = "answers callers with a token only; send one in the header Authorization: Bearer TOKEN"
            raise Unauthorized(self._title, why, shown=False)
        scheme, _, text = header.partition(" ")
        token = tokens.find(text.strip()) if scheme.lower() == SCHEME else None
        if token is None or token.is_expired(time.time()):
            request[REFUSED_TOKEN] = digits_of(text.strip())
        if token is None:
            why = "does not know the token; check that its token file has it (`quire token list`)"
            raise Unauthorized(self._title, why, shown=True)
        if token.is_expired(time.time()):
            why = f"does not take the token {token.name} any more, which has expired; make another (`quire token new`)"
            raise Unauthorized(self._title, why, shown=True)
        return Caller(token.name, token.role, token)

    def is_allowed(self, request: web.Request) -> bool:
        """Whether the caller that was admitted could send the same request now."""
        caller = caller_of(request)
        if caller.token is None or self.credentials.tokens is None:
            return True
        return self.credentials.tokens.current(caller.token) is not None and not caller.token.is_expired(time.time())

    def may_continue(self, request: web.Request) -> bool:
        """As `is_allowed`, for a stream. The audit log says when its token becomes an old one, and when it ends."""
        token, tokens, is_allowed = caller_of(request).token, self.credentials.tokens, self.is_allowed(request)
        if token is None or tokens is None:
            return is_allowed
        if is_allowed:
            self._audit.used(_call_of(request, tokens.current(token)))
        elif STREAM_ENDED not in request:
            request[STREAM_ENDED] = True
            self._audit.ended(_call_of(request, token), token.digits)
        return is_allowed

    def check_again(self, request: web.Request, response: web.StreamResponse) -> None:
        """Check, before a read that has waited is answered, that its token is still one. Raises Unauthorized.

        A write that was executed is answered: a 401 says that nothing was written.
        """
        reads = request.method in READING_METHODS and not response.prepared
        if reads and waits_on_purpose(request) and not self.is_allowed(request):
            raise Unauthorized(self._title, "does not take that token any more", shown=True)

    def knows(self, request: web.Request) -> bool:
        """Whether the caller is no stranger: it has a token or a node's certificate, or the server needs none."""
        if CALLER in request or self.credentials.tokens is None or peer_of(request) is not None:
            return True
        with suppress(Unauthorized):
            self._known(request)
            return True
        return False

    # The audit log

    def answered(self, request: web.Request, response: web.StreamResponse) -> None:
        """Note the answer to an operator's call. A call that was refused is noted as that."""
        noted, is_admin = request.get(NOTED), self.role_of(request) is Role.ADMIN
        if ADMITTED in request and (noted is not None or is_admin):
            call, once = _call_of(request, caller_of(request).token), noted is not None and noted.once
            self._audit.called(call, response.status, is_admin=is_admin, once=once)

    def refused(self, request: web.Request, error: Exception, name: str) -> None:
        """Note a refusal; `name` is the problem's."""
        if isinstance(error, Refusal):
            token = caller_of(request).token
            digits = request.get(REFUSED_TOKEN, "") if token is None else token.digits
            call = _call_of(request, token, NOBODY)
            self._audit.refused(call, name, digits if isinstance(error, Unauthorized) else "")
            request.pop(ADMITTED, None)


def refuse_token(request: web.Request) -> None:
    """Check, before anything quotes its URL, that there is no token in it, however it is spelled.

    Raises:
        Malformed: there is one, or a parameter that is meant for one, or what is encoded too often to tell.
    """
    text = request.raw_path
    for _ in range(DECODINGS):
        if has_token(text) or _names_token(text):
            break
        encoded, text = text, unquote(text)
        if text == encoded:
            return
    raise Malformed(
        "a URL must not hold a token, since URLs are logged on the way; revoke that token, and send the new one in the "
        "header Authorization"
    )


def _names_token(url: str) -> bool:
    names = (part.partition("=")[0].strip("+ ").lower() for part in _PARAMETER.split(url)[1:])
    return not TOKEN_PARAMETERS.isdisjoint(names)


def _call_of(request: web.Request, token: Token | None, unnamed: str = ANYBODY) -> Call:
    """The request for the audit log. What it is about is left out if a stranger chose it."""
    resource = request.match_info.route.resource
    what = f"{request.method} {'an unknown path' if resource is None else resource.canonical}"
    who = unnamed if token is None else token.label
    noted = request.get(NOTED) or Noted(", ".join(request.match_info.values()), "", once=False)
    subject = "" if who == NOBODY else noted.subject
    return Call(who, request.remote or "", what, request[REQUEST_ID_KEY], subject, noted.action)
