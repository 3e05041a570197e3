"""HTTP requests to the nodes of a cluster: one after another until one returns the requested data, or all at once.

A stretch of the log is the same on every node that has it, so any node will do: they are asked in the order in which
they were given. One that does not answer is silent, and asked last until it answers again. Tasks need only the
standard library's HTTP client. Connections are kept open, so each request has an id, and the answer to another one is
dropped (`quire.cluster.request_id`).
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.client import HTTPException
from queue import Empty, SimpleQueue
from typing import NamedTuple, TypeVar

import orjson

from quire.cluster.access.client_credentials import Shown
from quire.cluster.request_id import OTHER_ANSWER, REQUEST_ID, new_request_id

from ..errors import ClusterUnavailable, PipelineError
from .access import PLAIN, Access, NodeConnection

ATTEMPT_TIMEOUT_S = 5.0
"""The timeout of one read from a socket; if a node sends nothing for this long, another one is tried.

It doubles each time: to compute the answer may take longer.
"""
GRACE_S = 0.25
"""How long after the first answer a node may answer to count as one that does; longer if the first one took longer.

It is many times what an idle node takes. One that is late is not lost: its answer counts the next time.
"""
FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 0.5
MAX_ANSWER_BYTES = 64 << 20
"""The limit of an answer: a page of frames, or one larger frame."""
REFUSALS = (
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNPROCESSABLE_ENTITY,
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
)
TLS_REQUIRED = "urn:quire:problem:tls-required"
CURSOR_UNKNOWN = "urn:quire:problem:cursor-unknown"
JSON = "application/json"

Parsed = TypeVar("Parsed")


class Answer(NamedTuple):
    """A node's answer."""

    server: str
    body: bytes
    next_index: int | None


class TryNext(PipelineError):
    """This node does not have the requested data; another may."""


class _Late(TryNext):
    """This node has sent nothing in time."""


class Gone(TryNext):
    """This node says that the records have expired."""


class AnswerRefused(TryNext):
    """This node refuses and will refuse again: the answer exceeds a limit, its machine refuses the query, it does not
    know the caller's token, or the token's role does not suffice.
    """


class TokenUnknown(AnswerRefused):
    """This node does not know the caller's token, or none was sent."""


class CursorUnknown(PipelineError):
    """The leader says that there is no such cursor, so every other node says so, too."""


class Nodes:
    """Connections to some nodes, kept open. For one thread, which starts others: each connection is used by one."""

    def __init__(self, servers: Sequence[str], timeout_s: float, access: Access = PLAIN) -> None:
        """Raises AccessRefused: a file that `access` names cannot be used on this host."""
        self.servers = tuple(servers)
        self._timeout_s = timeout_s
        self._credentials = access.credentials()
        self._reading_credentials = threading.Lock()
        self._connections: dict[str, NodeConnection] = {}
        self._is_closed = False
        self._silent: set[str] = set()
        self._asking: set[str] = set()
        """The nodes that a thread waits for."""

    def first(self, path: str, what: str, parse: Callable[[Answer], Parsed], accept: str = JSON) -> Parsed:
        """The result of `parse` for the first answer that it accepts; it raises TryNext to reject an answer.

        Raises:
            Gone: every node that answered says that the records have expired.
            AnswerRefused: every node refuses.
            CursorUnknown: a node says so.
            ClusterUnavailable: no node returned it in time.
        """
        deadline = time.monotonic() + self._timeout_s
        pause, patience_s = FIRST_PAUSE_S, ATTEMPT_TIMEOUT_S
        while True:
            reasons: dict[str, str] = {}
            gone: list[Gone] = []
            refused: list[AnswerRefused] = []
            for server in sorted(self.servers, key=self.is_silent):
                try:
                    return parse(self._ask(server, path, accept, deadline, patience_s))
                except TryNext as error:
                    reasons[server] = str(error)
                    if isinstance(error, _Late):
                        patience_s *= 2
                    elif isinstance(error, Gone):
                        gone.append(error)
                    elif isinstance(error, AnswerRefused):
                        refused.append(error)
            if refused and len(refused) == len(reasons):
                raise refused[-1]
            if gone and (len(gone) == len(reasons) or time.monotonic() + pause > deadline):
                raise gone[-1]
            if time.monotonic() + pause > deadline:
                raise ClusterUnavailable(what, self._timeout_s, reasons)
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def every(self, path: str, what: str, *, patient: bool) -> dict[str, dict[str, object]]:
        """The documents of the nodes that answer, by server, at least one. All are asked at once.

        If `patient`, each node has ATTEMPT_TIMEOUT_S to answer. Otherwise, those that are not silent have GRACE_S after
        the first answer, and are silent if they let it pass; silent ones are not awaited.

        Raises:
            ClusterUnavailable: no node answered in time.
        """
        found = self._at_once(path, patient=patient)
        if not found:  # It reports why.
            found = self.first(path, what, lambda answer: {answer.server: document_of(answer)})
            if patient:  # One node is back after an outage of all, and others may be, with older records.
                found |= self._at_once(path, patient=True)
        return {server: found[server] for server in self.servers if server in found}

    def _at_once(self, path: str, *, patient: bool) -> dict[str, dict[str, object]]:
        """What `every` returns, but nothing if no node answered."""
        began = time.monotonic()
        asked = [server for server in self.servers if patient or server not in self._asking]
        awaited = {server for server in asked if patient or not self.is_silent(server)}
        answers: SimpleQueue[tuple[str, dict[str, object] | Exception]] = SimpleQueue()
        deadline = until = began + self._timeout_s
        for server in asked:
            self._asking.add(server)
            threading.Thread(target=self._put_answer, args=(answers, server, path, deadline), daemon=True).start()
        found: dict[str, dict[str, object]] = {}
        missing = set(asked)
        while awaited & missing or (missing and not found):
            try:
                server, answer = answers.get(timeout=max(0.0, until - time.monotonic()))
            except Empty:
                break
            missing.discard(server)
            if isinstance(answer, dict):
                found[server] = answer
                if len(found) == 1 and not patient:
                    now = time.monotonic()
                    until = min(deadline, now + max(GRACE_S, now - began))
            elif not isinstance(answer, TryNext):
                raise answer
        self._silent |= missing
        return found

    def _put_answer(
        self,
        answers: SimpleQueue[tuple[str, dict[str, object] | Exception]],
        server: str,
        path: str,
        deadline: float,
    ) -> None:
        """Put a node's document, or why there is none. In a thread of its own."""
        try:
            answers.put((server, document_of(self._ask(server, path, JSON, deadline, ATTEMPT_TIMEOUT_S))))
        except Exception as error:  # noqa: BLE001 - The caller's thread raises it.
            answers.put((server, error))
        finally:
            self._asking.discard(server)

    def is_silent(self, server: str) -> bool:
        """Whether a node did not answer when it was asked last."""
        return server in self._silent

    def ask(self, server: str, path: str) -> Answer:
        """One node's answer, without retries.

        Raises:
            TryNext: it does not answer.
        """
        return self._ask(server, path, JSON, time.monotonic() + self._timeout_s, ATTEMPT_TIMEOUT_S)

    def _ask(self, server: str, path: str, accept: str, deadline: float, patience_s: float) -> Answer:
        shown = self._shown()
        try:
            return self._ask_as(shown, server, path, accept, deadline, patience_s)
        except TokenUnknown as error:
            if not self._renewed(shown):
                if self._credentials.settling:  # This node may not have read its own file yet.
                    raise TryNext(str(error)) from None
                raise
        return self._ask_as(self._shown(), server, path, accept, deadline, patience_s)

    def _shown(self) -> Shown:
        with self._reading_credentials:
            return self._credentials.shown()

    def _renewed(self, shown: Shown) -> bool:
        with self._reading_credentials:
            return self._credentials.renewed(shown)

    def _ask_as(self, shown: Shown, server: str, path: str, accept: str, deadline: float, patience_s: float) -> Answer:
        timeout = max(0.1, min(patience_s, deadline - time.monotonic()))
        connection = self._connections.pop(server, None)
        if connection is not None and connection.shown is not shown:  # It may have been verified by a CA of the past.
            connection.close()
            connection = None
        fresh = connection is None
        connection = connection or NodeConnection(server, shown)
        connection.wait(timeout)
        try:
            answer = self._send(server, connection, path, accept, shown)
        except (OSError, HTTPException) as error:
            if isinstance(error, ssl.SSLError) and (why := shown.refusal_of(server, error)):
                self._renewed(shown)  # The next attempt uses what is there by then.
                raise TryNext(why) from None
            if fresh or isinstance(error, TimeoutError):
                self._silent.add(server)
                raise (_Late if isinstance(error, TimeoutError) else TryNext)(_reason(error)) from error
            # The node may have closed the idle connection.
            return self._ask_as(shown, server, path, accept, deadline, patience_s)
        self._silent.discard(server)
        return answer

    def _send(self, server: str, connection: NodeConnection, path: str, accept: str, shown: Shown) -> Answer:
        try:
            sent = new_request_id()
            connection.request("GET", path, headers={"Accept": accept, REQUEST_ID: sent, **shown.headers})
            response = connection.getresponse()
            if response.headers.get(REQUEST_ID, sent) != sent:
                raise HTTPException(OTHER_ANSWER)
            body = response.read(MAX_ANSWER_BYTES + 1)
            if len(body) > MAX_ANSWER_BYTES:
                raise TryNext(f"its answer exceeds the limit of {MAX_ANSWER_BYTES} bytes")
        except BaseException:
            connection.close()
            raise
        # Another thread may have asked this node as well, and this one may be late.
        if self._connections.setdefault(server, connection) is not connection or self._is_closed:
            connection.close()
        if response.status == HTTPStatus.GONE:
            raise Gone(_detail(body))
        if response.status in REFUSALS:
            kind = TokenUnknown if response.status == HTTPStatus.UNAUTHORIZED else AnswerRefused
            raise kind(f"{response.status}: {_detail(body)}{_advice(response.status, shown)}")
        if response.status == HTTPStatus.BAD_REQUEST and TLS_REQUIRED.encode() in body:
            raise AnswerRefused(f"{server} speaks TLS; give the cluster's CA with option ca, or --ca")
        if response.status == HTTPStatus.NOT_FOUND and CURSOR_UNKNOWN.encode() in body:
            raise CursorUnknown(_detail(body))
        if response.status != HTTPStatus.OK:
            raise TryNext(f"{response.status}: {_detail(body)}")
        next_index = response.headers.get("Quire-Next-Index")
        return Answer(server, body, int(next_index) if next_index and next_index.isdigit() else None)

    def close(self) -> None:
        """Close the connections. A thread that still waits for an answer closes its own."""
        self._is_closed = True
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()


def document_of(answer: Answer) -> dict[str, object]:
    """The JSON object of an answer. Raises TryNext: it is not a JSON object, so the server is not a node of quire."""
    try:
        document = orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        document = None
    if not isinstance(document, dict):
        raise TryNext("its answer is not a JSON object; is it a node of quire?")
    return document


def _detail(body: bytes) -> str:
    try:
        return str(orjson.loads(body)["detail"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return body[:120].decode(errors="replace")


def _advice(status: int, shown: Shown) -> str:
    is_without = status == HTTPStatus.UNAUTHORIZED and not shown.has_token
    return "; give a token with option tokenFile, or --token-file" if is_without else ""


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
