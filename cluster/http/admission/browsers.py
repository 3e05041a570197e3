"""Which requests from browsers are answered: none that a foreign page sends.

A browser sends whatever any page tells it to send, even to a node that only its user can reach. It describes the page
in these headers:

- `Host` is the name that the page dialled. A foreign name may resolve to a node's address, and then the browser treats
  the foreign page as one of the node's (DNS rebinding). So only the names of members, names in `allow`, and IP
  addresses, which cannot be rebound, are accepted.
- `Origin` is where the page came from. Every POST and every WebSocket has one. The node's own origin and those in
  `allow` are accepted. `null` stands for any page that hides where it came from.
- `Sec-Fetch-Site` says whether the page came from elsewhere, even in requests without an `Origin`. But browsers send it
  only over HTTPS and to loopback addresses. To other addresses, an image or a script of a foreign page is an ordinary
  GET. So no GET may have an effect, and OWN_PAGES_ONLY makes the browser discard the answer. A link from elsewhere may
  be followed, because the page with the link does not see the answer.

Other programs send only a `Host`. A request without one is accepted, because every browser sends it.
"""

from collections.abc import Callable, Collection, Iterable

from aiohttp import hdrs, web

from quire.replication.net.hello import PEER_PATHS

from ...config.origins import name_in, origin_in
from ...errors import HostRefused, OriginRefused
from ..request import FORWARDED

HEALTH_PATHS = frozenset({"/healthz", "/readyz"})  # A health check may reach a node under any name.
STREAM_PATH = "/commands/stream"
LOCALHOST = "localhost"
METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
PREFLIGHT_S = 600  # How long a browser may remember what an origin may send.
SITE = "Sec-Fetch-Site"
OWN_SITES = frozenset({"same-origin", "none"})  # none: its user typed the address, for example.

OWN_PAGES_ONLY = {"Cross-Origin-Resource-Policy": "same-origin"}
"""Sent with the answer to a GET: a foreign page could run a record as a script, or find out the size of an image."""

ALLOWED_ORIGIN = web.RequestKey("allowed_origin", str)


class BrowserGuard:
    """Checks which page sent a request, if a page did.

    `addresses` are those in this node's configuration, each HOST:PORT; `further` gives those that may change. `allow`
    has further host names, and the origins whose pages may do everything.
    """

    def __init__(
        self,
        addresses: Iterable[str],
        allow: Collection[str],
        further: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self.allowed_origins = frozenset(each for each in allow if "://" in each)
        self._names = {LOCALHOST, *map(name_in, addresses), *allow} - self.allowed_origins
        self._further = further

    def admit(self, request: web.Request, known_headers: Iterable[str]) -> web.Response | None:
        """Check a request before anything else is done; return the answer to a browser's preflight request.

        Raises:
            HostRefused, OriginRefused: nothing was done.
        """
        headers, path = request.headers, request.path
        origin = headers.get(hdrs.ORIGIN)
        if path in PEER_PATHS:
            if origin is not None or SITE in headers:
                raise OriginRefused(origin, "no browser is a peer")
            return None
        if path not in HEALTH_PATHS:
            self._check_host(request)
        if origin is None and SITE not in headers:
            return None
        origins = [origin_in(each) for each in headers.getall(hdrs.ORIGIN, ())]
        if origin is not None and self.allowed_origins.issuperset(origins):
            request[ALLOWED_ORIGIN] = origin
            return _preflight_answer(known_headers) if _is_preflight(request) else None
        if path not in HEALTH_PATHS:
            _check_page(request, origins)
        return None

    def _check_host(self, request: web.Request) -> None:
        host = request.headers.get(hdrs.HOST)  # aiohttp refuses a second one.
        if host is not None and not self._knows(host):
            raise HostRefused(host, name_in(host))
        if not request.raw_path.startswith(("/", "*")):
            # The target is a URL, `GET http://x/`, and counts instead of the header. aiohttp gives its bare host.
            target = f"[{request.host}]" if ":" in request.host else request.host
            if not self._knows(target):
                raise HostRefused(target, name_in(target))

    def _knows(self, host: str) -> bool:
        name = name_in(host)
        return name is not None and (not name or name in self._names or name in map(name_in, self._further()))


def _check_page(request: web.Request, origins: list[str | None]) -> None:
    own = origin_in(f"{request.scheme}://{request.headers.get(hdrs.HOST, '')}")
    if any(origin is None or origin != own for origin in origins):
        given = ", ".join(request.headers.getall(hdrs.ORIGIN))
        raise OriginRefused(given, "a web page of another origin sent it", origins[0] or "ORIGIN")
    site = request.headers.get(SITE)
    if site is not None and site.lower() not in OWN_SITES and not _is_followed_link(request):
        raise OriginRefused(None, "a web page of another origin sent it, and not its Origin", "ORIGIN")


def _is_followed_link(request: web.Request) -> bool:
    headers = request.headers
    is_document = headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest") == "document"
    return is_document and request.method == hdrs.METH_GET and request.path != STREAM_PATH


def _is_preflight(request: web.Request) -> bool:
    return request.method == hdrs.METH_OPTIONS and hdrs.ACCESS_CONTROL_REQUEST_METHOD in request.headers


def _preflight_answer(known_headers: Iterable[str]) -> web.Response:
    sendable = ("authorization", "content-type", "accept", *sorted(set(known_headers) - {FORWARDED.lower()}))
    headers = {
        hdrs.ACCESS_CONTROL_ALLOW_METHODS: METHODS,
        hdrs.ACCESS_CONTROL_ALLOW_HEADERS: ", ".join(sendable),
        hdrs.ACCESS_CONTROL_MAX_AGE: str(PREFLIGHT_S),
    }
    return web.Response(status=204, headers=headers)


async def share_with_origin(request: web.Request, response: web.StreamResponse) -> None:
    """Let a page of an allowed origin read the response."""
    response.headers.add(hdrs.VARY, hdrs.ORIGIN)
    if (origin := request.get(ALLOWED_ORIGIN)) is not None:
        response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
        response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = "*"
