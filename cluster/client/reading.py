"""Reading ranges and following the log, page by page, from whichever server answers.

What is visible is committed, and the same at an index on every server. So a page may come from any of them: what must
be kept is the index to go on from, and that alone.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from urllib.parse import urlencode

from .errors import ClientError, NotFound, Unavailable
from .transport import Reply

TAIL_WAIT_MS = 3_000  # Below the time that a read waits for one server, so that a silent one is told from a quiet log.
PAUSE_S = 0.05  # After an answer that should have waited and did not, as from a node that is stopping.
AHEAD = frozenset({"urn:quire:problem:out-of-bounds", "urn:quire:problem:not-committed"})


@dataclass(frozen=True, slots=True)
class Record:
    """A record as the cluster holds it; timestamp in microseconds since 1970, kind is records or blob."""

    index: int
    epoch: int
    timestamp: int
    kind: str
    headers: Mapping[str, str]
    value: Any


Pages = AsyncGenerator[list[Record], None]
Ask = Callable[[str], Awaitable[Reply]]
Parse = Callable[[Reply], Any]


async def range_pages(ask: Ask, parse: Parse, from_index: int | None, to_index: int | None) -> Pages:
    """The visible records [from_index, to_index); from the first and to the last where None is given.

    Raises:
        Unavailable: the servers that are left have not heard of all of them yet.
    """
    bounds = parse(await ask("/index_bounds"))
    index = bounds["lowest_index"] if from_index is None else from_index
    end = bounds["highest_index"] if to_index is None else min(to_index, bounds["highest_index"])
    while index < end:
        page, next_index = await _page(ask, parse, index, {"from": index, "to": end})
        if next_index == index:
            raise Unavailable(f"index {index} is not visible on the server that answered; it was on another")
        index = next_index
        if page:
            yield page


async def tail_pages(ask: Ask, parse: Parse, from_index: int | None, timeout_s: float) -> Pages:
    """Every record from an index on, for ever; from what comes next where None is given.

    Raises:
        Unavailable: nobody answered for as long as one call may take.
        NotFound: the index has expired, or is so far ahead that no server came to it in that time.
    """
    index = parse(await ask("/index_bounds"))["highest_index"] if from_index is None else from_index
    patience = time.monotonic() + timeout_s
    while True:
        asked_at = time.monotonic()
        try:
            page, next_index = await _page(ask, parse, index, {"from": index, "wait_ms": TAIL_WAIT_MS})
        except NotFound as error:
            if error.type not in AHEAD or time.monotonic() > patience:
                raise
            page, next_index = [], index  # This server is behind the one before; it, or another, will catch up.
        else:
            patience = time.monotonic() + timeout_s
        if page:
            yield page
        if next_index == index and time.monotonic() - asked_at < TAIL_WAIT_MS / 2000:
            await asyncio.sleep(PAUSE_S)
        index = next_index


async def _page(ask: Ask, parse: Parse, index: int, parameters: Mapping[str, int]) -> tuple[list[Record], int]:
    """The records from `index` on that a server gives, and the index to go on from."""
    reply = await ask("/records?" + urlencode(parameters))
    page = [Record(**line) for line in parse(reply)]
    next_index = int(reply.headers["Quire-Next-Index"])
    indices = [index - 1, *(record.index for record in page), next_index]
    if any(later <= earlier for earlier, later in pairwise(indices)):
        raise ClientError(f"a server answered records {indices[1:-1]} and {next_index} next, asked for {index} on")
    return page, next_index
