"""What a driver and its tasks ask of nodes that do not answer, and what they fetch of those that do."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructType

import quire.pipeline.origin.nodes
from quire.log import LogOptions
from quire.log.frames import walk_headers
from quire.log.packing import Skimmer
from quire.pipeline.errors import ClusterUnavailable, ForeignLog, RecordsLost
from quire.pipeline.origin.cluster import ClusterLog
from quire.pipeline.origin.nodes import Nodes
from quire.pipeline.origin.origin import Stretch
from quire.pipeline.source.offsets import Offset
from quire.pipeline.source.options import SourceOptions
from quire.pipeline.source.readers import LogReader, LogStreamReader
from quire.pipeline.source.reading import LogPartition
from tests.pipeline.logs import CLUSTER, append_and_flush, writing
from tests.pipeline.servers import Answers, Told, answers_of, bounds, members, pages, serving
from tests.pipeline.test_nodes import HIGHEST, indices, raw_frames

SCHEMA = StructType().add("index", LongType())
DEADLINE_S = 20.0


class Hung:
    """A node that accepts requests and answers none until it is woken: then as `answers` says."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self.woken = threading.Event()
        self.asked: list[str] = []
        self.answers: dict[str, Told | Callable[[dict[str, int]], Told]] = {
            path: self._answer(path) for path in answers
        }

    def _answer(self, path: str) -> Callable[[dict[str, int]], Told]:
        def answer(query: dict[str, int]) -> Told:
            self.asked.append(path)
            self.woken.wait()
            told = self._answers[path]
            return told(query) if callable(told) else told

        return answer


@contextmanager
def hung(answers: Answers) -> Generator[tuple[str, Hung]]:
    """Such a node, and its address."""
    node = Hung(answers)
    with serving(node.answers) as address:
        try:
            yield address, node
        finally:
            node.woken.set()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that is waited for makes a test fail by its own deadline; no test waits so long if it holds."""
    monkeypatch.setattr(quire.pipeline.origin.nodes, "ATTEMPT_TIMEOUT_S", 2 * DEADLINE_S)


def stream_of(servers: str, **more: str) -> LogStreamReader:
    given = {"bootstrap": servers, "fetchTimeoutMs": str(int(4000 * DEADLINE_S))} | more
    return LogStreamReader(SourceOptions.parse(given, streaming=True), SCHEMA)


def within_deadline(work: Callable[[], Any]) -> Any:
    """What `work` returns. It is given up if it waits for a node that does not answer."""
    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except Exception as error:  # noqa: BLE001 - The caller raises it.
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done.result(DEADLINE_S)


def test_a_follower_that_does_not_answer_holds_up_no_trigger_and_no_task(tmp_path: Path) -> None:
    raw = raw_frames(tmp_path)
    asked: list[str] = []
    answer = pages(raw)

    def told(query: dict[str, int]) -> Told:
        asked.append("boundaries" if "boundaries" in query else "page")
        return answer(query)

    with hung(answers_of(records=pages(raw))) as (silent, node), serving(answers := answers_of(records=told)) as other:
        answers["/status"] = members(silent, other, leader=1)
        stream = stream_of(f"{silent},{other}", maxBytesPerTrigger="700", minPartitions="2")
        start, triggers = Offset(CLUSTER.hex(), 0).to_document(), 0

        def trigger() -> list[int]:
            nonlocal start, triggers
            end = stream.latestOffset(start, stream.getDefaultReadLimit())
            stream.reportLatestOffset()
            parts = stream.partitions(start, end)
            assert all(each.value.servers == (other, silent) for each in parts)
            start, triggers = end, triggers + 1
            return [index for each in parts for index in indices(stream, each)]

        read: list[int] = []
        while len(read) < HIGHEST:
            read += within_deadline(trigger)
        stream.stop()

    assert (read, triggers) == (list(range(HIGHEST)), 2)
    assert node.asked == ["/status"]  # By a thread of the driver, which still waits; no task asked it.
    assert asked.count("page") == 4 + triggers  # And a frame's header for each end.


def _asked_again(log: ClusterLog) -> tuple[str, ...]:
    log.bounds(quick=True)
    return log.servers


def test_a_node_that_answers_again_is_asked_as_the_others_are(tmp_path: Path) -> None:
    raw = raw_frames(tmp_path)
    answers = answers_of(records=pages(raw))
    with hung(answers) as (silent, node), serving(answers) as other:
        answers["/status"] = members(silent, other, leader=1)
        with closing(ClusterLog([silent, other], 4 * DEADLINE_S)) as log:
            within_deadline(lambda: log.bounds(quick=True))
            assert log.servers == (other, silent)
            node.woken.set()
            within_deadline(lambda: next(each for each in iter(partial(_asked_again, log), None) if each[0] == silent))
            assert log.servers == (silent, other)


def test_records_that_only_a_slow_node_still_holds_are_not_lost(tmp_path: Path) -> None:
    raw = raw_frames(tmp_path)
    holder = answers_of(records=pages(raw))
    with hung(holder) as (slow, node), serving(answers := answers_of(lowest=60)) as other:
        answers["/status"] = holder["/status"] = members(slow, other, leader=1)
        stream = stream_of(f"{slow},{other}")
        start = Offset(CLUSTER.hex(), 40).to_document()
        found: list[object] = []

        def trigger() -> None:
            found.append(stream.latestOffset(start, stream.getDefaultReadLimit()))

        thread = threading.Thread(target=trigger)
        thread.start()
        while "/index_bounds" not in node.asked:
            assert thread.is_alive()
        assert found == []
        node.woken.set()
        thread.join(DEADLINE_S)
        assert [Offset.from_document(each).index for each in found] == [HIGHEST]
        stream.stop()

        with serving(answers_of(lowest=60)) as alone:
            stream = stream_of(alone)
            with pytest.raises(RecordsLost, match=r"\[40, 60\)"):
                stream.latestOffset(start, stream.getDefaultReadLimit())
            stream.stop()


class Outage:
    """Nodes that refuse every connection until they are all up."""

    def __init__(self, *nodes: dict[str, Any]) -> None:
        self._nodes, self._up = nodes, threading.Event()
        self._held = [socket.socket() for _ in nodes]
        for each in self._held:
            each.bind(("127.0.0.1", 0))  # Nobody listens, so a connection is refused.
        self._ports = [each.getsockname()[1] for each in self._held]
        self.servers = [f"127.0.0.1:{port}" for port in self._ports]

    @contextmanager
    def over(self) -> Generator[None]:
        """All nodes are up; none answers before the last one is."""
        with ExitStack() as serve:
            for answers, port, held in zip(self._nodes, self._ports, self._held, strict=True):
                held.close()
                serve.enter_context(serving({path: self._waiting(told) for path, told in answers.items()}, port=port))
            self._up.set()
            yield

    def _waiting(self, told: Told | Callable[[dict[str, int]], Told]) -> Callable[[dict[str, int]], Told]:
        def answer(query: dict[str, int]) -> Told:
            self._up.wait()
            return told(query) if callable(told) else told

        return answer


def after(outage: Outage, nodes: Nodes, work: Callable[[], Any]) -> Any:
    """What `work` returns, which begins while all nodes are down."""
    done: Future[Any] = Future()
    thread = threading.Thread(target=lambda: done.set_result(work()), daemon=True)
    thread.start()
    while not all(nodes.is_silent(server) for server in outage.servers):
        assert thread.is_alive()
    with outage.over():
        return done.result(DEADLINE_S)


def test_a_stream_that_starts_in_an_outage_begins_where_the_log_of_any_node_begins(tmp_path: Path) -> None:
    raw = raw_frames(tmp_path)
    late, early = answers_of(records=pages(raw, lowest=50), lowest=50), answers_of(records=pages(raw))
    outage = Outage(late, early)
    late["/status"] = early["/status"] = members(*outage.servers, leader=1)
    stream = stream_of(",".join(outage.servers), startingOffsets="earliest")
    nodes: Nodes = vars(vars(LogStreamReader)["_opened"](stream))["_nodes"]
    end = after(outage, nodes, lambda: stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit()))
    stream.stop()

    assert Offset.from_document(end)._replace(crc32c=None) == Offset(CLUSTER.hex(), HIGHEST, began=0)


def test_a_patient_call_in_an_outage_asks_all_nodes_once_one_is_up() -> None:
    outage = Outage(answers_of(lowest=50), answers_of())
    with closing(Nodes(outage.servers, 4 * DEADLINE_S)) as nodes:
        found = after(outage, nodes, lambda: nodes.every("/index_bounds", "its bounds", patient=True))

    assert {server: each["lowest_index"] for server, each in found.items()} == dict(
        zip(outage.servers, (50, 0), strict=True)
    )


def test_a_node_that_was_late_a_moment_ago_has_its_time_in_a_patient_call(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        hung(answers_of()) as (late, node),
        serving(answers_of(lowest=50)) as other,
        closing(Nodes([late, other], 4 * DEADLINE_S)) as nodes,
    ):
        monkeypatch.setattr(quire.pipeline.origin.nodes, "ATTEMPT_TIMEOUT_S", 0.2)
        nodes.every("/index_bounds", "its bounds", patient=True)
        assert nodes.is_silent(late)
        monkeypatch.setattr(quire.pipeline.origin.nodes, "ATTEMPT_TIMEOUT_S", 2 * DEADLINE_S)
        node.woken.set()
        found = within_deadline(lambda: nodes.every("/index_bounds", "its bounds", patient=True))

    assert list(found) == [late, other]


def test_a_query_of_available_now_does_not_end_before_the_end_that_it_fixed(tmp_path: Path) -> None:
    """Only the leader has it, and is late in a trigger."""
    raw = raw_frames(tmp_path)
    told = answers_of(records=pages(raw))
    with hung(told) as (leader, node), serving(answers := answers_of(records=pages(raw), highest=60)) as other:
        answers["/status"] = told["/status"] = members(leader, other, leader=0)
        node.woken.set()
        stream = stream_of(f"{leader},{other}", endingOffsets="90")
        stream.prepareForTriggerAvailableNow()
        node.woken.clear()
        start = Offset(CLUSTER.hex(), 60).to_document()
        found: list[dict[str, object]] = []

        def trigger() -> None:
            found.append(stream.latestOffset(start, stream.getDefaultReadLimit()))

        thread = threading.Thread(target=trigger)
        thread.start()
        while node.asked.count("/index_bounds") < 3:
            assert thread.is_alive()
        assert found == []
        node.woken.set()
        thread.join(DEADLINE_S)
        assert [Offset.from_document(each).index for each in found] == [90]

        answers["/index_bounds"] = bounds(0, 90)
        node.woken.clear()
        end = within_deadline(lambda: stream.latestOffset(found[0], stream.getDefaultReadLimit()))
        assert end == found[0]
        stream.stop()


def test_a_query_of_available_now_whose_end_no_node_reaches_fails(tmp_path: Path) -> None:
    with serving(answers := answers_of(records=pages(raw_frames(tmp_path)))) as server:
        stream = stream_of(server, fetchTimeoutMs="100")
        stream.prepareForTriggerAvailableNow()
        answers["/index_bounds"] = bounds(0, 60)
        start = Offset(CLUSTER.hex(), 60).to_document()
        with pytest.raises(ClusterUnavailable, match=r"up to index 100, where this query ends, .* ends at 60"):
            stream.latestOffset(start, stream.getDefaultReadLimit())
        stream.stop()


def uneven(path: Path) -> bytes:
    """Frames of one large record each, then frames of one tiny record each, as a node sends them."""
    options = LogOptions(segment_bytes=64 << 20, reserve_bytes=0)
    with writing(path, options) as log:
        append_and_flush(log, *[[b"x" * 20_000]] * 20, *[[number] for number in range(2000)])
        raw, index = b"", 0
        while index < log.bounds.highest_index:
            page, index = log.read_frames(index, 8 << 20)
            raw += page
    return raw


@pytest.mark.parametrize("limit", [1, 500, 50_000, 150_000])
def test_a_batch_from_a_cluster_has_at_most_the_bytes_of_the_limit_but_one_frame_at_least(
    tmp_path: Path, limit: int
) -> None:
    """The average record has 260 bytes: by that, a first batch of 50,000 bytes had 380,000."""
    raw = uneven(tmp_path)
    frames = [header for _, header in walk_headers(raw)]
    highest = frames[-1].next_index
    with serving(answers_of(records=pages(raw), highest=highest)) as server:
        stream = stream_of(server, maxBytesPerTrigger=str(limit))
        start, batches = 0, list[int]()
        while start < highest and len(batches) < 100:
            document = Offset(CLUSTER.hex(), start).to_document()
            end = Offset.from_document(stream.latestOffset(document, stream.getDefaultReadLimit())).index or 0
            batches.append(sum(header.size for header in frames if start <= header.index < end))
            fits = next((header.size for header in frames if header.index == end), 0)
            assert batches[-1] <= limit or frames[start].next_index == end
            assert end == highest or batches[-1] + fits > limit  # Another frame would not have fit.
            start = end
        stream.stop()


@pytest.mark.parametrize("partitions", [1, 2, 7, 1024, 5000])
def test_any_number_of_partitions_fetches_each_byte_of_a_cluster_s_log_once(tmp_path: Path, partitions: int) -> None:
    raw = uneven(tmp_path)
    frames = [header for _, header in walk_headers(raw)]
    fetched: list[int] = []
    answer = pages(raw)

    def told(query: dict[str, int]) -> Told:
        status, body = answer(query)
        if "boundaries" not in query:
            fetched.append(len(body))
        return status, body

    highest = frames[-1].next_index
    with serving(answers_of(records=told, highest=highest)) as server:
        given = {"bootstrap": server, "minPartitions": str(partitions)}
        batch = LogReader(SourceOptions.parse(given, streaming=False), SCHEMA)
        parts: list[LogPartition] = [each.value for each in batch.partitions()]
        with closing(ClusterLog([server], DEADLINE_S, known=CLUSTER.hex())) as task:
            found = [
                index for each in parts for rows in task.rows(each.stretch, Skimmer()) for index in rows.index.tolist()
            ]

    assert found == list(range(highest))
    assert sum(fetched) == len(raw)
    assert len(fetched) == len(parts)
    assert partitions <= len(parts) or partitions > 20  # A large frame takes the place of many.
    share = max(len(raw) // partitions, *(header.size for header in frames))
    ends = {header.next_index for header in frames}
    assert {each.stretch.to_index for each in parts} <= ends
    assert max(fetched) <= share


def test_a_read_within_a_frame_fetches_that_frame_alone(tmp_path: Path) -> None:
    raw = raw_frames(tmp_path)
    asked: list[dict[str, int]] = []

    def told(query: dict[str, int]) -> Told:
        asked.append(query)
        return pages(raw)(query)

    with (
        serving(answers_of(records=told)) as server,
        closing(ClusterLog([server], DEADLINE_S, known=CLUSTER.hex())) as log,
    ):
        [rows] = log.rows(Stretch(7, 9, None), Skimmer())
    assert rows.index.tolist() == [7, 8]
    assert [(query["from"], query["to"]) for query in asked] == [(7, 9)]


def test_no_node_is_asked_for_more_boundaries_than_it_may_name(tmp_path: Path) -> None:
    raw = raw_frames(tmp_path)
    answer = pages(raw)

    def told(query: dict[str, int]) -> Told:
        if query.get("limit", 1) > 1:
            return 400, b'{"detail": "limit must be at most 1"}'
        return answer(query)

    with (
        serving(answers_of(records=told)) as node,
        closing(ClusterLog([node], DEADLINE_S, known=CLUSTER.hex())) as log,
    ):
        assert log.stretches(0, HIGHEST) == [Stretch(0, HIGHEST, None)]


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ((400, b'{"detail": "query parameter \'boundaries\' is not known"}'), "400: query parameter 'boundaries'"),
        ((200, b'{"index": 5}'), "its answer has no boundaries"),
        ((200, json.dumps({"boundaries": []}).encode()), "it has not reached index 0 yet"),
        ((200, json.dumps({"boundaries": [[0, 10]]}).encode()), "an invalid boundary"),
        ((200, json.dumps({"boundaries": [[5, 10], [5, 10]]}).encode()), "an invalid boundary"),
        ((200, json.dumps({"boundaries": [["5", 10]]}).encode()), "an invalid boundary"),
    ],
)
def test_a_node_that_does_not_say_where_frames_end_is_passed_over_and_named(
    tmp_path: Path, told: Told, says: str
) -> None:
    raw = raw_frames(tmp_path)
    with serving(answers_of(records=told)) as old, serving(answers_of(records=pages(raw))) as new:
        with closing(ClusterLog([old, new], DEADLINE_S, known=CLUSTER.hex())) as log:
            assert log.stretches(0, HIGHEST) == [Stretch(0, HIGHEST, None)]
        with (
            closing(ClusterLog([old], 0.2, known=CLUSTER.hex())) as log,
            pytest.raises(ClusterUnavailable, match=says),
        ):
            log.stretches(0, HIGHEST)


def test_a_node_of_another_cluster_does_not_say_where_the_log_begins() -> None:
    """It was late when all were asked for their cluster, and is in time when they are asked for their bounds."""
    foreign = answers_of(cluster_id=b"o" * 16, lowest=7, highest=900)
    with hung(foreign) as (late, node), serving(answers_of(lowest=50)) as server:
        node.answers["/index_bounds"] = lambda _: bounds(7, 900)
        with closing(ClusterLog([late, server], DEADLINE_S)) as log:
            assert within_deadline(log.cluster_id) == CLUSTER.hex()
            node.woken.set()
            with pytest.raises(ForeignLog, match="6f6f"):
                within_deadline(log.bounds)
