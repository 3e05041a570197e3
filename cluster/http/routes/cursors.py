"""`/cursors`: positions of readers in the log, which last (sm/cursors.py has their rules).

A cursor belongs to the name of the token that created it, once the log has the feature `cursor_owners`
(node/tables/cursors.py has the rules of that). Its consumer's token is shown to those alone who may move it.

A slash in a cursor's name is `%2F` in a path.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from aiohttp import web

from quire.log import wall_clock
from quire.sm import CURSOR_NAME_BYTES, TOKEN_BYTES, Cursor, CursorRow

from ...access.roles import Role
from ...access.tokens import is_token_name
from ...errors import Malformed
from ...node.components import Components
from ...node.tables.cursor_lag import CursorRead
from ...node.tables.cursors import Mover
from ..admission.admission import work_of
from ..admission.authorization import Caller, caller_of, note_call
from ..admission.turns import PIECE_ROWS
from ..api import API
from ..bodies import answer, answer_rows, decode_document, read_body
from ..request import HISTORY, INDEX_HIGHEST, integer_of, parameters_of

BODY_BYTES = 4096
PAGE_CURSORS = 1_000
BODY = '{"index": n}, and perhaps "expected", "rewind", "hold_bytes", "token", "take", "owner"'
FIELDS = frozenset({"index", "expected", "rewind", "hold_bytes", "token", "take", "owner"})

# One spelling for a name: nothing that a URL or a terminal reads otherwise, and no segment of dots, which URLs resolve.
_NAME = re.compile(r"(?!\.+(?:/|$))[A-Za-z0-9._:@~-]+(?:/(?!\.+(?:/|$))[A-Za-z0-9._:@~-]+)*")
_TOKEN = re.compile(rf"[0-9a-f]{{{2 * TOKEN_BYTES}}}")


async def put_cursor(request: web.Request) -> web.StreamResponse:
    """{"name", "index"} of a cursor that was set, or taken with `take`; it is on a majority's disks.

    The body has `index`: where the reader continues. A cursor never goes back, unless `rewind` is true. `expected` is
    the index that the cursor must have. `hold_bytes` is how much of the log it may keep from expiring; without it, that
    stays as it is. With `take` and a new `token`, 32 hex digits, a consumer takes the cursor where it is, or creates it
    at `index`; other tokens are then refused. A request with neither ends the token of the cursor's consumer. A new
    cursor belongs to the name of the caller's token, to none if an admin creates it without `take`; an admin gives it
    to another by `owner`, to none by an empty one. It may be repeated. `Quire-History` is the history of the cluster
    that the index belongs to.
    """
    api = request.app[API]
    parameters_of(request)
    name, body = _name_of(request), await read_body(request, BODY_BYTES)
    row = _row_of(name, decode_document(request, body))
    _note(request, row)
    forwarded = await api.leader.forward(request, body, writes=True)
    if forwarded is not None:
        return forwarded
    mover, timeout_ms = _mover(caller_of(request)), api.node.config.request_timeout_ms
    index = await api.node.components.cursors.set(row, mover, timeout_ms)
    return answer(request, {"name": name, "index": index}, {HISTORY: api.node.components.history})


async def get_cursor(request: web.Request) -> web.StreamResponse:
    """A cursor, linearizable: {"name", "index", "next_index", "hold_bytes", "owner", "taken", "token", "lag", "lost"}.

    `next_index` is that of the first record that its consumer has not read, or the end of the log. `owner` is the name
    of a token, null without one. `taken` says whether it has a consumer, whose `token` is null for a caller who may not
    move the cursor. `lag` has `records`, the distance from `next_index` to the end, and `seconds`, the
    age of the record there; both are 0 if the consumer has read all. `lost` is how many records, at most, expired on
    this leader before they were read.
    """
    api = request.app[API]
    parameters_of(request)
    name = _name_of(request)
    forwarded = await api.leader.forward(request, None, writes=False)
    if forwarded is not None:
        return forwarded
    components = api.node.components
    cursor = await components.cursors.find(name)
    read = await components.cursor_lags.read(name, cursor)
    return answer(request, _document(components, caller_of(request), cursor, read))


async def get_cursors(request: web.Request) -> web.StreamResponse:
    """{"cursors", "next"}: a page of the cursors, by name, each as from `get_cursor`, linearizable.

    The page has cursors whose names come after `after` and start with `prefix`, at most `limit` of them. `next` is the
    `after` of the next page, null on the last one.
    """
    api = request.app[API]
    parameters = parameters_of(request, "after", "limit", "prefix")
    limit = integer_of(parameters, "limit", PAGE_CURSORS)
    forwarded = await api.leader.forward(request, None, writes=False)
    if forwarded is not None:
        return forwarded
    components = api.node.components
    most = PAGE_CURSORS if limit is None else max(1, limit)
    after, prefix, work = parameters.get("after", ""), parameters.get("prefix", ""), work_of(request)
    found, following = await components.cursors.page(after, most, prefix, partial(work.turn, PIECE_ROWS))
    caller = caller_of(request)

    async def rows_of(
        cursors: Sequence[tuple[str, Cursor]], turn: Callable[[], Awaitable[None]]
    ) -> list[dict[str, object]]:
        reads = [await components.cursor_lags.read(name, cursor) for name, cursor in cursors]  # They have own turns.
        await turn()
        return [_document(components, caller, cursor, read) for (_, cursor), read in zip(cursors, reads, strict=True)]

    return await answer_rows(request, work, "cursors", found, rows_of, next=following)


async def delete_cursor(request: web.Request) -> web.StreamResponse:
    """{"name", "index"} of a cursor that this request deleted; its consumer's next commit is refused."""
    api = request.app[API]
    parameters_of(request)
    name = _name_of(request)
    note_call(request, name)
    forwarded = await api.leader.forward(request, None, writes=True)
    if forwarded is not None:
        return forwarded
    mover, timeout_ms = _mover(caller_of(request)), api.node.config.request_timeout_ms
    index = await api.node.components.cursors.delete(name, mover, timeout_ms)
    return answer(request, {"name": name, "index": index})


def _note(request: web.Request, row: CursorRow) -> None:
    """Have the audit log tell who moves a cursor past its consumer: all but the commits of the one that holds it."""
    if row.owner is not None:
        note_call(request, row.name, f"owner {row.owner}" if row.owner else "no owner")
    elif row.rewind:
        note_call(request, row.name, f"rewind to {row.index}")
    elif row.take:
        note_call(request, row.name, "take")
    elif row.hold_bytes is not None:
        note_call(request, row.name, f"hold {row.hold_bytes} bytes")
    elif row.token is None:
        note_call(request, row.name, "set", once=True)  # A reader without a token commits like this, often.


def _mover(caller: Caller) -> Mover:
    return Mover(caller.name, caller.role >= Role.ADMIN)


def _document(components: Components, caller: Caller, cursor: Cursor, read: CursorRead) -> dict[str, object]:
    sees_token = caller.role >= Role.WRITE and _mover(caller).may_move(cursor.owner)
    return {
        "name": read.name,
        "index": cursor.index,
        "next_index": read.next_index,
        "hold_bytes": cursor.hold_bytes,
        "owner": cursor.owner or None,
        "taken": bool(cursor.token),
        "token": (cursor.token.hex() or None) if sees_token else None,
        "lag": components.cursor_lags.lag_of(read, wall_clock())._asdict(),
        "lost": read.lost,
    }


def _name_of(request: web.Request) -> str:
    name = request.match_info["name"]
    if not _NAME.fullmatch(name) or len(name) > CURSOR_NAME_BYTES:
        known = "letters, digits and . _ : @ ~ -, in parts that / separates; no part consists of dots"
        raise Malformed(f"a cursor's name has 1 to {CURSOR_NAME_BYTES} characters: {known}; not {name[:60]!a}")
    return name


def _row_of(name: str, document: object) -> CursorRow:
    if not isinstance(document, dict) or "index" not in document or not document.keys() <= FIELDS:
        raise Malformed(f"the body is {BODY}")
    index, expected, hold_bytes = (_number_of(document, field) for field in ("index", "expected", "hold_bytes"))
    rewind, take, token = document.get("rewind", False), document.get("take", False), document.get("token")
    owner = document.get("owner")
    if index is None or not isinstance(rewind, bool) or not isinstance(take, bool):
        raise Malformed(f"the body is {BODY}")
    if token is not None and (not isinstance(token, str) or not _TOKEN.fullmatch(token)):
        raise Malformed(f"a token is {2 * TOKEN_BYTES} hex digits, in lower case")
    if take and (token is None or rewind or expected is not None):
        raise Malformed("take goes with a token, and without rewind and expected")
    if token is not None and rewind:
        raise Malformed("rewind is for operators: it goes without a token")
    if owner not in (None, "") and not (isinstance(owner, str) and is_token_name(owner)):
        raise Malformed("owner is the name of a token, or empty")
    known = None if token is None else bytes.fromhex(token)
    return CursorRow(name, index, expected, rewind, hold_bytes, known, take, owner)


def _number_of(document: Mapping[str, object], field: str) -> int | None:
    number = document.get(field)
    if number is not None and (type(number) is not int or not 0 <= number <= INDEX_HIGHEST):
        raise Malformed(f"{field} is an integer from 0 to {INDEX_HIGHEST}")
    return number
