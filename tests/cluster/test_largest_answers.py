"""Every route is asked for its largest answer 200 times at once: no turn of the loop does too much, no leader falls.

What was done is counted where it is done: rows that are made, bytes that are encoded and bytes that are sent, in each
turn of the loop; of records also the frames that are read, their bytes, and those that are unpacked or passed over.
A route that is new must be added to LARGEST.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
import pytest_asyncio
from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

from quire.cluster.http import bodies
from quire.cluster.http.admission.authorization import Route
from quire.cluster.http.admission.slow_callers import SENDING_COST
from quire.cluster.http.admission.turns import BYTES_IN_TURN, ROWS_IN_TURN
from quire.cluster.http.app import ROUTES
from quire.cluster.http.bodies import RAW_FRAMES
from quire.cluster.http.routes import cluster as cluster_route
from quire.cluster.http.routes import cursors, members, ranges, status
from quire.cluster.http.routes.cursors import PAGE_CURSORS
from quire.cluster.http.routes.sessions import PAGE_SESSIONS
from quire.cluster.node.reading import Reading
from quire.cluster.node.views.metrics import Metrics
from quire.log import cut_frames, payload
from quire.log.packing import Skimmer
from quire.sm.machines.kv import VALUE_BYTES, WHOLE_KEYS
from tests.cluster.running import RunningCluster, running_cluster
from tests.cluster.test_reading_turns import CountedTurns

pytestmark = pytest.mark.full

ASKED_AT_ONCE = 200
FEWER_AT_ONCE = 50
MARGIN = 2
"""What is counted as one turn here may be parts of two."""
BATCH = 10_000
LONG_VALUE = "v" * 1000
LONG_RESULTS = 300
TIMEOUT_S = 60.0
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Largest:
    """The request of a route that has the largest answer, or the most to look at."""

    path: str
    document: Any = None
    headers: dict[str, str] = field(default_factory=dict)


LARGEST = {
    "POST /commands": Largest("/commands", {"commands": [["get", "long"]] * LONG_RESULTS}),
    "GET /commands/stream": Largest("/commands/stream?session=1"),
    "POST /sessions": Largest("/sessions", {}),
    "GET /sessions": Largest(f"/sessions?limit={PAGE_SESSIONS}"),
    "POST /sessions/close": Largest("/sessions/close", {"sessions": [1 << 40] * PAGE_SESSIONS}),
    "GET /sessions/{session}": Largest("/sessions/{session}"),
    "DELETE /sessions/{session}": Largest("/sessions/1"),
    "GET /cursors": Largest(f"/cursors?limit={PAGE_CURSORS}"),
    "PUT /cursors/{name}": Largest("/cursors/cursor-0001", {"index": 1}),
    "GET /cursors/{name}": Largest("/cursors/cursor-0001"),
    "DELETE /cursors/{name}": Largest("/cursors/none"),
    "POST /records": Largest("/records", ["put", "record", 1]),
    "GET /records": Largest("/records?from=1"),
    "GET /records/{index}": Largest("/records/{large}"),
    "GET /index_bounds": Largest("/index_bounds?consistency=linearizable"),
    "POST /rpc/truncate": Largest("/rpc/truncate", {}),
    "GET /state": Largest("/state"),
    "POST /query": Largest("/query", {"request": ["scan", "key", None, 1000]}),
    "GET /status": Largest("/status"),
    "GET /cluster": Largest("/cluster"),
    "GET /leader": Largest("/leader"),
    "GET /members": Largest("/members"),
    "POST /members": Largest("/members", {"members": {}}),
    "PATCH /members/{node}": Largest("/members/n1", {"drained": False}),
    "DELETE /members/{node}": Largest("/members/none"),
    "POST /admin/transfer": Largest("/admin/transfer", {"target": "n1"}),
    "POST /admin/snapshot": Largest("/admin/snapshot"),
    "POST /admin/expire": Largest("/admin/expire", {"dry_run": True}),
    "POST /admin/accept-code": Largest("/admin/accept-code"),
    "GET /admin/genesis": Largest("/admin/genesis"),
    "GET /admin/snapshots/{index}": Largest("/admin/snapshots/{snapshot}"),
    "GET /admin/snapshots/{index}/{chunk}": Largest("/admin/snapshots/{snapshot}/0"),
    "GET /": Largest("/"),
    "GET /healthz": Largest("/healthz"),
    "GET /readyz": Largest("/readyz"),
    "GET /metrics": Largest("/metrics"),
}


SOME_OF_MANY = {
    "a record of a long frame": Largest("/records/{deep}"),
    "a few records of a long frame": Largest("/records?from={deep}&to={deeper}"),
    "a shard of long frames that matches nothing": Largest("/records?from={first}&shard=65000/65536"),
    "short frames, of which none is given": Largest("/records?from=1&to={first}"),
    "a long poll for what is not there": Largest("/records?from=1&to={first}&wait_ms=60000"),
    "short frames as they are": Largest("/records?from=1", headers={"Accept": RAW_FRAMES}),
}
"""Requests that look at more than they answer with."""


class Counted:
    """What was done for callers, by turn of the loop: the amounts of each kind, a number for each piece."""

    def __init__(self) -> None:
        self.turns = CountedTurns()
        self.rows: dict[int, list[int]] = defaultdict(list)
        self.encoded: dict[int, list[int]] = defaultdict(list)
        self.sent: dict[int, list[int]] = defaultdict(list)
        self.read: dict[int, list[int]] = defaultdict(list)
        self.unpacked: dict[int, list[int]] = defaultdict(list)
        self.frames: dict[int, list[int]] = defaultdict(list)

    def of(self, kind: dict[int, list[int]], made: Callable[..., Any], amount: Callable[[Any], int]) -> Any:
        """The same function, whose results are counted."""

        def counted(*arguments: Any, **named: Any) -> Any:
            result = made(*arguments, **named)
            kind[self.turns.number].append(amount(result))
            return result

        return counted

    def of_given(self, kind: dict[int, list[int]], made: Callable[..., Any]) -> Any:
        """The same function; the bytes that it is given are counted."""

        def counted(*arguments: Any, **named: Any) -> Any:
            kind[self.turns.number].append(sum(len(given) for given in arguments if isinstance(given, bytes)))
            return made(*arguments, **named)

        return counted

    def of_write(self, write: Callable[..., Any]) -> Any:
        async def counted(response: web.StreamResponse, data: Any) -> None:
            self.sent[self.turns.number].append(len(data))
            await write(response, data)

        return counted


def most_beside_one(kind: dict[int, list[int]]) -> int:
    """The most of a turn, but for its largest piece: that one may be larger than a turn's share, and goes alone."""
    return max((sum(amounts) - max(amounts) for amounts in kind.values()), default=0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[tuple[RunningCluster, dict[str, int]]]:
    """A leader with as much as an answer may have, and the indices that requests name."""
    async with running_cluster(tmp_path_factory.mktemp("largest"), machine="kv") as cluster:
        sessions = [orjson.dumps({"name": f"name-{number}"}) for number in range(PAGE_SESSIONS)]
        opened = await asyncio.gather(
            *(cluster.ask("n1", "POST", "/sessions", body, JSON["Content-Type"]) for body in sessions)
        )
        await asyncio.gather(
            *(
                cluster.ask("n1", "PUT", f"/cursors/cursor-{number:04}", b'{"index": 1}', JSON["Content-Type"])
                for number in range(PAGE_CURSORS)
            )
        )
        large = await cluster.commands("n1", ["put", "large", "v" * (VALUE_BYTES - 16)])
        await cluster.commands("n1", ["put", "long", LONG_VALUE])
        for first in range(0, WHOLE_KEYS - BATCH, BATCH):
            await cluster.commands(
                "n1", *(["put", f"key-{number:06}", number] for number in range(first, first + BATCH))
            )
        snapshot = await cluster.ask("n1", "POST", "/admin/snapshot", b"")
        assert snapshot.status == 200, snapshot
        session, index = opened[-1].document["session"], snapshot.document["index"]
        # The puts of the last batch end before the snapshot.
        names = {"first": large["index"] + 2, "deep": index - BATCH // 2, "deeper": index - BATCH // 2 + 3}
        yield cluster, {"session": session, "large": large["index"], "snapshot": index, **names}


def _rows_of_status(document: dict[str, Any]) -> int:
    """What the asked node paid for it: the others, which it asks, share this loop, and each has turns of its own."""
    return status.STATUS_ROWS if document["node_id"] == "n1" else 0


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    found = Counted()

    def count(owner: object, name: str, kind: dict[int, list[int]], amount: Callable[[Any], int]) -> None:
        monkeypatch.setattr(owner, name, found.of(kind, getattr(owner, name), amount))

    for module in (bodies, ranges):
        count(module, "to_json", found.encoded, len)
        count(module, "pack", found.encoded, len)
    count(Metrics, "exposition", found.encoded, len)
    count(ranges, "line_of", found.rows, lambda _: 1)
    count(cursors, "wall_clock", found.rows, lambda _: 1)  # Once for each cursor.
    for module in (status, cluster_route, members):
        count(module, "node_status", found.rows, _rows_of_status)
    count(Reading, "read_frames", found.read, lambda read: len(read[0]))
    count(Reading, "read_frames", found.frames, lambda read: sum(1 for _ in cut_frames(read[0])))
    for owner, name in ((Skimmer, "feed"), (payload, "unpack_trusted")):
        monkeypatch.setattr(owner, name, found.of_given(found.unpacked, getattr(owner, name)))
    monkeypatch.setattr(web.StreamResponse, "write", found.of_write(web.StreamResponse.write))
    return found


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
async def test_two_hundred_largest_answers_at_once_hold_no_turn_and_depose_nobody(
    route: Route, running: tuple[RunningCluster, dict[str, int]], counted: Counted
) -> None:
    await ask_at_once(running, route.method, LARGEST[f"{route.method} {route.path}"], counted)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("asked", SOME_OF_MANY.values(), ids=SOME_OF_MANY)
async def test_what_is_read_and_passed_over_is_done_in_turns_too(
    asked: Largest, running: tuple[RunningCluster, dict[str, int]], counted: Counted
) -> None:
    await ask_at_once(running, "GET", asked, counted, FEWER_AT_ONCE)

    assert most_beside_one(counted.unpacked) <= MARGIN * BYTES_IN_TURN


async def ask_at_once(
    running: tuple[RunningCluster, dict[str, int]],
    method: str,
    asked: Largest,
    counted: Counted,
    times: int = ASKED_AT_ONCE,
) -> None:
    cluster, names = running
    url = cluster.url("n1") + asked.path.format_map(names)
    body = None if asked.document is None else orjson.dumps(asked.document)
    headers = asked.headers if body is None else JSON
    epochs = {node_id: node.node.leadership.role.epoch for node_id, node in cluster.nodes.items()}

    async with (
        ClientSession(connector=TCPConnector(limit=0), timeout=ClientTimeout(total=TIMEOUT_S)) as session,
        counted.turns,
    ):

        async def ask() -> int:
            async with session.request(method, url, data=body, headers=headers) as answer:
                await answer.read()
                return answer.status

        statuses = Counter(await asyncio.gather(*(ask() for _ in range(times))))

    assert not {500, 503, 504} & statuses.keys(), statuses
    assert statuses[200] or statuses.keys() & {400, 404, 409}, statuses
    assert most_beside_one(counted.rows) <= MARGIN * ROWS_IN_TURN
    assert most_beside_one(counted.encoded) <= MARGIN * BYTES_IN_TURN
    assert most_beside_one(counted.sent) <= MARGIN * BYTES_IN_TURN * SENDING_COST
    assert most_beside_one(counted.read) <= MARGIN * BYTES_IN_TURN * SENDING_COST
    assert most_beside_one(counted.frames) <= MARGIN * ROWS_IN_TURN
    assert {node_id: node.node.leadership.role.epoch for node_id, node in cluster.nodes.items()} == epochs
    assert cluster.nodes["n1"].node.leadership.is_leader


def test_every_route_has_its_largest_request() -> None:
    assert LARGEST.keys() == {f"{route.method} {route.path}" for route in ROUTES}
