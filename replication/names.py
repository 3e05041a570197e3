"""Where host names lead: one resolver for every dial of a process, which remembers what proved itself.

A lost machine often takes the name server along. Nodes that are linked elect another leader then, but can commit
nothing before they have dialled it. So the address that last proved itself under a name is remembered, and a dial tries
it if the name cannot be resolved, or not within a quarter of the dial's time:

    what is dialled         what proves the address               may it try the remembered address?
    /peer...                the hello: a certificate or the       yes: no secret is sent, and nothing believed,
                            secret (rule 10)                      before the proof
    HTTPS                   a certificate of the demanded name    yes: nothing is sent before the proof
    HTTP without a token    nothing                               yes: so, only what a peer's hello proved
    HTTP with a token       nothing                               never: it may be a stranger's address by now

A client without a CA therefore remembers nothing. If a cluster has neither certificates nor a secret, a hello proves
addresses of this machine only. An address that answers without proving itself is forgotten; one that does not answer is
kept. The memory ends with the process.

A lookup blocks a thread as long as the system's resolver waits, which is half a minute if its servers are silent. It
has a thread of its own, so neither file work nor the end of the process waits for it; and there is one lookup per name
at a time, which later dials wait for, too.
"""

import asyncio
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from ssl import SSLContext
from typing import Protocol, TypeVar

from aiohttp import ClientRequest, ClientSession, ClientSSLError, ClientTimeout, SocketFactoryType, TCPConnector, hdrs
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.tracing import Trace
from yarl import URL

from .address import is_loopback, is_name

FRESH_S = 10.0
"""For how long the answer to a lookup is used again."""
PATIENT_SHARE = 4
"""A dial waits this part of its time for a lookup before it tries a remembered address."""
NAMES_LIMIT = 256
"""Names whose addresses are kept; the oldest make room."""
LOOKUPS_LIMIT = 32
"""Lookups, and so threads, at a time."""

LookUp = Callable[[str], Sequence[str]]
"""The IP addresses of a host name, in the order in which to try them. It may block. Raises OSError."""
Kept = TypeVar("Kept")


def look_up(host: str) -> list[str]:
    """The addresses of a host name, by the system's resolver. Blocks. Raises OSError."""
    flags = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV  # With the scope of a link-local address.
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    except UnicodeError:
        raise socket.gaierror(socket.EAI_NONAME, "not a possible host name") from None
    return [socket.getnameinfo(address, flags)[0] for *_, address in found]


@dataclass(slots=True)
class Dial:
    """How a dial treats the name that it dials: how long it waits for a lookup, and whether it may do without one."""

    patience_s: float
    may_recall: bool
    recalls: bool = False
    """Whether it got a remembered address."""


@dataclass(frozen=True, slots=True)
class _Lookup:
    began_at: float
    answer: asyncio.Future[Sequence[str] | OSError]


class Dialled(Protocol):
    """A transport or a WebSocket."""

    def get_extra_info(self, name: str) -> object:
        """Its peer's address as `peername`, None once it is gone."""
        ...


class Names(AbstractResolver):
    """The addresses of host names, for all dials of a process. For one event loop."""

    def __init__(self, look_up: LookUp = look_up, fresh_s: float = FRESH_S) -> None:
        self._look_up = look_up
        self._fresh_s = fresh_s
        self._lookups: dict[str, _Lookup] = {}
        self._fresh: dict[str, tuple[float, deque[str]]] = {}
        self._proved: dict[str, str] = {}

    async def addresses(self, host: str, dial: Dial) -> list[str]:
        """The IP addresses at which to dial this host, the best first. With several, the next dial begins at the next.

        Raises:
            OSError: it could not be resolved, and the dial has no remembered address to try.
        """
        host = host.lower()
        if not is_name(host):
            return [host]
        now = asyncio.get_running_loop().time()
        fresh_until, found = self._fresh.get(host, (now, deque()))
        if now < fresh_until:
            found.rotate(-1)
            return list(found)
        known = self._proved.get(host) if dial.may_recall else None
        lookup = self._lookups.get(host) or self._begin(host, now)
        patience_s = None if known is None else max(0.0, lookup.began_at + dial.patience_s - now)
        await asyncio.wait((lookup.answer,), timeout=patience_s)
        answer = lookup.answer.result() if lookup.answer.done() else TimeoutError()
        if not isinstance(answer, OSError):
            return list(answer)
        if known is None:
            raise type(answer)(*answer.args)  # One for each dial: a traceback grows where it is raised again.
        dial.recalls = True
        return [known]

    def _begin(self, host: str, now: float) -> _Lookup:
        """Look a name up in a thread."""
        loop = asyncio.get_running_loop()
        lookup = _Lookup(now, loop.create_future())
        if len(self._lookups) >= LOOKUPS_LIMIT:
            lookup.answer.set_result(socket.gaierror(socket.EAI_AGAIN, "too many names are being resolved"))
            return lookup

        def run() -> None:
            answer: Sequence[str] | OSError
            try:
                answer = self._look_up(host)
            except OSError as error:
                answer = error
            except Exception as error:  # noqa: BLE001  # Whatever it is, dials wait for it.
                answer = OSError(f"{host} cannot be resolved: {error!r}")
            with suppress(RuntimeError):  # The loop is closed.
                loop.call_soon_threadsafe(self._answered, host, lookup, answer)

        threading.Thread(target=run, name="quire-names", daemon=True).start()
        self._lookups[host] = lookup
        return lookup

    def _answered(self, host: str, lookup: _Lookup, answer: Sequence[str] | OSError) -> None:
        del self._lookups[host]
        lookup.answer.set_result(answer)
        if not isinstance(answer, OSError):
            _keep(self._fresh, host, (asyncio.get_running_loop().time() + self._fresh_s, deque(answer)))

    def proved(self, host: str, dialled: Dialled, *, only_here: bool = False) -> None:
        """Remember the address of a connection whose other end proved itself. `only_here`: if it is this machine's."""
        match dialled.get_extra_info("peername"):
            case (str(address), *_) if is_name(host) and (is_loopback(address) or not only_here):
                _keep(self._proved, host.lower(), address)
            case _:
                return

    def disproved(self, host: str) -> None:
        """Forget the remembered address of a host that answered without proving itself."""
        self._proved.pop(host.lower(), None)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """As `addresses`, for the dial of a `Connector`."""
        found = await self.addresses(host, _DIAL.get())
        flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        return [ResolveResult(hostname=host, host=ip, port=port, family=family, proto=0, flags=flags) for ip in found]

    async def close(self) -> None:
        """Nothing is open: a lookup's thread ends by itself."""


def _keep(table: dict[str, Kept], host: str, kept: Kept) -> None:
    table.pop(host, None)
    table[host] = kept
    if len(table) > NAMES_LIMIT:
        del table[next(iter(table))]


_DIAL: ContextVar[Dial] = ContextVar("dial")


class Connector(TCPConnector):
    """Connections of a session to hosts that `names` resolves. It learns what certificates prove."""

    def __init__(
        self,
        names: Names,
        dial_s: float,
        *,
        limit: int = 0,
        limit_per_host: int = 0,
        keepalive_timeout: float = 15.0,
        socket_factory: SocketFactoryType | None = None,
    ) -> None:
        """`dial_s` is the longest that a dial of this session may take. The other options are aiohttp's."""
        # Its own cache would give one dial what another one may use.
        super().__init__(
            resolver=names,
            use_dns_cache=False,
            limit=limit,
            limit_per_host=limit_per_host,
            keepalive_timeout=keepalive_timeout,
            socket_factory=socket_factory,
        )
        self.names = names
        self.took_s = 0.0
        """How long the last dial took that succeeded."""
        self._dial_s = dial_s

    async def _create_connection(
        self,
        req: ClientRequest,
        traces: list[Trace],
        timeout: ClientTimeout,  # noqa: ASYNC109  # It is aiohttp's.
    ) -> ResponseHandler:
        began_at = time.monotonic()
        proves = req.is_ssl() and isinstance(req.ssl, SSLContext) and req.ssl.check_hostname
        limits_s = (self._dial_s, timeout.sock_connect, timeout.connect, timeout.total)
        patience_s = min(limit_s for limit_s in limits_s if limit_s) / PATIENT_SHARE
        dial = Dial(patience_s, may_recall=proves or hdrs.AUTHORIZATION not in req.headers)
        host = req.url.raw_host or ""
        before = _DIAL.set(dial)
        try:
            protocol = await super()._create_connection(req, traces, timeout)
        except ClientSSLError:
            self.names.disproved(host)
            raise
        finally:
            _DIAL.reset(before)
        self.took_s = time.monotonic() - began_at
        if proves and protocol.transport is not None:
            self.names.proved(host, protocol.transport)
        elif dial.recalls:
            protocol.force_close()  # Not for a later request, which may have a token.
        return protocol

    def drop_kept(self, url: URL) -> None:
        """Close the idle connections to where a request to this URL was lost, so that the next one dials.

        They were kept when it last answered: they are lost as well, and each would cost another request.
        """
        for key in [key for key in self._conns if (key.host, key.port) == (url.raw_host, url.port)]:
            for protocol, _ in self._conns.pop(key):
                protocol.close()


def names_of(session: ClientSession) -> Names | None:
    """What resolves the names that a session dials; None if aiohttp does."""
    return session.connector.names if isinstance(session.connector, Connector) else None
