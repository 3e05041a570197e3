"""One request to one address, sent once and with a deadline; and if no quire node answers there, what does.

A client looks for a server that can do what it wants, and waits for one. Whoever watches a cluster wants to know how
each node is now, so nothing is sent again, and nothing is asked elsewhere.
"""

import os
import socket
import ssl
from collections.abc import Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson

from quire.log import PayloadInvalid, Value
from quire.replication.names import Connector, Names

from ...access.client_credentials import ClientCredentials, Shown
from ...client import ClientError
from ...client.documents import value_of
from ...client.transport import FORBIDDEN, MSGPACK, OWN_TYPE, TLS_REQUIRED, Reply
from ...outgoing import OwnAnswer
from ...request_id import REQUEST_ID, new_request_id

DOCUMENTS = frozenset({MSGPACK, "application/json"})
DIAL_S = 1.0  # Within each request's own timeout.
BEHIND_A_PROXY = frozenset({HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT})


class NoAnswer(ClientError):
    """A node gave no status: the text says why, `said_of` also what to do. A subclass says it in short: `absence`."""

    absence = "no status"

    def __init__(self, server: str, predicate: str, advice: str = "") -> None:
        """`predicate` continues a sentence that begins with the server."""
        super().__init__(f"{server}{predicate}")
        self.server = server
        self.predicate = predicate
        self.advice = advice

    def said_of(self, who: str) -> str:
        """The sentence about a node that is called `who`, with what to do."""
        return f"{who}{self.predicate}" + (f"; {self.advice}" if self.advice else "")


class NotReached(NoAnswer):
    """There was no connection, or it broke."""

    absence = "not reached"


class Silent(NoAnswer):
    """It accepted the connection, perhaps, and answered nothing in time."""

    absence = "no answer"


class Denied(NoAnswer):
    """It answered that it will not give a status, as to a caller without a token."""

    absence = "refused"


class Unverified(NoAnswer):
    """It did not prove that it is of the cluster."""

    absence = "not verified"


class NotQuire(NoAnswer):
    """Another program answered."""

    absence = "not quire"


class AnotherNode(NoAnswer):
    """Another node answered than the one that should be there."""

    absence = "another node"


class OtherCall(ClientError):
    """A quire server answered that it does not have this call; a standalone log has no status."""


class NodeCaller:
    """Connections to any number of nodes, for one event loop. Use it with `async with`. Calls may run concurrently."""

    def __init__(self, credentials: ClientCredentials) -> None:
        self._credentials = credentials
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=Connector(Names(), DIAL_S), cookie_jar=aiohttp.DummyCookieJar(), response_class=OwnAnswer
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._session.close()

    async def get(
        self, server: str, path: str, timeout_s: float, accepted: frozenset[int] = frozenset({HTTPStatus.OK})
    ) -> dict[str, Value]:
        """The document, a map, with which a server answers, if its status is one of those `accepted`.

        Raises:
            NoAnswer: there is none; OtherCall: the server is quire, and has no such call.
        """
        shown = self._credentials.shown()
        try:
            return await self._get(server, path, timeout_s, accepted, shown)
        except NoAnswer as error:
            # It may be over once the token and the CA were read again.
            if not isinstance(error, Denied | Unverified) or not self._credentials.renewed(shown):
                raise
        return await self._get(server, path, timeout_s, accepted, self._credentials.shown())

    async def _get(
        self, server: str, path: str, timeout_s: float, accepted: frozenset[int], shown: Shown
    ) -> dict[str, Value]:
        try:
            async with self._session.get(
                shown.url(server, path),
                headers={"Accept": MSGPACK, REQUEST_ID: new_request_id(), **shown.headers},
                ssl=shown.context or True,
                server_hostname=shown.server_name,
                timeout=aiohttp.ClientTimeout(total=timeout_s),
                allow_redirects=False,
            ) as answer:
                content = await answer.read()
        except TimeoutError:
            advice = "see its journal: its process may be stopped or overloaded, or the network drops its packets"
            raise Silent(server, f" does not answer within {timeout_s:g} s", advice) from None
        except aiohttp.ClientConnectorError as error:
            raise _not_reached(server, error, shown) from None
        except aiohttp.ClientResponseError:
            raise _not_quire(server, "it does not speak HTTP") from None
        except ValueError:  # Among them aiohttp.InvalidURL.
            raise NotReached(server, " is not reached: the address is not HOST:PORT") from None
        except (aiohttp.ClientError, OSError) as error:
            why = str(error) or type(error).__name__
            advice = "see its journal"
            raise NotReached(server, f" is not reached: the connection broke ({why})", advice) from None
        kind = answer.content_type if "Content-Type" in answer.headers else "no content"
        if answer.status in accepted:
            return _map_of(server, Reply(content, kind, answer.headers), f"it answered {answer.status} with {kind}")
        raise _refusal_of(server, answer.status, kind, content, shown)


def _map_of(server: str, reply: Reply, answered: str) -> dict[str, Value]:
    if reply.content_type not in DOCUMENTS:
        raise _not_quire(server, answered)
    try:
        document = value_of(reply)
    except (ValueError, PayloadInvalid):
        document = None
    if not isinstance(document, dict):
        raise _not_quire(server, f"{answered} that is not a map")
    return document


def _not_reached(server: str, error: aiohttp.ClientConnectorError, shown: Shown) -> NoAnswer:
    cause: Exception = error.os_error
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        cause = error.certificate_error
    if isinstance(cause, ssl.SSLError) and (why := shown.refusal_of(server, cause)):
        return Unverified(server, why.removeprefix(server) if why.startswith(server) else f": {why}")
    if isinstance(cause, socket.gaierror):
        return NotReached(server, " is not reached: its name is not known", "correct the address")
    number = cause.errno if isinstance(cause, OSError) else None
    reason = os.strerror(number).lower() if number else str(cause) or type(cause).__name__
    return NotReached(server, f" is not reached: {reason}", "start it, or see its journal")


def _not_quire(server: str, what: str, advice: str = "correct the address") -> NoAnswer:
    return NotQuire(server, f" is not a quire node ({what})", advice)


def _refusal_of(server: str, status: int, kind: str, content: bytes, shown: Shown) -> ClientError:
    """The error of a response that is not as expected."""
    problem = _problem_of(content)
    name, detail = str(problem.get("type", "")), problem.get("detail") or problem.get("title")
    answered = f"it answered {status} with {kind}"
    if not name.startswith(OWN_TYPE):
        advice = "if it is a proxy, see what is behind it" if status in BEHIND_A_PROXY else "correct the address"
        return _not_quire(server, answered, advice)
    if name == TLS_REQUIRED:
        return Denied(server, " speaks TLS", "give its CA with --ca or QUIRE_CA")
    if status == HTTPStatus.NOT_FOUND:
        return OtherCall(f"{server} answered {status}: {detail}")
    is_denied = status == HTTPStatus.UNAUTHORIZED or name == FORBIDDEN
    advice = "" if shown.has_token or not is_denied else "give a token with --token-file or QUIRE_TOKEN_FILE"
    return Denied(server, f" answered {status}: {detail}", advice)


def _problem_of(content: bytes) -> Mapping[str, Any]:
    try:
        problem = orjson.loads(content)
    except orjson.JSONDecodeError:
        return {}
    return problem if isinstance(problem, dict) else {}
