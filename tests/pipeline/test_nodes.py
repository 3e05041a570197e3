"""A read that goes from one node to another, page by page, against servers that are told what to say."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import LongType, StructType

import quire.pipeline.origin.cluster
import quire.pipeline.origin.nodes
from quire.log import Log
from quire.log.frames import walk_headers
from quire.log.packing import Skimmer
from quire.pipeline.errors import ClusterUnavailable, ForeignLog, OptionRefused, RecordsLost
from quire.pipeline.origin.access import NodeConnection
from quire.pipeline.origin.cluster import ClusterLog
from quire.pipeline.origin.nodes import Nodes
from quire.pipeline.origin.origin import Stretch
from quire.pipeline.source.offsets import Offset
from quire.pipeline.source.options import SourceOptions
from quire.pipeline.source.readers import LogReader, LogStreamReader, read_partition
from quire.pipeline.source.reading import LogPartition
from tests.pipeline.logs import CLUSTER, append_and_flush, writing
from tests.pipeline.servers import SILENT, Told, answers_of, bounds, members, pages, serving

FRAMES, RECORDS_A_FRAME = 20, 5
HIGHEST = FRAMES * RECORDS_A_FRAME
PAGE_BYTES = 200
"""Two frames, about."""


def raw_frames(path: Path, value: int = 0) -> bytes:
    """A log's frames as a node sends them; each frame holds a few records, all of one value."""
    with writing(path) as log:
        append_and_flush(log, *[[value + number] * RECORDS_A_FRAME for number in range(FRAMES)])
        return frames_below(log, HIGHEST)


def frames_below(log: Log, to_index: int) -> bytes:
    """The frames of a log that begins at 0, as a node sends them."""
    raw, index = b"", 0
    while index < to_index:
        page, index = log.read_frames(index, 1 << 20)
        raw += page
    return raw


def read(servers: list[str], timeout_s: float = 30.0) -> list[int]:
    """The indices that a task gets of them."""
    log = ClusterLog(servers, timeout_s, known=CLUSTER.hex(), page_bytes=PAGE_BYTES)
    try:
        return [index for rows in log.rows(Stretch(3, 97, None), Skimmer()) for index in rows.index.tolist()]
    finally:
        log.close()


def test_a_read_goes_on_at_another_node_behind_the_last_row_that_it_has(tmp_path: Path) -> None:
    raw = raw_frames(tmp_path)
    for answers in (0, 1, 2, 7):
        with ExitStack() as stack:
            dying = stack.enter_context(serving(answers_of(records=pages(raw, answers=answers))))
            other = stack.enter_context(serving(answers_of(records=pages(raw))))
            assert read([dying, other]) == list(range(3, 97))


def test_observers_stand_first_the_leader_last_and_each_task_begins_with_another_of_equals() -> None:
    told = answers_of()
    with serving(told) as server, closing(ClusterLog([server], 30.0)) as log:
        others = ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"]
        told["/status"] = members(others[0], server, others[1], others[2], leader=0, observer=3)
        orders = [log.servers_of(number) for number in range(4)]

    assert {order[0] for order in orders} == {others[2]}
    assert [order[1] for order in orders] == [server, others[1], server, others[1]]
    assert {order[-1] for order in orders} == {others[0]}
    assert log.servers == orders[0]


def test_where_records_expired_before_a_task_came_to_them_it_fails_or_goes_on_behind_them(tmp_path: Path) -> None:
    raw = raw_frames(tmp_path)
    with serving(answers_of(records=pages(raw, lowest=40), lowest=40)) as server:
        partition = LogPartition(Stretch(3, 97, None), CLUSTER.hex(), (server,))

        with pytest.raises(RecordsLost) as lost:
            shown(server, partition)
        assert (lost.value.from_index, lost.value.to_index) == (3, 40)
        assert shown(server, partition, failOnDataLoss="false") == list(range(40, 97))
        before = LogPartition(Stretch(3, 40, None), CLUSTER.hex(), (server,))
        assert shown(server, before, failOnDataLoss="false") == []


@pytest.mark.parametrize("at", [0, pytest.param(50, marks=pytest.mark.full)])
def test_a_node_that_holds_nothing_does_not_say_where_the_log_begins(tmp_path: Path, at: int) -> None:
    raw = raw_frames(tmp_path)
    with (
        serving(answers_of(records=pages(raw, lowest=60), lowest=60)) as holder,
        serving(answers_of() | {"/index_bounds": bounds(at, at)}) as empty,
        closing(ClusterLog([empty, holder], 30.0)) as log,
        closing(ClusterLog([empty], 30.0)) as alone,
    ):
        assert log.bounds() == (60, 100)
        assert alone.bounds() == (at, at)
        partition = LogPartition(Stretch(3, 97, None), CLUSTER.hex(), (empty, holder))
        assert shown(holder, partition, failOnDataLoss="false", fetchTimeoutMs="1500") == list(range(60, 97))


@pytest.mark.parametrize("at", [0, 50])
def test_an_empty_log_of_a_cluster_has_no_parts(at: int) -> None:
    empty = json.dumps({"cluster_id": CLUSTER.hex(), "log_bytes": 0, "lowest_index": at, "highest_index": at})
    answers = answers_of(records=(404, b"{}")) | {"/index_bounds": bounds(at, at), "/status": (200, empty.encode())}
    with serving(answers) as server:
        given = {"bootstrap": server, "fetchTimeoutMs": "30000", "minPartitions": "3"}
        schema = StructType().add("index", LongType())
        assert LogReader(SourceOptions.parse(given, streaming=False), schema).partitions() == []
        stream = LogStreamReader(SourceOptions.parse(given, streaming=True), schema)
        start = stream.initialOffset()
        end = stream.latestOffset(start, stream.getDefaultReadLimit())
        assert end == Offset(CLUSTER.hex(), at, began=at).to_document()
        assert stream.latestOffset(end, stream.getDefaultReadLimit()) == end
        assert stream.partitions(start, end) == []
        stream.stop()


def cursor_at(index: int) -> Told:
    """What `/cursors/{name}` says."""
    return 200, json.dumps({"name": "mail", "index": index}).encode()


def started_at(server: str, **more: str) -> int | None:
    """The index at which a stream begins whose option names the cursor `mail/2-4`."""
    given = {"bootstrap": server, "startingOffsets": "cursor:mail/2-4", "fetchTimeoutMs": "1000"} | more
    stream = LogStreamReader(SourceOptions.parse(given, streaming=True), StructType().add("index", LongType()))
    try:
        return Offset.from_document(stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())).began
    finally:
        stream.stop()


def test_a_stream_begins_where_the_cursor_is_and_asks_for_it_once(tmp_path: Path) -> None:
    asked: list[int] = []

    def answer(_: dict[str, int]) -> Told:
        asked.append(1)
        return cursor_at(40)

    answers = answers_of(records=pages(raw_frames(tmp_path))) | {"/cursors/mail%2F2-4": answer}
    with serving(answers) as server:
        given = {"bootstrap": server, "startingOffsets": "cursor:mail/2-4"}
        options, schema = SourceOptions.parse(given, streaming=True), StructType().add("index", LongType())
        stream = LogStreamReader(options, schema)
        start = stream.initialOffset()
        end = stream.latestOffset(start, stream.getDefaultReadLimit())
        read = [index for each in stream.partitions(start, end) for index in indices(stream, each)]
        stream.stop()

        resumed = LogStreamReader(options, schema)  # From a checkpoint, Spark asks for no initial offset.
        assert resumed.latestOffset(end, resumed.getDefaultReadLimit()) == end
        resumed.stop()

    assert Offset.from_document(end)._replace(crc32c=None) == Offset(CLUSTER.hex(), HIGHEST, began=40)
    assert read == list(range(40, HIGHEST))
    assert len(asked) == 1


def test_a_batch_begins_where_the_cursor_is_and_is_empty_if_that_is_past_the_bounds(tmp_path: Path) -> None:
    raw = raw_frames(tmp_path)
    for index, expected in ((40, list(range(40, HIGHEST))), (HIGHEST, []), (HIGHEST + 3, [])):
        with serving(answers_of(records=pages(raw)) | {"/cursors/mail": cursor_at(index)}) as server:
            given = {"bootstrap": server, "startingOffsets": "cursor:mail"}
            batch = LogReader(SourceOptions.parse(given, streaming=False), StructType().add("index", LongType()))
            assert [row for each in batch.partitions() for row in indices(batch, each)] == expected


def test_a_cursor_that_is_not_there_or_whose_records_expired_is_told(tmp_path: Path) -> None:
    unknown = json.dumps({"type": quire.pipeline.origin.nodes.CURSOR_UNKNOWN, "detail": "no"}).encode()
    path = "/cursors/mail%2F2-4"
    with (
        serving(answers_of() | {path: (404, unknown)}) as server,
        pytest.raises(OptionRefused, match="option startingOffsets: the cluster has no cursor mail/2-4"),
    ):
        started_at(server)
    held = answers_of(records=pages(raw_frames(tmp_path), lowest=60), lowest=60)
    with serving(held | {path: cursor_at(40)}) as server:
        with pytest.raises(RecordsLost, match=r"records \[40, 60\) of .* are lost"):
            started_at(server)
        assert started_at(server, failOnDataLoss="false") == 60


@pytest.mark.full
def test_nodes_that_do_not_say_where_a_cursor_is_are_asked_until_the_timeout() -> None:
    for told in (SILENT, (404, b"{}"), (200, b'{"name": "mail"}')):
        with (
            serving(answers_of() | {"/cursors/mail%2F2-4": told}) as server,
            pytest.raises(ClusterUnavailable, match="no node returned where the cursor mail/2-4 is within 1 s"),
        ):
            started_at(server)


def test_a_stream_waits_for_nodes_that_are_behind_its_checkpoint_for_a_moment() -> None:
    ends = iter([90, 90, 94, 95])
    with serving(answers_of() | {"/index_bounds": lambda _: bounds(0, next(ends))}) as server:
        given = {"bootstrap": server, "fetchTimeoutMs": "60000"}
        stream = LogStreamReader(SourceOptions.parse(given, streaming=True), StructType().add("index", LongType()))
        start = Offset(CLUSTER.hex(), 95).to_document()
        assert stream.latestOffset(start, stream.getDefaultReadLimit()) == start
        stream.stop()
    assert list(ends) == []


def test_what_a_node_says_to_hold_is_not_lost_though_none_gives_it(tmp_path: Path) -> None:
    with serving(answers_of(records=pages(raw_frames(tmp_path), lowest=40), lowest=0)) as server:
        partition = LogPartition(Stretch(3, 97, None), CLUSTER.hex(), (server,))
        with pytest.raises(ClusterUnavailable, match=r"index 3 on .*it has expired, although .* starts at index 0"):
            shown(server, partition, failOnDataLoss="false")


def ends_at(index: int, raw: bytes) -> dict[str, Any]:
    """A node that has not heard of the records from an index on."""
    size = sum(header.size for _, header in walk_headers(raw) if header.next_index <= index)
    answer = pages(raw[:size])

    def told(query: dict[str, int]) -> Told:
        return answer(query) if query["from"] < index else (404, b'{"detail": "it is not committed here"}')

    return answers_of(records=told, highest=index)


@pytest.mark.parametrize("more", [{}, {"maxBytesPerTrigger": "1000"}])
@pytest.mark.parametrize(("start", "expected"), [(30, range(50, HIGHEST)), (10, [*range(10, 20), *range(50, HIGHEST)])])
def test_what_expired_on_all_nodes_but_one_that_ends_before_it_is_lost(
    tmp_path: Path, start: int, expected: Sequence[int], more: dict[str, str]
) -> None:
    raw = raw_frames(tmp_path)
    with (
        serving(behind := ends_at(20, raw)) as old,
        serving(answers_of(records=pages(raw, lowest=50), lowest=50)) as other,
    ):
        behind["/status"] = members(old, other, leader=1)
        given = {"bootstrap": f"{old},{other}", "fetchTimeoutMs": "300"} | more
        with pytest.raises(RecordsLost, match=rf"records \[{max(20, start)}, 50\) of"):
            streamed(start, given)
        assert streamed(start, given | {"failOnDataLoss": "false"}) == list(expected)


def test_what_a_node_has_in_its_log_but_does_not_know_to_be_committed_is_not_lost(tmp_path: Path) -> None:
    raw = raw_frames(tmp_path)
    with (
        serving(restarted := ends_at(20, raw)) as node,
        serving(answers_of(records=pages(raw, lowest=50), lowest=50)) as other,
    ):
        status = json.loads(members(node, other, leader=1)[1]) | {"lowest_index": 0, "highest_index": HIGHEST}
        restarted["/status"] = 200, json.dumps(status).encode()
        given = {"bootstrap": f"{node},{other}", "fetchTimeoutMs": "300", "failOnDataLoss": "false"}
        with pytest.raises(ClusterUnavailable, match="it has expired, although the log starts at index 0"):
            streamed(30, given)


def streamed(start: int, given: dict[str, str]) -> list[int]:
    """The indices that a stream delivers from an index on, batch by batch."""
    stream = LogStreamReader(SourceOptions.parse(given, streaming=True), StructType().add("index", LongType()))
    before, found = Offset(CLUSTER.hex(), start).to_document(), list[int]()
    with closing(vars(LogStreamReader)["_opened"](stream)):
        while (end := stream.latestOffset(before, stream.getDefaultReadLimit())) != before:
            found += [index for each in stream.partitions(before, end) for index in indices(stream, each)]
            before = end
    return found


def shown(server: str, partition: LogPartition, **options: str) -> list[int]:
    given = SourceOptions.parse({"bootstrap": server, **options}, streaming=False)
    batches = read_partition(given, StructType().add("index", LongType()), partition)
    return [index for batch in batches for index in batch[0].to_pylist()]


def indices(reader: LogReader | LogStreamReader, partition: InputPartition) -> list[int]:
    return [index for batch in reader.read(partition) for index in batch[0].to_pylist()]


def test_a_driver_learns_again_who_leads_and_does_not_change_to_another_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving(told := answers_of()) as server, serving(told) as other, closing(ClusterLog([server], 30.0)) as log:
        told["/status"] = members(server, other, leader=1)
        assert log.servers == (server, other)
        told["/status"] = members(other, server, leader=1)
        log.bounds()
        assert log.servers == (server, other)

        monkeypatch.setattr(quire.pipeline.origin.cluster, "ROLES_FOR_S", 0.0)
        vars(log)["_learn_again_at"] = 0.0
        log.bounds()
        assert log.servers == (other, server)
        told["/status"] = members(other, server, cluster_id=b"o" * 16)
        with pytest.raises(ForeignLog, match="6f6f"):
            log.bounds()


@pytest.mark.parametrize(("size", "passes"), [(1000, True), (1001, False)])
def test_an_answer_has_a_limit(monkeypatch: pytest.MonkeyPatch, size: int, passes: bool) -> None:
    monkeypatch.setattr(quire.pipeline.origin.nodes, "MAX_ANSWER_BYTES", 1000)
    with (
        serving({"/records": (200, b"x" * size)}) as server,
        closing(Nodes([server], 30.0 if passes else 2.0)) as nodes,
    ):
        if passes:
            assert nodes.first("/records", "it", lambda answer: len(answer.body)) == size
        else:
            with pytest.raises(ClusterUnavailable, match="exceeds the limit of 1000 bytes"):
                nodes.first("/records", "it", lambda answer: answer)


def test_an_answer_that_comes_twice_is_not_the_answer_to_the_next_request() -> None:
    paths = ("/index_bounds", "/state", "/records", "/status")
    told = {path: (200, path.encode()) for path in paths}
    with serving(told, doubles=True) as server, closing(Nodes([server], 30.0)) as nodes:
        assert [nodes.first(path, "it", lambda answer: answer.body.decode()) for path in paths] == list(paths)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """For how long each request waits for a read."""
    found: list[float | None] = []
    request = NodeConnection.request

    def noted(self: NodeConnection, *arguments: Any, **options: Any) -> None:
        request(self, *arguments, **options)
        found.append(self.sock.gettimeout())

    monkeypatch.setattr(NodeConnection, "request", noted)
    return found


def test_a_kept_connection_waits_for_each_answer_as_long_as_its_request_may(
    waits: list[float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(answers_of()) as server, closing(Nodes([server], 60.0)) as nodes:
        for seconds in (20.0, 40.0, 10.0):
            monkeypatch.setattr(quire.pipeline.origin.nodes, "ATTEMPT_TIMEOUT_S", seconds)
            nodes.first("/status", "it", lambda answer: answer)

    assert waits == [20.0, 40.0, 10.0]


def test_nodes_of_which_none_answers_in_time_get_twice_as_long_each_time(
    waits: list[float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quire.pipeline.origin.nodes, "ATTEMPT_TIMEOUT_S", 0.2)
    over = threading.Event()

    def told(_asked: dict[str, int]) -> Told:
        if len(waits) < 3:
            over.wait()
        return 200, b""

    with serving({"/status": told}) as server, closing(Nodes([server], 3600.0)) as nodes:
        nodes.first("/status", "it", lambda answer: answer)
        over.set()

    assert waits[:3] == [0.2, 0.4, 0.8]


def test_a_node_that_says_nothing_is_given_up_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quire.pipeline.origin.nodes, "ATTEMPT_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with serving(answers_of(records=pages(raw_frames(tmp_path)))) as other:
            assert read([address, other]) == list(range(3, 97))
        with closing(Nodes([address], 0.5)) as nodes, pytest.raises(ClusterUnavailable, match="timed out"):
            nodes.first("/status", "its status", lambda answer: answer)


def test_a_node_that_goes_silent_right_after_its_first_page_is_given_up_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quire.pipeline.origin.nodes, "ATTEMPT_TIMEOUT_S", 1.0)
    raw, over = raw_frames(tmp_path), threading.Event()
    asked: list[str] = []

    def silent(_: dict[str, int]) -> Told:
        asked.append("failing")
        over.wait()
        return SILENT

    def answering(query: dict[str, int]) -> Told:
        asked.append("other")
        return answer(query)

    answer = pages(raw)
    told = answers_of(records=pages(raw))
    with serving(told) as failing, serving(answers_of(records=answering)) as other:
        told["/status"] = silent
        assert read([failing, other]) == list(range(3, 97))
        over.set()
    first, second, *_ = asked
    assert (first, second) == ("failing", "other")  # Then it is asked last; where the other is in time, not again.


def test_a_node_whose_log_does_not_follow_what_was_read_is_passed_over(tmp_path: Path) -> None:
    raw, foreign = raw_frames(tmp_path / "log"), raw_frames(tmp_path / "foreign", value=50)
    with ExitStack() as stack:
        dying = stack.enter_context(serving(answers_of(records=pages(raw, answers=2))))
        liar = stack.enter_context(serving(answers_of(records=pages(foreign))))
        with pytest.raises(ClusterUnavailable, match=f"{liar}: it sent bytes that are not part of the log"):
            read([dying, liar], timeout_s=2.0)
        good = stack.enter_context(serving(answers_of(records=pages(raw))))
        again = stack.enter_context(serving(answers_of(records=pages(raw, answers=2))))
        assert read([again, liar, good]) == list(range(3, 97))
