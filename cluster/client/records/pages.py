"""Records of the log: reading a range, and following the log, in pages from whichever server answers.

Visible records are committed, so every server holds the same record at an index, and any server may give the next page.
The only state to keep is the index to continue from.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol, TypedDict
from urllib.parse import urlencode

from quire.log import Value

from ..documents import BoundsDocument, document_of, rows_of
from ..errors import ClientError, HistoryChanged, NotFound, Problem, Unavailable
from ..transport import Reply

PAUSE_S = 0.05  # Before asking again when a server did not wait as asked, for example because it is stopping.
EXPIRED = "urn:quire:problem:expired"
AHEAD = frozenset({"urn:quire:problem:out-of-bounds", "urn:quire:problem:not-committed"})


@dataclass(frozen=True, slots=True)
class Record:
    """A committed record.

    `timestamp` is in microseconds since 1970. `kind` is `records` or `blob`. `session` and `sequence` are those under
    which the writer sent it, both 0 if it had no session. `executed` is false if the session answered it instead, for
    example because it was a retry, and None if the server does not know. `value` is the unpacked payload: what the
    writer passed to `append`, or the command.
    """

    index: int
    epoch: int
    timestamp: int
    kind: str
    session: int
    sequence: int
    executed: bool | None
    headers: Mapping[str, str]
    value: Value


Pages = AsyncGenerator[list[Record], None]


class Page(NamedTuple):
    """The records of a server's answer, perhaps none; the index to continue from, and the lowest of that server."""

    records: list[Record]
    next_index: int
    lowest_index: int


class RecordsExpired(NotFound):
    """The records at an index expired on the servers that answer. `lowest_index` is the lowest that one of them has."""

    def __init__(self, problem: Problem, lowest_index: int) -> None:
        super().__init__(problem)
        self.lowest_index = lowest_index


class _Elsewhere(NamedTuple):
    """The server to ask for records below `to_index`, which have expired on others; None stands for any server.

    `failed` are those that had them, and then did not give them. They are forgotten once the reader gets on.
    """

    server: str | None = None
    to_index: int = 0
    failed: frozenset[str] = frozenset()

    def without(self) -> "_Elsewhere":
        """Any server but this one, if another one is needed."""
        return _Elsewhere(failed=self.failed | {self.server} if self.server else self.failed)


class Source(Protocol):
    """What records are read from: servers, each of which may give the next page."""

    timeout_s: float

    @property
    def servers(self) -> Sequence[str]: ...

    async def get(self, path: str, *, server: str | None = None, awaits_record: bool = False) -> Reply: ...


class RecordPages:
    """The records of a cluster in pages, as the servers send them: as `client.pages`."""

    def __init__(self, source: Source, history: str | None = None) -> None:
        self._source = source
        self._history = history  # That of the last page; a server with another one refuses the next.

    async def range(self, from_index: int | None, to_index: int | None) -> Pages:
        """The visible records [from_index, to_index). None stands for the first and the last visible record.

        Raises:
            Unavailable: the servers that answer do not yet have all of the range.
            HistoryChanged: the cluster was recovered since the last page; the next call reads the new history.
        """
        bounds = await self._bounds()
        index = bounds["lowest_index"] if from_index is None else from_index
        end = bounds["highest_index"] if to_index is None else min(to_index, bounds["highest_index"])
        while index < end:
            page = await self._page(index, {"from": index, "to": end})
            if page.next_index == index:
                raise Unavailable(f"index {index} was visible on one server, and is not yet on the one that answered")
            index = page.next_index
            if page.records:
                yield page.records

    async def tail(self, from_index: int | None) -> Pages:
        """Every record from an index on, without end. None starts after the last visible record.

        Raises:
            Unavailable: no server answered within the client's `timeout_s`.
            NotFound: the index has expired, or no server reached it within `timeout_s`.
        """
        index = (await self._bounds())["highest_index"] if from_index is None else from_index
        async with aclosing(self.follow(index, None, {})) as pages:
            async for page in pages:
                if page.records:
                    yield page.records

    async def history(self, from_index: int, to_index: int) -> Pages:
        """The records [from_index, to_index), including system records (kind `system`).

        Waits for a server that does not have them yet. Raises as `tail`.
        """
        async with aclosing(self.follow(from_index, to_index, {"kinds": "all"})) as pages:
            async for page in pages:
                if page.records:
                    yield page.records

    async def follow(
        self, index: int, to_index: int | None, parameters: Mapping[str, int | str]
    ) -> AsyncGenerator[Page, None]:
        """The pages from an index on, up to `to_index` or without end; a page may be empty. Raises as `tail`."""
        if to_index is not None:
            parameters = {"to": to_index, **parameters}
        timeout_s = self._source.timeout_s
        deadline = time.monotonic() + timeout_s
        elsewhere = _Elsewhere()
        while to_index is None or index < to_index:
            asked_at = time.monotonic()
            asked = {"from": index, **parameters}
            answer, elsewhere = await self._asked(index, asked, elsewhere, patient=asked_at <= deadline)
            answered_at = time.monotonic()
            page = answer or Page([], index, 0)
            yield page
            # What the caller takes to work through a page is no time in which a server could have answered.
            left_s = timeout_s if answer is not None else deadline - answered_at
            deadline = time.monotonic() + left_s
            if page.next_index == index and time.monotonic() - asked_at < PAUSE_S:
                await asyncio.sleep(PAUSE_S)
            index = page.next_index

    async def _asked(
        self, index: int, parameters: Mapping[str, int | str], elsewhere: _Elsewhere, *, patient: bool
    ) -> tuple[Page | None, _Elsewhere]:
        # A page, None if there is none now, and whom to ask next. A server that lags will catch up: be `patient`.
        try:
            page = await self._page(index, parameters, elsewhere.server, awaits_record=True)
        except NotFound as error:
            if error.type == EXPIRED:
                return None, await self._elsewhere(index, error, elsewhere)
            if error.type not in AHEAD or not patient:
                raise
            return None, elsewhere.without()
        except (Unavailable, HistoryChanged):
            if elsewhere.server is None:
                raise
            return None, elsewhere.without()
        if page.next_index == index:
            return page, elsewhere.without()  # If a server was chosen, it has no more.
        return page, _Elsewhere() if page.next_index >= elsewhere.to_index else elsewhere

    async def _bounds(self, server: str | None = None) -> BoundsDocument:
        return document_of(await self._source.get("/index_bounds", server=server), BoundsDocument)

    async def _elsewhere(self, index: int, expired: NotFound, tried: _Elsewhere) -> _Elsewhere:
        # A server whose log still has the record; each node expires its log by itself. Raises RecordsExpired.
        servers = [server for server in self._source.servers if server not in tried.failed]
        bounds = await asyncio.gather(*map(self._bounds, servers), return_exceptions=True)
        found = [
            (each, server)
            for each, server in zip(bounds, servers, strict=True)
            if not isinstance(each, BaseException) and each["lowest_index"] < each["highest_index"]
        ]
        refused = expired.problem.get("lowest_index")
        to_index = refused if isinstance(refused, int) else index + 1
        for each, server in found:
            if each["lowest_index"] <= index < each["highest_index"]:
                return _Elsewhere(server, to_index, tried.failed)
        above = [each["lowest_index"] for each, _ in found if each["lowest_index"] > index]
        raise RecordsExpired(expired.problem, min([to_index, *above]))

    async def _page(
        self,
        index: int,
        parameters: Mapping[str, int | str],
        server: str | None = None,
        *,
        awaits_record: bool = False,
    ) -> Page:
        # A server's records from `index` on.
        known = {} if self._history is None else {"history": self._history}
        try:
            path = "/records?" + urlencode({**parameters, **known})
            reply = await self._source.get(path, server=server, awaits_record=awaits_record)
        except HistoryChanged:
            if server is None:
                self._history = None  # The caller knows now, and may read again.
            raise
        self._history = reply.headers.get("Quire-History")
        page = [_record(line) for line in rows_of(reply, _Line)]
        next_index = int(reply.headers["Quire-Next-Index"])
        indices = [index - 1, *(record.index for record in page), next_index]
        if any(later <= earlier for earlier, later in pairwise(indices)):
            raise ClientError(
                f"asked for records from {index}, a server sent {indices[1:-1]} and next index {next_index}"
            )
        return Page(page, next_index, int(reply.headers.get("Quire-Lowest-Index", "0")))


class _Line(TypedDict):
    index: int
    epoch: int
    timestamp: int
    kind: str
    session: int
    sequence: int
    executed: bool | None
    headers: Mapping[str, str]
    value: Value


def _record(line: _Line) -> Record:
    """The record in a line; fields that only later versions know are ignored."""
    try:
        return Record(
            line["index"],
            line["epoch"],
            line["timestamp"],
            line["kind"],
            line["session"],
            line["sequence"],
            line["executed"],
            line["headers"],
            line["value"],
        )
    except KeyError as error:
        raise ClientError(f"a server sent a record without {error.args[0]}: it is older than this client") from None
