"""Cursors: named positions in the log, as an operator and a consumer set them."""

import re
import shlex
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TypedDict
from urllib.parse import quote, urlencode

from quire.log import pack

from ..connection import Connection, Run
from ..documents import BoundsDocument, document_of
from ..errors import BadRequest, ClientError, CursorTaken, NotFound, OutcomeUnknown, ReshardRefused
from ..transport import CURSOR_OWNED, MSGPACK, Reply

CURSOR_UNKNOWN = "urn:quire:problem:cursor-unknown"
CURSOR_REFUSED = "urn:quire:problem:cursor-refused"
HOLDS_FULL = "urn:quire:problem:holds-full"
TAKEN, BACK = "CURSOR_TAKEN", "CURSOR_BACK"
MAX_SHARDS = 65_536
_SHARE = re.compile(r"[0-9]+-[0-9]+")

Start = int | str
"""Where a new cursor begins: `first`, the first record of the log; `end`, after its last one; or an index."""


class CursorLag(TypedDict):
    """How far a cursor's consumer is behind: up to so many records, the oldest of which is `seconds` old."""

    records: int
    seconds: float


class CursorRow(TypedDict):
    """A cursor. Its consumer continues at `index`; `next_index` is the first record for it there, or the log's end.

    `owner` is the name of the token that it belongs to, None without one. `taken` says whether it has a consumer, whose
    `token` is None for a caller who may not move the cursor. Up to `lost` records expired before they were read.
    """

    name: str
    index: int
    next_index: int
    hold_bytes: int
    owner: str | None
    taken: bool
    token: str | None
    lag: CursorLag
    lost: int


class Cursors:
    """The cursors of a cluster: `client.cursors`.

    A cursor belongs to the name of the token that created it, to none if an admin set it, until one gives it away. With
    a token of another name, who is no admin, what sets, takes or deletes it raises Forbidden.

    A call that did not say what became of it may be repeated. But an attempt may still be on its way, and arrive after
    others have moved the cursor: name what you `expected`.

    Raises:
        Unavailable: no server could do it within `timeout_s`.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def all(self, prefix: str = "") -> AsyncGenerator[CursorRow, None]:
        """The cursors whose names start with `prefix`, by name."""
        after: str | None = ""
        while after is not None:
            query = urlencode({"prefix": prefix, "after": after})
            page = document_of(await self._connection.get(f"/cursors?{query}"), _Page)
            for row in page["cursors"]:
                yield _complete(row)
            after = page["next"]

    async def get(self, name: str) -> CursorRow:
        """A cursor.

        Raises:
            NotFound: there is no such cursor.
        """
        return _complete(document_of(await self._connection.get(_path(name)), CursorRow))

    async def set(
        self,
        name: str,
        index: int,
        *,
        expected: int | None = None,
        rewind: bool = False,
        hold_bytes: int | None = None,
        owner: str | None = None,
    ) -> int:
        """Set a cursor, or create it; return its index. Its consumer, if it has one, is fenced: its commits fail.

        `expected` is the index that it must have. It goes back only with `rewind`. `hold_bytes` is how much of the log
        it may keep from expiring; without it, that stays as it is. `owner` is for admins: the name of a token, to which
        they give the cursor, or "" for none.

        Raises:
            BadRequest: it was left as it is; the text says why.
            Forbidden: only an admin gives it to another.
            NotFound: it must have an index, and is not there.
            OutcomeUnknown: it may have been set; call this again.
        """
        document = {
            "index": index,
            "rewind": rewind,
            "expected": expected,
            "hold_bytes": hold_bytes,
            "owner": owner,
        }
        return document_of(await self._put(name, document), _Placed)["index"]

    async def delete(self, name: str) -> int:
        """Delete a cursor; return the index that it had. Its consumer's commits then fail.

        Raises:
            NotFound: there is no such cursor.
            OutcomeUnknown: it may have been deleted; call this again.
        """
        reply = await self._connection.call("DELETE", _path(name), writes=True, repeatable=True)
        return document_of(reply, _Placed)["index"]

    async def reshard(self, name: str, shards: int, new_shards: int) -> int:
        """Replace the cursors of a consumer's shares, so that `new_shards` workers share its work from now on.

        Stop all workers first, and bring them level: there is an index below which each has read all its records, that
        of the furthest. The new cursors begin there; it is returned. They get the owner of the former ones; if these
        have none, the name of this token, and none if that is an admin's. Each gets the greatest hold of the former
        ones, which give up theirs where there is no room for both; the log is held throughout. Call it again if it was
        interrupted.

        Raises:
            ReshardRefused: a share is missing or not level, or a new one is there already.
            BadRequest: there is no room for all of the new ones, or their holds; make it, and call this again.
            OutcomeUnknown: it was begun; call this again.
        """
        former = [share_name(name, (shard, shards)) for shard in range(shards)]
        wanted = [share_name(name, (shard, new_shards)) for shard in range(new_shards)]
        rows = {row["name"]: row async for row in self.all(name)}
        left = [rows[each] for each in former if each in rows]
        begun = [rows[each] for each in wanted if each in rows]
        if not left or shards == new_shards:
            raise ReshardRefused(f"{name} has no cursors of {shards} shares that could become {new_shards}")
        level = max(row["index"] for row in left)
        only_deletions_left = len(left) < shards and len(begun) == new_shards
        if only_deletions_left and (any(row["taken"] for row in left) or min(row["index"] for row in begun) < level):
            raise ReshardRefused(
                f"{name} has {new_shards} shares already; {left[0]['name']} is none of them: delete it"
            )
        if not only_deletions_left:
            _refuse_uneven(name, left, [each for each in former if each not in rows], level)
            if any(row["index"] != level for row in begun):
                raise ReshardRefused(f"{begun[0]['name']} is there already, at {begun[0]['index']}; delete it first")
            for row in left:  # This fences a worker that still runs.
                await self.set(row["name"], level, expected=row["index"])
            hold_bytes = max(row["hold_bytes"] for row in (*left, *begun))
            await self._create(wanted, level, hold_bytes, left)
        for row in left:
            await self.delete(row["name"])
        return level

    async def _create(self, wanted: Sequence[str], level: int, hold_bytes: int, left: Sequence[CursorRow]) -> None:
        """Create new shares' cursors. If there is no room for a hold, a former cursor gives its own up for it.

        The last former one, with the greatest hold, does so only once a new one has it.
        """
        giving = sorted((row for row in left if row["hold_bytes"]), key=lambda row: row["hold_bytes"])
        for each in wanted:
            while True:
                try:
                    await self.set(each, level, hold_bytes=hold_bytes, owner=left[0]["owner"])
                    break
                except BadRequest as error:
                    if error.type != HOLDS_FULL or len(giving) <= (each == wanted[0]):
                        raise
                    await self.set(giving.pop(0)["name"], level, expected=level, hold_bytes=0)

    async def take(
        self, name: str, shard: tuple[int, int] | None, start: Start, token: bytes, hold_bytes: int | None
    ) -> tuple[int, str | None]:
        """Take a consumer's cursor with this new token, or create it at `start`; return its index and history.

        Raises:
            ReshardRefused: it is not there, and the consumer has cursors of another number of shares.
        """
        cursor = share_name(name, shard)
        if not (start in ("first", "end") or (isinstance(start, int) and 0 <= start < 1 << 64)):
            raise ValueError(f"a new cursor begins at first, end or an index, not at {start!r}")
        try:
            index = (await self.get(cursor))["index"]
        except NotFound as error:
            if error.type != CURSOR_UNKNOWN:
                raise
            await self._refuse_other_shares(name, cursor)
            index = await self._index_of(start)
        document = {"index": index, "take": True, "token": token.hex(), "hold_bytes": hold_bytes}
        reply = await self._put(cursor, document)
        return document_of(reply, _Placed)["index"], reply.headers.get("Quire-History")

    async def _refuse_other_shares(self, name: str, cursor: str) -> None:
        # A worker that was not told of a change of shares would begin anew, and do all that was done again.
        shards = _shards_of(name, cursor)
        async for row in self.all(name):
            found = _shards_of(name, row["name"])
            if found not in (None, shards):
                raise ReshardRefused(
                    f"there is no cursor {cursor}, but {row['name']}: consume as one of {found}, or change their "
                    f"number with `quire cursor reshard {shlex.quote(name)} {found} {shards}`"
                )

    async def commit(self, name: str, index: int, token: bytes) -> None:
        """Commit a consumer's index; it is on a majority's disks.

        Raises:
            CursorTaken: the cursor has another token or another owner, or is not there.
            OutcomeUnknown: the commit may have taken effect; call this again.
        """
        try:
            await self._put(name, {"index": index, "token": token.hex()})
        except BadRequest as error:
            if error.problem.get("code") == BACK:
                return  # The token is the cursor's, so a later commit of this consumer was first.
            if error.problem.get("code") == TAKEN or error.type in (CURSOR_UNKNOWN, CURSOR_OWNED):
                raise CursorTaken(name, str(error).removeprefix(f"{TAKEN}: ")) from None
            raise
        except OutcomeUnknown as unknown:
            if await self._index_under(name, token, unknown) < index:
                raise

    async def _index_under(self, name: str, token: bytes, unknown: OutcomeUnknown) -> int:
        """The index of the cursor, if the token is its own. Raises CursorTaken, or `unknown` if nobody can tell."""
        try:
            row = await self.get(name)
        except NotFound as error:
            if error.type != CURSOR_UNKNOWN:
                raise unknown from error
            raise CursorTaken(name, str(error)) from None
        except ClientError as error:
            raise unknown from error
        if row["token"] != token.hex():
            raise CursorTaken(name, f"another consumer took the cursor {name!r}, or it was moved")
        return row["index"]

    async def _put(self, name: str, document: Mapping[str, object]) -> Reply:
        body = pack({field: value for field, value in document.items() if value is not None})
        return await self._connection.call(
            "PUT", _path(name), writes=True, repeatable=True, body=body, content_type=MSGPACK
        )

    async def _index_of(self, start: Start) -> int:
        if isinstance(start, int):
            return start
        bounds = document_of(await self._connection.get("/index_bounds?consistency=linearizable"), BoundsDocument)
        return bounds["lowest_index"] if start == "first" else bounds["highest_index"]


class BlockingCursors:
    """`Cursors` for programs without an event loop."""

    def __init__(self, cursors: Cursors, run: Run) -> None:
        self._cursors = cursors
        self._run = run

    def all(self, prefix: str = "") -> list[CursorRow]:
        """The cursors whose names start with `prefix`, by name."""

        async def listed() -> list[CursorRow]:
            return [row async for row in self._cursors.all(prefix)]

        return self._run(listed())

    def get(self, name: str) -> CursorRow:
        """A cursor."""
        return self._run(self._cursors.get(name))

    def set(
        self,
        name: str,
        index: int,
        *,
        expected: int | None = None,
        rewind: bool = False,
        hold_bytes: int | None = None,
        owner: str | None = None,
    ) -> int:
        """Set a cursor, or create it; return its index. Its consumer, if it has one, is fenced: its commits fail."""
        return self._run(
            self._cursors.set(name, index, expected=expected, rewind=rewind, hold_bytes=hold_bytes, owner=owner)
        )

    def delete(self, name: str) -> int:
        """Delete a cursor; return the index that it had."""
        return self._run(self._cursors.delete(name))

    def reshard(self, name: str, shards: int, new_shards: int) -> int:
        """Replace the cursors of a consumer's shares, so that `new_shards` workers share its work from now on."""
        return self._run(self._cursors.reshard(name, shards, new_shards))


def share_name(name: str, shard: tuple[int, int] | None) -> str:
    """The name of the cursor of a share: `mail/2-4` for the share (2, 4) of `mail`; the name itself for (0, 1) or None.

    Raises:
        ValueError: there is no such share, or the name is that of a share itself.
    """
    if "/" in name and _SHARE.fullmatch(name.rpartition("/")[2]):
        raise ValueError(f"{name!r} is the name of a share's cursor: consume as in name='mail', shard=(2, 4)")
    if shard is None or shard == (0, 1):
        return name
    number, shards = shard
    if not 0 <= number < shards <= MAX_SHARDS:
        raise ValueError(f"a share is (i, n) with i below n, and n at most {MAX_SHARDS}, not ({number}, {shards})")
    return f"{name}/{number}-{shards}"


def _shards_of(name: str, cursor: str) -> int | None:
    """Of how many shares of a consumer this is a cursor: 1 for its own name, None if it is another consumer's."""
    if cursor == name:
        return 1
    share = cursor.removeprefix(f"{name}/")
    return int(share.rpartition("-")[2]) if share != cursor and _SHARE.fullmatch(share) else None


def _refuse_uneven(name: str, left: Sequence[CursorRow], missing: Sequence[str], level: int) -> None:
    """Raise ReshardRefused unless all shares are there, and have read all that is below `level`."""
    if missing:
        raise ReshardRefused(f"the cursor {missing[0]} is missing; run its worker once, or set it")
    for row in left:
        share = row["name"].removeprefix(name).strip("/").replace("-", "/")
        command = f"`quire consume {shlex.quote(name)}{f' --shard {share}' if share else ''} --until {level}`"
        if row["lost"] and row["index"] < level:
            raise ReshardRefused(
                f"up to {row['lost']:,} records expired before the worker of {row['name']} read them; run it up to "
                f"{level}, or accept that with --skip-lost: {command}"
            )
        if row["next_index"] < level:
            raise ReshardRefused(
                f"{row['name']} has still to read what is between {row['next_index']} and {level}; run its worker up "
                f"to there: {command}"
            )


class _Page(TypedDict):
    cursors: list[CursorRow]
    next: str | None


class _Placed(TypedDict):
    name: str
    index: int


def _complete(row: CursorRow) -> CursorRow:
    """A row with what the servers of an older version leave out, who know no owners and show every token."""
    row.setdefault("owner", None)
    row.setdefault("taken", row["token"] is not None)
    return row


def _path(name: str) -> str:
    if not name.strip("./"):
        raise BadRequest({"status": 400, "detail": f"{name!r} is not the name of a cursor"})
    return f"/cursors/{quote(name, safe='')}"
