"""The attempts of a call: why they failed, server by server, and the waits between them.

A sentence names each server with its own cause, and each cause once:

    127.0.0.1:7001 knows no leader; 127.0.0.1:7002 and 127.0.0.1:7003 refuse connections

The waits double from BACKOFF_FIRST_S to BACKOFF_LONGEST_S, unless a server asks for a certain wait. Each failed attempt
is logged at level DEBUG by the logger `quire.client`.
"""

import asyncio
import errno
import logging
import os
import random
import socket
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import aiohttp

from .errors import ClientError

NOBODY_THERE = frozenset({errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN})
NO_SUCH_NAME = frozenset({socket.EAI_NONAME, socket.EAI_NODATA})  # Not EAI_AGAIN: a name server may answer later.
BACKOFF_FIRST_S = 0.02  # And as much again at random.
BACKOFF_LONGEST_S = 1.0
MOST_DOUBLINGS = 16
RETRY_SPREAD = 0.5  # Of the time that a server asks for, added at random.

log = logging.getLogger("quire.client")
log.addHandler(logging.NullHandler())  # Nothing appears until the program configures logging.


class AttemptFailed(ClientError):
    """An attempt failed, and a later one may succeed. `retry_after_s` is what the server asked for, if it did."""

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class Cause(NamedTuple):
    """What a server did, as a predicate for one server and for several."""

    of_one: str
    of_many: str
    no_majority: str = ""  # What a node without a leader says of its voters,
    leaderless_s: float = 0.0  # and how long it has heard none.

    @classmethod
    def of(cls, predicate: str) -> "Cause":
        """A predicate that reads the same for both."""
        return cls(predicate, predicate)


REFUSES = Cause("refuses connections", "refuse connections")
UNREACHABLE = Cause.of("cannot be reached (no route to it)")
UNKNOWN_NAME = Cause("has an unknown host name", "have unknown host names")
NO_LEADER = Cause("knows no leader", "know no leader")
SILENT = Cause("is silent", "are silent")
NOT_ASKED = Cause("was not asked in time", "were not asked in time")
INVALID = Cause("is not HOST:PORT", "are not HOST:PORT")
ABSENT = frozenset({REFUSES, UNREACHABLE, UNKNOWN_NAME})
"""Nothing was sent, and nobody is there to answer: the process does not run, or the address is wrong."""


class NothingWritten(AttemptFailed):
    """An attempt failed and may be repeated: it provably had no effect, or the call is safe to repeat anyway.

    `causes` are those of the servers that were tried, if each of them has one.
    """

    def __init__(
        self, reason: str, retry_after_s: float | None = None, causes: Mapping[str, Cause] | None = None
    ) -> None:
        super().__init__(reason, retry_after_s)
        self.causes = dict(causes or {})

    @property
    def none_there(self) -> bool:
        """Whether nobody is there to answer, at any of the servers."""
        return bool(self.causes) and ABSENT.issuperset(self.causes.values())

    def no_majority(self, grace_s: float) -> str:
        """That the voters are no majority, if all nodes that answer say so and have heard no leader for `grace_s`.

        Empty if they do not, or if somebody may be there at one of the other servers.
        """
        told = [cause for cause in self.causes.values() if cause not in ABSENT]
        is_told = all(cause.no_majority and cause.leaderless_s >= grace_s for cause in told)
        return told[0].no_majority if told and is_told else ""


class NotVerified(NothingWritten):
    """A server did not prove that it is of the cluster, or does not speak TLS. Nothing was sent to it."""


def failed_at(server: str, cause: Cause, retry_after_s: float | None = None) -> NothingWritten:
    """The failure of an attempt at one server."""
    return NothingWritten(sentence({server: cause}), retry_after_s, {server: cause})


def together(failures: Iterable[NothingWritten]) -> NothingWritten:
    """The failure of an attempt at several servers, of which there is one at least; the last says when to try again."""
    causes: dict[str, Cause] = {}
    others: list[str] = []
    retry_after_s = None
    for failure in failures:
        causes |= failure.causes
        retry_after_s = failure.retry_after_s
        if not failure.causes:
            others.append(str(failure))
    reason = "; ".join(part for part in (sentence(causes), *others) if part)
    return NothingWritten(reason, retry_after_s, None if others else causes)


def latest(before: NothingWritten | None, last: NothingWritten) -> NothingWritten:
    """The last failure, with the earlier causes of the servers that were not asked any more."""
    if before is None or NOT_ASKED not in last.causes.values():
        return last
    causes = {at: before.causes.get(at, cause) if cause is NOT_ASKED else cause for at, cause in last.causes.items()}
    return NothingWritten(sentence(causes), last.retry_after_s, causes)


def sentence(causes: Mapping[str, Cause]) -> str:
    """Each server with its cause; servers with the same cause stand together."""
    servers_of: dict[tuple[str, str], list[str]] = {}
    for server, cause in causes.items():
        servers_of.setdefault((cause.of_one, cause.of_many), []).append(server)
    return "; ".join(
        f"{listed(servers)} {of_one if len(servers) == 1 else of_many}"
        for (of_one, of_many), servers in servers_of.items()
    )


def listed(servers: list[str]) -> str:
    """The servers in a sentence: `a`, `a and b`, `a, b and c`."""
    return " and ".join(part for part in (", ".join(servers[:-1]), servers[-1]) if part)


def cause_of(error: Exception, connect_s: float) -> Cause:
    """The cause of a connection that was not made within `connect_s`."""
    if isinstance(error, aiohttp.ConnectionTimeoutError | TimeoutError):
        return Cause(f"does not answer within {connect_s:g} s", f"do not answer within {connect_s:g} s")
    inner = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(inner, socket.gaierror) and inner.errno in NO_SUCH_NAME:
        return UNKNOWN_NAME
    if isinstance(inner, OSError) and inner.errno in NOBODY_THERE:
        return REFUSES if inner.errno == errno.ECONNREFUSED else UNREACHABLE
    return Cause.of(f"cannot be reached ({reason_of(error)})")


def reason_of(error: Exception) -> str:
    """What a library's error says, in a few words."""
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return (error.os_error.strerror or str(error.os_error)).lower()  # Its numbers are not those of the system.
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.errno:
        return os.strerror(error.os_error.errno).lower()
    return str(error) or type(error).__name__


def expire(block: asyncio.Timeout | None, after_s: float = 0.0) -> None:
    """Raise TimeoutError in a block of `asyncio.timeout`, unless it is raised already."""
    if block is not None and not block.expired():
        block.reschedule(asyncio.get_running_loop().time() + after_s)


class Backoff:
    """Waits between the attempts of one call or stream, `what` in the log."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._failures = 0

    async def wait(self, failure: AttemptFailed, deadline: float | None = None) -> None:
        """Log a failed attempt, and return when it is time for the next, or at the deadline (`time.monotonic()`)."""
        wait_s = self.next_s(failure.retry_after_s)
        if deadline is not None:
            wait_s = max(0.0, min(wait_s, deadline - time.monotonic()))
        log.debug("%s: attempt %d failed: %.300s; waiting %.3f s", self._what, self._failures, failure, wait_s)
        await asyncio.sleep(wait_s)

    def next_s(self, retry_after_s: float | None) -> float:
        """How long to wait after another failure. `retry_after_s` is what the server asked for, if it did.

        That time is extended at random by up to half: a server gives the same time to all clients that it refuses at
        once, and without this they would all return at once.
        """
        self._failures += 1
        if retry_after_s:
            return retry_after_s * random.uniform(1, 1 + RETRY_SPREAD)
        doubled = BACKOFF_FIRST_S * 2.0 ** min(self._failures - 1, MOST_DOUBLINGS)
        return min(BACKOFF_LONGEST_S, doubled + random.uniform(0, BACKOFF_FIRST_S))
