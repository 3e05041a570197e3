"""What each call of the HTTP interface answers, and when: every status and problem, with a request that causes it.

A call's rows are those of all calls of its kind (an unknown parameter is malformed, a call for the leader is 503
without one, ...) and its own. `test_contract.py` sends every row to real clusters, through leader and follower, and
compares the table with the existing routes and problems. Answers that depend on the request alone are in
`malformed/requests.py` and `malformed/wire.py`. `docs/malformed.md` is generated from all three.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from quire.log import pack
from quire.sm import SESSION_WINDOW
from tests.cluster import worlds
from tests.cluster.malformed.case import JSON, OCTETS, Ask
from tests.cluster.malformed.requests import REQUESTS
from tests.cluster.malformed.wire import BODIES, LINES
from tests.cluster.worlds import Condition, in_the_mood

NOWHERE_YET = {
    "body-timeout": "408: an incomplete body is not a request that this table can hold; see test_request_bodies.py",
    "resources-exhausted": "503: needs a process that can open no more files; see test_standalone.py",
    "truncated": "409: needs a flush that takes long; see test_standalone.py",
    "expired": "410: needs an expiry; see test_retention.py",
    "snapshot-failed": "503: needs a killed child or a full disk; see test_snapshots.py",
    "transfer-failed": "503: takes three election timeouts; see test_transfer.py",
    "members-full": "409: needs 65 nodes; see tests/replication/test_members.py",
    "leader-not-serving": "503: possible only in the first moments of a leadership; see test_members.py",
    "change-under-way": "409: possible only while a commit takes a second; see test_members.py",
    "address-unusable": "409: of members; see tests/cluster/test_joining.py",
    "node-unreachable": "503: needs a member that is down; see tests/cluster/test_joining.py",
    "node-behind": "503: needs a node that lags; see test_members.py",
    "voters-unheard": "503: needs a voter that has just fallen silent; see test_members.py",
    "unauthorized": "401: needs tokens; see access/test_callers.py",
    "forbidden": "403: needs tokens; see access/test_callers.py",
    "session-owned": "403: needs two callers with tokens; see test_session_owners.py",
    "cursor-owned": "403: needs two callers with tokens; see test_cursor_owners.py",
    "internal": "500: a fault of the node; no request is known to cause it",
}
ADD_0 = b'{"commands": [["add", 0]]}'
IN_SESSION = {"Quire-Session": "{session}", "Quire-Sequence": "2"}
EVERYWHERE, FOLLOWER = ("n1", "n3"), ("n3",)


@dataclass(frozen=True)
class Row:
    """One answer of a call. `problem` is empty on success; `at` are the nodes that are asked.

    `gives` are the keys of a successful answer, if it is a document with fixed keys.
    """

    status: int
    problem: str
    ask: Ask
    world: str = "plain"
    given: Condition = worlds.nothing
    at: tuple[str, ...] = EVERYWHERE
    gives: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Call:
    """A call: a request that is answered well, what kind it is, and the rows that it alone has.

    `answers` is how, where that is not with 200; `gives`, the good answer's keys; `moody`, what the machine of that
    name takes, where that is something else. A call that is `formed` needs the log of the node that is asked.
    """

    good: Ask
    gives: str = ""
    moody: Ask | None = None
    world: str = "plain"
    given: Condition = worlds.nothing
    answers: tuple[int, str] = (200, "")
    formed: bool = False
    forwards: bool = False
    reads: bool = True
    writes: bool = False
    largest_body: int | None = None
    own: list[Row] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, str]:
        """Its method and route."""
        return self.good.method, self.good.path.partition("?")[0]

    def takes(self, ask: Ask) -> bool:
        """Whether the request is for its route."""
        route = re.sub("{[a-z]+}", "[^/]+", self.key[1])
        return ask.method == self.key[0] and re.fullmatch(route, ask.path.partition("?")[0]) is not None

    def rows(self) -> Iterator[Row]:
        """All that it answers."""
        yield replace(self._row(*self.answers, self.good), gives=frozenset(self.gives.split()))
        yield from self._rows_of_all()
        if self.largest_body is not None:
            yield self._row(413, "limit-exceeded", self.good._replace(body=b" " * (self.largest_body + 1)))
            yield self._row(415, "unsupported-media-type", self.good._replace(content_type="text/plain"))
        if self.formed:
            yield Row(503, "state-unavailable", self._elsewhere(), "forming", at=("n1",))
        if self.forwards:
            yield from self._rows_of_forwarded()
            if self.writes:
                yield from self._rows_of_writes()
            elif self.reads:
                yield from self._rows_of_reads()
        yield from self.own

    def _row(self, status: int, problem: str, ask: Ask) -> Row:
        return Row(status, problem, ask, self.world, self.given)

    def _rows_of_all(self) -> Iterator[Row]:
        both = "&" if "?" in self.good.path else "?"
        yield self._row(400, "malformed", self.good._replace(path=f"{self.good.path}{both}nonsense=1"))
        headers = {**self.good.headers, "Quire-Nonsense": "1"}
        yield self._row(400, "malformed", self.good._replace(headers=headers))
        yield self._row(405, "http", self.good._replace(method="POST" if "/cursors/" in self.good.path else "PUT"))
        yield Row(429, "overloaded", self.good, self.world, worlds.crowded)

    def _elsewhere(self) -> Ask:
        """The good request, where the row's condition does not hold."""
        return self.good._replace(
            path=self.good.path.format(session=7, index=1, chunk=0, node="n1", name="mail"), headers={}
        )

    def _rows_of_forwarded(self) -> Iterator[Row]:
        elsewhere = self._elsewhere()
        forwarded = elsewhere._replace(headers={"Quire-Forwarded": "n2"})
        yield Row(503, "not-leader", forwarded, at=FOLLOWER)
        yield Row(503, "no-leader", elsewhere, "headless", at=("n2",))
        yield Row(503, "no-leader", elsewhere, "forming", at=("n1",))
        yield Row(503, "leader-unreachable", elsewhere, "cut", at=("n2",))

    def _rows_of_writes(self) -> Iterator[Row]:
        yield Row(429, "overloaded", self.good, given=worlds.overloaded)
        yield Row(503, "disk-full", self.good, given=worlds.full_disk)
        yield Row(503, "stopping", self.good, given=worlds.stopping)
        yield self._row_of_failed()
        yield Row(504, "outcome-unknown", self.good, given=worlds.held)

    def _rows_of_reads(self) -> Iterator[Row]:
        yield Row(503, "state-unavailable", self.good, given=worlds.no_reads)
        yield Row(503, "stopping", self.good, given=worlds.stopping)
        yield self._row_of_failed()

    def _row_of_failed(self) -> Row:
        ask = self.moody or self.good
        return Row(
            503, "state-unavailable", ask._replace(path=ask.path.format(session=7, node="n1", name="mail")), "failed"
        )


def post(path: str, body: bytes | None = None) -> Ask:
    """A POST of JSON."""
    return Ask("POST", path, None if body is None else JSON, body)


def commands(body: bytes, **headers: str) -> Ask:
    """A POST of commands."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return post("/commands", body)._replace(headers=named)


def get(path: str) -> Ask:
    """A GET."""
    return Ask("GET", path)


def said(message: bytes) -> Ask:
    """A message on a stream."""
    return _STREAM._replace(message=message)


_MIB = 1 << 20
_TOO_MANY = b'{"commands": [' + b'["add", 0],' * SESSION_WINDOW + b'["add", 0]]}'
_PUT = Ask("PUT", "/cursors/{name}", JSON, b'{"index": 0}')
_QUERY = post("/query", b'{"request": null}')
_MEMBER = Ask("PATCH", "/members/{node}", JSON, b'{"role": "voter"}')
_RAW = Ask("POST", "/records", OCTETS, bytes(_MIB + 1))
_STREAM = get("/commands/stream?session={session}")

CALLS = [
    Call(
        commands(ADD_0),
        "index epoch results",
        moody=commands(b'{"commands": ["well"]}'),
        forwards=True,
        writes=True,
        largest_body=_MIB,
        own=[
            Row(
                409,
                "session-refused",
                commands(ADD_0, Quire_Session="{session}", Quire_Sequence="7"),
                given=worlds.a_session,
            ),
            Row(413, "limit-exceeded", commands(_TOO_MANY, **IN_SESSION), given=worlds.a_session),
            Row(500, "check-failed", commands(b'{"commands": ["check fails"]}'), "moody"),
        ],
    ),
    Call(
        said(pack([2, [["add", 0]]])),
        given=worlds.a_session,
        forwards=True,
        reads=False,
        own=[
            Row(400, "http", _STREAM, given=worlds.a_session),  # Not a WebSocket request.
            Row(409, "session-refused", _STREAM, given=worlds.a_fenced_session),
            Row(409, "sequence-refused", said(pack([0, [["add", 0]]])), given=worlds.a_session),
            Row(429, "overloaded", _STREAM, given=worlds.no_slots),
            Row(429, "overloaded", said(pack([2, [["add", 0]]])), given=worlds.overloaded),
            Row(500, "check-failed", said(pack([1, ["check fails"]])), "moody", in_the_mood("well")),
            Row(503, "disk-full", said(pack([2, [["add", "1" * 34]]])), given=worlds.full_disk),
            Row(503, "stopping", said(pack([2, [["add", 0]]])), given=worlds.stopping),
            Row(503, "state-unavailable", said(pack([1, ["well"]])), "failed"),
        ],
    ),
    Call(
        post("/sessions", b"{}"),
        "session sequence session_window max_request_bytes history epoch",
        forwards=True,
        writes=True,
        largest_body=4096,
        own=[Row(429, "sessions-full", post("/sessions", b"{}"), given=worlds.no_room_for_sessions)],
    ),
    Call(
        get("/sessions"),
        "sessions next",
        given=worlds.a_session,
        forwards=True,
        own=[Row(503, "state-unavailable", get("/sessions"), "alone", at=("n1",))],
    ),
    Call(post("/sessions/close", b'{"sessions": []}'), "closed", forwards=True, writes=True, largest_body=1 << 15),
    Call(
        get("/sessions/{session}"),
        "session name sequence owner",
        given=worlds.a_session,
        forwards=True,
        own=[Row(503, "state-unavailable", get("/sessions/1"), "alone", at=("n1",))],
    ),
    Call(
        Ask("DELETE", "/sessions/{session}"),
        "session sequence",
        given=worlds.a_session,
        forwards=True,
        writes=True,
        own=[Row(404, "session-unknown", Ask("DELETE", "/sessions/999999"))],
    ),
    Call(
        get("/cursors"),
        "cursors next",
        given=worlds.a_cursor,
        forwards=True,
        own=[Row(503, "state-unavailable", get("/cursors"), "alone", at=("n1",))],
    ),
    Call(
        _PUT,
        "name index",
        given=worlds.a_cursor,
        forwards=True,
        writes=True,
        largest_body=4096,
        own=[
            Row(
                409,
                "cursor-refused",
                _PUT._replace(body=b'{"index": 0, "token": "%s"}' % (b"0" * 32)),
                given=worlds.a_cursor,
            ),
            Row(404, "cursor-unknown", _PUT._replace(path="/cursors/none", body=b'{"index": 0, "expected": 0}')),
            Row(
                409,
                "holds-full",
                _PUT._replace(path="/cursors/none", body=b'{"index": 0, "hold_bytes": %d}' % (1 << 63)),
            ),
            Row(409, "cursors-full", _PUT, given=worlds.no_room_for_cursors),
            Row(503, "feature-not-in-use", _PUT, "older"),
        ],
    ),
    Call(
        get("/cursors/{name}"),
        "name index next_index hold_bytes owner taken token lag lost",
        given=worlds.a_cursor,
        forwards=True,
        own=[Row(503, "state-unavailable", get("/cursors/mail"), "alone", at=("n1",))],
    ),
    Call(
        Ask("DELETE", "/cursors/{name}"),
        "name index",
        given=worlds.a_cursor,
        forwards=True,
        writes=True,
        own=[Row(404, "cursor-unknown", Ask("DELETE", "/cursors/nowhere"))],
    ),
    Call(
        post("/records", b'["add", 0]'),
        "write_index count",
        moody=post("/records", b'"well"'),
        forwards=True,
        writes=True,
        largest_body=_MIB,
        own=[
            Row(200, "", _RAW, "log", gives=frozenset({"write_index", "count"})),
            Row(409, "not-in-this-mode", _RAW),
            Row(
                409,
                "session-refused",
                post("/records", b'["add", 0]')._replace(headers={"Quire-Session": "999999", "Quire-Sequence": "1"}),
            ),
            Row(500, "check-failed", post("/records", b'"check fails"'), "moody"),
        ],
    ),
    Call(
        get("/records?from=0"),
        own=[
            Row(409, "history-changed", get(f"/records?from=0&history={'0' * 32}")),
            Row(429, "overloaded", get("/records?from=0&wait_ms=1"), given=worlds.no_slots),
            Row(503, "corrupt-here", get("/records?from={index}"), "rotten", worlds.a_record),
        ],
    ),
    Call(
        get("/records/{index}"),
        given=worlds.a_record,
        formed=True,
        own=[
            Row(404, "not-committed", get("/records/{next}"), "alone", worlds.a_record, at=("n1",)),
            Row(503, "corrupt-here", get("/records/{index}"), "rotten", worlds.a_record),
        ],
    ),
    Call(post("/rpc/truncate", b'{"truncate_index": 0}'), answers=(409, "not-in-this-mode")),
    Call(post("/admin/transfer", b'{"target": "n1"}'), "leader epoch", forwards=True, reads=False, largest_body=4096),
    Call(
        get("/members"),
        "leader epoch members_index commit_index change may_fail members removed",
        forwards=True,
        reads=False,
    ),
    Call(
        post("/members", b'{"members": {"n1": "127.0.0.1:1"}}'),
        answers=(409, "change-refused"),
        forwards=True,
        reads=False,
    ),
    Call(
        Ask("DELETE", "/members/{node}"),
        given=worlds.no_member,
        answers=(404, "node-unknown"),
        forwards=True,
        reads=False,
    ),
    Call(
        _MEMBER,
        "node_id changes",
        given=worlds.the_leader,
        forwards=True,
        reads=False,
        largest_body=1 << 14,
        own=[Row(503, "node-not-connected", _MEMBER._replace(path="/members/n2"), "alone", at=("n1",))],
    ),
    Call(post("/admin/snapshot"), "node_id index bytes sha256", formed=True),
    Call(
        post("/admin/expire", b'{"dry_run": true}'), "node_id segments to_index bytes", formed=True, largest_body=4096
    ),
    Call(post("/admin/accept-code"), "node_id code accepted_code", formed=True),
    Call(get("/admin/genesis"), formed=True),
    Call(
        get("/admin/snapshots/{index}"),
        given=worlds.a_snapshot,
        formed=True,
        own=[Row(404, "snapshot-unknown", get("/admin/snapshots/999999"))],
    ),
    Call(
        get("/admin/snapshots/{index}/{chunk}"),
        given=worlds.a_snapshot,
        formed=True,
        own=[
            Row(400, "malformed", get("/admin/snapshots/{index}/999999"), given=worlds.a_snapshot),
            Row(404, "snapshot-unknown", get("/admin/snapshots/999999/0")),
        ],
    ),
    Call(
        get("/index_bounds?consistency=linearizable"),
        "lowest_index highest_index",
        forwards=True,
        reads=False,  # Not of the machine.
        own=[
            Row(200, "", get("/index_bounds"), gives=frozenset({"lowest_index", "highest_index"})),
            Row(503, "state-unavailable", get("/index_bounds?consistency=linearizable"), given=worlds.no_reads),
            Row(503, "stopping", get("/index_bounds?consistency=linearizable"), given=worlds.stopping),
        ],
    ),
    Call(
        get("/state"),
        "state applied_index digest",
        forwards=True,
        own=[
            Row(413, "limit-exceeded", get("/state"), "moody", in_the_mood("long")),
            Row(413, "limit-exceeded", get("/state?consistency=local"), "moody", in_the_mood("long")),
            Row(422, "query-refused", get("/state"), "moody", in_the_mood("refuse")),
            Row(500, "machine-failed", get("/state"), "moody", in_the_mood("fail")),
            Row(500, "machine-failed", get("/state"), "moody", in_the_mood("unsendable")),
            Row(503, "state-unavailable", get("/state?consistency=local&max_lag=0"), "headless", at=("n2",)),
            Row(503, "state-unavailable", get("/state?consistency=local"), "forming", at=("n1",)),
        ],
    ),
    Call(
        _QUERY,
        "answer applied_index",
        forwards=True,
        largest_body=_MIB,
        own=[
            Row(413, "limit-exceeded", _QUERY, "moody", in_the_mood("long")),
            Row(422, "query-refused", _QUERY, "moody", in_the_mood("refuse")),
            Row(500, "machine-failed", _QUERY, "moody", in_the_mood("fail")),
        ],
    ),
    Call(get("/status")),
    Call(get("/cluster"), "node_id leader leaders snapshots nodes"),
    Call(
        get("/leader"),
        "node_id leader epoch",
        own=[
            Row(429, "overloaded", get("/leader?wait_ms=1"), given=worlds.no_slots),
            Row(503, "stopping", get("/leader?epoch=1000&wait_ms=1"), given=worlds.stopping, at=("n1",)),
        ],
    ),
    Call(get("/")),
    Call(get("/healthz"), "alive"),
    Call(
        get("/readyz"),
        "ready alarms",
        own=[
            Row(503, "not-ready", get("/readyz"), "headless", at=("n2",)),
            Row(503, "not-ready", get("/readyz"), "forming", at=("n1",)),
        ],
    ),
    Call(get("/metrics")),
]

ROWS = sorted(
    ((call, row, at) for call in CALLS for row in call.rows() for at in row.at),
    key=lambda asked: asked[1].world,  # Sorted, so that each world is set up once.
)

ANSWERED = {
    *((row.status, row.problem) for _, row, _ in ROWS),
    *((case.status, case.problem) for _, cases in REQUESTS for case in cases),
    *((case.status, case.problem) for case in (*BODIES, *LINES) if " " not in case.problem),
}


def filled(ask: Ask, values: worlds.Values) -> Ask:
    """The request, with the values of the row's condition."""
    headers = {name: value.format(**values) for name, value in ask.headers.items()}
    return ask._replace(path=ask.path.format(**values), headers=headers)
