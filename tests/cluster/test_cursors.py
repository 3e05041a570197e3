"""Cursors of running nodes: set over HTTP, coalesced, kept over restarts and installs; their lag and holds."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from quire.cluster.http.admission.turns import ROWS_IN_TURN
from quire.cluster.node.tables import cursor_lag, cursors
from quire.cluster.node.tables.cursor_lag import HEADERS_AT_ONCE
from quire.cluster.node.views.status import node_status
from quire.log import (
    CONSUMERS,
    FEATURES,
    Bounds,
    FrameCorrupt,
    FrameHeader,
    Log,
    decode_system,
    walk_frames,
    wall_clock,
)
from quire.sm import Cursor
from tests.cluster import conditions
from tests.cluster.logs import served
from tests.cluster.running import Reply, RunningCluster, applied_index, running_cluster, started
from tests.cluster.test_reading_turns import CountedTurns
from tests.cluster.test_retention import SETTINGS, expiry, snapshot, written
from tests.replication.loopback import until

JSON = "application/json"
DEADLINE_S = 60.0
ONE, TWO = "1" * 32, "2" * 32


async def put(cluster: RunningCluster, name: str, index: int, at: str = "n1", **fields: Any) -> Reply:
    return await cluster.ask(at, "PUT", f"/cursors/{name}", orjson.dumps({"index": index, **fields}), JSON)


async def got(cluster: RunningCluster, name: str, at: str = "n1") -> Any:
    reply = await cluster.ask(at, "GET", f"/cursors/{name}")
    assert reply.status == 200, reply
    return reply.document


async def end_of(cluster: RunningCluster) -> int:
    return int((await cluster.ask("n1", "GET", "/index_bounds")).document["highest_index"])


def records_of(cluster: RunningCluster) -> list[Any]:
    """The rows of each `cursors` record in the log of n1."""
    log = cluster.nodes["n1"].node.components.log
    raw, _ = log.read_frames(0, 1 << 24, to_index=log.durable_index)
    fields = [decode_system(frame.payload) for frame in walk_frames(raw) if frame.header.kind == 2]
    return [each["set"] for each in fields if each["type"] == "cursors"]


@pytest.mark.asyncio
async def test_any_node_takes_a_cursor_s_calls_and_a_restarted_one_still_has_it(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        await cluster.commands("n1", *[["add", 1]] * 50)
        assert (await put(cluster, "mail", 10, at="n2", hold_bytes=5)).document == {"name": "mail", "index": 10}
        assert (await put(cluster, "mail%2F2-4", 20, at="n3")).document == {"name": "mail/2-4", "index": 20}
        listed = (await cluster.ask("n2", "GET", "/cursors?prefix=mail/")).document
        assert [row["name"] for row in listed["cursors"]] == ["mail/2-4"]
        await snapshot(cluster, "n2")
        await cluster.restart("n2")
        await cluster.ready()
        await cluster.lead("n2")
        assert (await got(cluster, "mail", "n2"))["index"] == 10
        assert (await put(cluster, "mail", 9, at="n2")).problem == "cursor-refused"
        assert (await cluster.ask("n3", "DELETE", "/cursors/mail")).document == {"name": "mail", "index": 10}
        assert (await cluster.ask("n1", "GET", "/cursors/mail")).problem == "cursor-unknown"
        digests = {node_status(running.node)["digest"] for running in cluster.nodes.values()}
        async with asyncio.timeout(DEADLINE_S):
            while len(digests) > 1:
                await cluster.ask("n1", "GET", "/healthz")
                digests = {node_status(running.node)["digest"] for running in cluster.nodes.values()}


@pytest.mark.asyncio
async def test_commits_that_wait_for_a_record_become_one_and_each_gets_its_own_answer(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1) as cluster:
        await cluster.commands("n1", *[["add", 1]] * 50)
        await put(cluster, "c7", 40)
        replies = await asyncio.gather(*(put(cluster, f"c{number}", number) for number in range(40)))
        for number, reply in enumerate(replies):
            if number == 7:
                assert (reply.problem, reply.document["code"]) == ("cursor-refused", "CURSOR_BACK")
            else:
                assert reply.document == {"name": f"c{number}", "index": number}
        records = records_of(cluster)
        assert sum(map(len, records)) == 41
        assert len(records) < 20, "the first goes alone, and the rest while it is on its way"


@pytest.mark.asyncio
async def test_more_commits_than_may_wait_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_cluster(tmp_path, 1) as cluster:
        monkeypatch.setattr(cursors, "MAX_WAITING_ROWS", 3)
        with conditions.held(cluster):
            waiting = [asyncio.create_task(put(cluster, f"c{number}", 0)) for number in range(8)]
            async with asyncio.timeout(DEADLINE_S):
                while not any(each.done() for each in waiting):
                    await cluster.ask("n1", "GET", "/healthz")
            assert {each.result().problem for each in waiting if each.done()} == {"overloaded"}
        statuses = [reply.status for reply in await asyncio.gather(*waiting)]
        assert set(statuses) == {200, 429}
        assert statuses.count(200) >= 3


@pytest.mark.asyncio
async def test_a_cursor_lags_only_behind_records_that_its_reader_gets(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1) as cluster:
        await cluster.commands("n1", *[["add", 1]] * 8)
        end = await end_of(cluster)
        await put(cluster, "mail", end)
        assert (await got(cluster, "mail"))["lag"] == {"records": 0, "seconds": 0.0}
        for _ in range(HEADERS_AT_ONCE + 5):
            await put(cluster, "other", end)
        assert (await got(cluster, "mail"))["lag"]["records"] == 0, "commits are no records for a reader"

        written_at = (await cluster.commands("n1", ["add", 1]))["index"]
        for shard in range(4):
            await put(cluster, f"mail%2F{shard}-4", end)
        for shard in range(4):
            row = await got(cluster, f"mail%2F{shard}-4")
            is_behind = written_at % 4 == shard
            assert bool(row["lag"]["records"]) == is_behind
            assert bool(row["lag"]["seconds"]) == is_behind
            assert row["next_index"] == (written_at if is_behind else await end_of(cluster))
        row = await got(cluster, "mail")
        assert row["lag"]["records"] == await end_of(cluster) - written_at
        await put(cluster, "mail", written_at + 1)
        assert (await got(cluster, "mail"))["lag"]["records"] == 0
        await put(cluster, "mail", 0, rewind=True)
        assert (await got(cluster, "mail"))["next_index"] == 1 + end - 9


@pytest.mark.asyncio
async def test_a_level_cursor_stays_level_between_two_looks(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1) as cluster:
        lags = cluster.nodes["n1"].node.components.cursor_lags
        await cluster.commands("n1", ["add", 1])
        await put(cluster, "mail", await end_of(cluster))
        await lags.look()
        await put(cluster, "other", 0)
        hours_later = wall_clock() + 3 * 3_600_000_000
        assert {read.name: lag for read, lag in lags.shown(hours_later)}["mail"] == (0, 0.0)


@pytest.mark.asyncio
async def test_a_clock_that_went_back_makes_no_cursor_s_lag_shorter(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1) as cluster:
        await cluster.commands("n1", *[["add", 1]] * 5)
        await put(cluster, "mail", 0)
        lags = cluster.nodes["n1"].node.components.cursor_lags
        await lags.look()
        [(read, _)] = lags.behind(wall_clock())
        hour_ago = wall_clock() - 3_600_000_000

        before, after = lags.lag_of(read, hour_ago), lags.lag_of(read, hour_ago)
        earlier = lags.lag_of(read._replace(found_at=read.found_at - 60), hour_ago)

        assert 0 < before.seconds < after.seconds
        assert earlier.seconds >= 60


@pytest.mark.asyncio
async def test_many_cursors_share_what_was_read_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.cluster.node.tables.cursor_lag.LOOK_S", 3_600.0)  # No look but the test's.
    async with running_cluster(tmp_path, 1) as cluster:
        components = cluster.nodes["n1"].node.components
        await cluster.commands("n1", ["add", 1])
        end = await end_of(cluster)
        await asyncio.gather(*(put(cluster, f"c{number}", end, hold_bytes=1) for number in range(500)))
        for _ in range(20):
            await put(cluster, "other", end)
        read: list[int] = []
        header = components.log.reader.header

        def counted(index: int) -> FrameHeader:
            read.append(index)
            return header(index)

        monkeypatch.setattr(components.log.reader, "header", counted)
        await components.cursor_lags.look()
        assert 20 <= len(read) == len(set(read)) <= await end_of(cluster) - end, "each header once, for all cursors"
        read.clear()
        assert len(components.cursor_lags.needed() or []) == 500
        assert expiry(cluster)
        assert not read, "whoever may not wait reads none"


@pytest.mark.asyncio
async def test_a_hold_lasts_over_a_restart_though_only_commits_of_others_follow(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1, retention_bytes=1, **SETTINGS) as cluster:
        await put(cluster, "mail", await end_of(cluster), hold_bytes=1000)
        await asyncio.gather(*(put(cluster, f"c{number}" * 20, 0) for number in range(300)))
        components = cluster.nodes["n1"].node.components
        lags = components.cursor_lags
        await lags.look()
        level = lags.needed()
        assert level is not None
        assert level[0].index >= await end_of(cluster) - 1, "nothing is there that its consumer needs"
        applying = components.applying
        fresh = cursor_lag.CursorLags(components.log, lambda: Bounds(0, 1), lambda: applying.applier)
        unknown = fresh.needed()
        assert unknown is not None
        assert unknown[0].index < level[0].index
        assert unknown[0].hold_bytes > components.log.size, (
            "until a record is found that it needs, it does not give way"
        )


@pytest.mark.asyncio
async def test_a_consumer_that_is_too_slow_does_not_hold_the_log_by_each_of_its_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursor_lag, "LOOK_S", 3600.0)
    monkeypatch.setattr("quire.cluster.compaction.compaction.EXPIRY_PAUSE_S", 3600.0)
    segment = SETTINGS["segment_bytes"]
    async with running_cluster(tmp_path, 1, retention_bytes=segment, **SETTINGS) as cluster:
        node = cluster.nodes["n1"].node
        await put(cluster, "mail", 0, hold_bytes=segment)
        await written(cluster, 5)
        await node.components.cursor_lags.look()
        for _ in range(2):
            await snapshot(cluster)
        await put(cluster, "mail", (await got(cluster, "mail"))["next_index"] + 1)
        assert (await cluster.ask("n1", "POST", "/admin/expire", b"{}", JSON)).status == 200
        assert node_status(node)["lowest_index"] > 0
        assert "the cursor mail no longer holds the log" in "\n".join(node_status(node)["alarms"])


@pytest.mark.asyncio
async def test_cursors_that_move_or_are_created_between_two_looks_keep_no_more_than_they_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursor_lag, "LOOK_S", 3600.0)
    monkeypatch.setattr("quire.cluster.compaction.compaction.EXPIRY_PAUSE_S", 3600.0)
    async with running_cluster(tmp_path, 1, retention_bytes=SETTINGS["segment_bytes"], **SETTINGS) as cluster:
        node = cluster.nodes["n1"].node
        lags, applying = node.components.cursor_lags, node.components.applying
        await written(cluster, 5)
        end = await end_of(cluster)
        await asyncio.gather(*(put(cluster, f"c{number}", end, hold_bytes=1) for number in range(200)))
        await lags.look()
        await asyncio.gather(*(put(cluster, f"c{number}", 0, rewind=True) for number in range(200)))
        await asyncio.gather(*(put(cluster, f"new{number}", 0, hold_bytes=1) for number in range(200)))
        fresh = cursor_lag.CursorLags(node.components.log, lambda: Bounds(0, end), lambda: applying.applier)
        unmeasured = [needed.hold_bytes for needed in fresh.needed() or []]
        assert unmeasured.count(1) == HEADERS_AT_ONCE, "after a start, those that were looked at"
        await fresh.look()
        for each in (lags, fresh):
            assert [needed.hold_bytes for needed in each.needed() or []] == [1] * 400
        for _ in range(2):
            await snapshot(cluster)
        assert (await cluster.ask("n1", "POST", "/admin/expire", b"{}", JSON)).status == 200
        assert node_status(node)["lowest_index"] > 0


@pytest.mark.asyncio
async def test_nothing_expires_until_a_node_has_replayed_what_may_hold_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path, **SETTINGS) as cluster:
        for _ in range(2):
            await written(cluster, 3)
            await snapshot(cluster)
        await put(cluster, "mail", 0, hold_bytes=1 << 30)
        configs = {node_id: running.config for node_id, running in cluster.nodes.items()}
        for node_id in configs:
            await cluster.stop(node_id)
        with monkeypatch.context() as patch:  # As after a crash: it does not know what is committed.
            unknown = property(lambda log: 0, lambda log, index: None)
            patch.setattr(Log, "mark_commit_index", unknown, raising=False)
            cluster.nodes["n1"] = await started(configs["n1"].model_copy(update={"retention_bytes": 1}))
        node = cluster.nodes["n1"].node
        for _ in range(2):
            assert (await cluster.ask("n1", "POST", "/admin/expire", b"{}", JSON)).status == 200
            holds = {hold["what"]: (hold["index"], hold["why"]) for hold in expiry(cluster)["holds"]}
            assert holds["cursor"] == (
                0,
                "this node has not replayed its log, so it does not know yet what cursors hold",
            )
            assert node_status(node)["lowest_index"] == 0

        for node_id in ("n2", "n3"):
            cluster.nodes[node_id] = await started(configs[node_id])
        await cluster.ready()
        assert "mail" in {hold["what"]: hold["why"] for hold in expiry(cluster)["holds"]}["cursor"]
        await put(cluster, "mail", await end_of(cluster), at="n2")
        async with asyncio.timeout(DEADLINE_S):
            while node_status(node)["lowest_index"] == 0:
                await cluster.ask("n1", "POST", "/admin/expire", b"{}", JSON)


@pytest.mark.asyncio
async def test_two_reads_of_one_cursor_at_two_places_both_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursor_lag, "RECENT_HEADERS", 4)
    monkeypatch.setattr(cursor_lag, "HEADERS_AT_ONCE", 2)
    async with running_cluster(tmp_path, 1) as cluster:
        for _ in range(60):
            await cluster.commands("n1", ["add", 1])
        lags, end = cluster.nodes["n1"].node.components.cursor_lags, await end_of(cluster)
        name = f"mail/{(end - 1) % 1000}-1000"
        async with asyncio.timeout(DEADLINE_S):
            reads = await asyncio.gather(*(lags.read(name, Cursor(index, 0, b"")) for index in (5, 20, 5, 30)))
        assert {read.next_index for read in reads} == {end - 1}


@pytest.mark.asyncio
async def test_many_reads_of_cursors_together_read_so_many_headers_in_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursor_lag, "RECENT_HEADERS", 1)
    monkeypatch.setattr(cursor_lag, "HEADERS_AT_ONCE", 2)
    async with running_cluster(tmp_path, 1) as cluster, CountedTurns() as turns:
        for _ in range(60):
            await cluster.commands("n1", ["add", 1])
        components, end = cluster.nodes["n1"].node.components, await end_of(cluster)
        header, read_in = components.log.reader.header, Counter[int]()

        def counted(index: int) -> FrameHeader:
            read_in[turns.number] += 1
            return header(index)

        monkeypatch.setattr(components.log.reader, "header", counted)
        name = f"mail/{(end - 1) % 1000}-1000"
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*(components.cursor_lags.read(name, Cursor(5, 0, b"")) for _ in range(20)))
        assert max(read_in.values()) <= 2 * 2  # What is counted as one turn here may be parts of two.


@pytest.mark.asyncio
async def test_pages_that_waited_for_a_search_are_made_of_so_many_rows_in_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path, 1) as cluster, CountedTurns() as turns:
        await asyncio.gather(*(put(cluster, f"c{number}", 0) for number in range(100)))
        lags = cluster.nodes["n1"].node.components.cursor_lags
        read, lag_of, searched = lags.read, lags.lag_of, asyncio.Event()
        searching, made_in = set[Any](), Counter[int]()

        async def searches(name: str, cursor: Cursor) -> cursor_lag.CursorRead:
            searching.add(asyncio.current_task())
            await searched.wait()
            return await read(name, cursor)

        def made(found: cursor_lag.CursorRead, clock: int) -> cursor_lag.CursorLag:
            made_in[turns.number] += 1
            return lag_of(found, clock)

        monkeypatch.setattr(lags, "read", searches)
        monkeypatch.setattr(lags, "lag_of", made)
        asked = [asyncio.create_task(cluster.ask("n1", "GET", "/cursors")) for _ in range(20)]
        async with asyncio.timeout(DEADLINE_S):
            await until(lambda: len(searching) == len(asked))
            searched.set()
            assert {len(reply.document["cursors"]) for reply in await asyncio.gather(*asked)} == {100}
        assert made_in.total() == 2000
        assert max(made_in.values()) <= 2 * ROWS_IN_TURN  # What is counted as one turn here may be parts of two.


@pytest.mark.asyncio
async def test_a_hold_on_a_frame_that_cannot_be_read_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path, 1, retention_bytes=1 << 20, **SETTINGS) as cluster:
        node = cluster.nodes["n1"].node
        await put(cluster, "mail", 0, hold_bytes=1)
        await written(cluster, 2)

        def corrupt(index: int) -> int:
            raise FrameCorrupt("00000000000000000000.store", 64, "its payload fails its crc32c")

        monkeypatch.setattr(node.components.log.lookup, "boundary_at_or_below", corrupt)
        monkeypatch.setattr(node.components.log.reader, "header", corrupt)
        await node.components.cursor_lags.look()
        assert expiry(cluster)["holds"]
        assert "the cursor mail no longer holds the log" in "\n".join(node_status(node)["alarms"])


@pytest.mark.asyncio
async def test_status_and_metrics_show_who_is_furthest_behind(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1) as cluster:
        node = cluster.nodes["n1"].node
        limits = {"hold_bytes": 0, "cursors_hold_bytes": 10 << 30}
        assert node_status(node)["cursors"] == {"count": 0, "behind": [], **limits}
        first = (await cluster.commands("n1", ["add", 1]))["index"]
        await cluster.commands("n1", ["add", 2])
        await put(cluster, "level", await end_of(cluster))
        await put(cluster, "late", first + 1)
        await put(cluster, "later", first)
        await node.components.cursor_lags.look()
        shown = node_status(node)["cursors"]
        assert shown["count"] == 3
        assert [(row["name"], row["index"], row["lost"]) for row in shown["behind"]] == [
            ("later", first, 0),
            ("late", first + 1, 0),
        ]
        metrics = (await cluster.ask("n1", "GET", "/metrics")).body.decode()
        assert "quire_cursors 3.0" in metrics
        assert 'quire_cursor_lag_records{cursor="level"} 0.0' in metrics
        lags = {line.split()[0]: float(line.split()[1]) for line in metrics.splitlines() if line[0] != "#"}
        later = lags['quire_cursor_lag_seconds{cursor="later"}']
        assert later >= lags['quire_cursor_lag_seconds{cursor="late"}'] > 0.0


@pytest.mark.asyncio
async def test_a_cursor_keeps_its_series_while_it_lags_however_many_are_older_and_the_others_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursor_lag, "LOOK_S", 3600.0)
    monkeypatch.setattr(cursor_lag, "MAX_SERIES", 2)
    async with running_cluster(tmp_path, 1) as cluster:
        first = (await cluster.commands("n1", ["add", 1]))["index"]
        await cluster.commands("n1", ["add", 2])

        async def series() -> tuple[set[str], float]:
            await cluster.nodes["n1"].node.components.cursor_lags.look()
            metrics = (await cluster.ask("n1", "GET", "/metrics")).body.decode()
            samples = [sample for family in text_string_to_metric_families(metrics) for sample in family.samples]
            names = {each.labels["cursor"] for each in samples if each.name == "quire_cursor_lag_seconds"}
            return names, sum(each.value for each in samples if each.name == "quire_cursors_unlisted")

        await put(cluster, "mail", first + 1)
        await put(cluster, "level", await end_of(cluster))
        assert await series() == ({"mail", "level"}, 0)
        for name in ("older", "oldest"):
            await put(cluster, name, 0)
        assert await series() == ({"mail", "older"}, 1)
        behind = node_status(cluster.nodes["n1"].node)["cursors"]["behind"]
        assert [row["name"] for row in behind] == ["older", "oldest", "mail"]
        await put(cluster, "mail", await end_of(cluster))
        assert await series() == ({"older", "oldest"}, 0)


async def test_alarms_of_cursors_beyond_those_that_are_told_singly_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursor_lag, "LOOK_S", 3600.0)
    monkeypatch.setattr("quire.cluster.compaction.compaction.EXPIRY_PAUSE_S", 3600.0)
    async with running_cluster(tmp_path, 1, retention_bytes=1, **SETTINGS) as cluster:
        node = cluster.nodes["n1"].node
        for number in range(13):
            await put(cluster, f"c{number:02}", 0, hold_bytes=1)
        await written(cluster, 5)
        await node.components.cursor_lags.look()
        told = node_status(node)["alarms"]
        assert len([alarm for alarm in told if "no longer holds the log: its consumer" in alarm]) == 10
        assert "3 more cursors no longer hold the log; `quire cursor list` shows all" in told
        for _ in range(2):
            await snapshot(cluster)
        await cluster.ask("n1", "POST", "/admin/expire", b"{}", JSON)
        await node.components.cursor_lags.look()
        told = node_status(node)["alarms"]
        assert len([alarm for alarm in told if "records expired before its consumer read them" in alarm]) == 10
        assert "of 3 more cursors records expired before they were read; `quire cursor list` shows all" in told


@pytest.mark.asyncio
async def test_a_cursor_that_needs_more_than_it_may_hold_raises_an_alarm_before_anything_expires(
    tmp_path: Path,
) -> None:
    async with running_cluster(tmp_path, 1, retention_bytes=1 << 30, **SETTINGS) as cluster:
        node = cluster.nodes["n1"].node
        await put(cluster, "mail", 0, hold_bytes=SETTINGS["segment_bytes"])
        assert not node_status(node)["alarms"]
        await written(cluster, 2)
        await node.components.cursor_lags.look()
        assert [alarm for alarm in node_status(node)["alarms"] if "the cursor mail no longer holds the log" in alarm]
        await put(cluster, "mail", await end_of(cluster))
        assert not node_status(node)["alarms"]


@pytest.mark.asyncio
async def test_a_cursor_holds_the_log_up_to_its_size_and_then_gives_way_with_an_alarm(tmp_path: Path) -> None:
    segment = SETTINGS["segment_bytes"]
    async with running_cluster(tmp_path, 1, retention_bytes=2 * segment, **SETTINGS) as cluster:
        node = cluster.nodes["n1"].node
        await put(cluster, "mail", 0, hold_bytes=8 * segment)
        await written(cluster, 5)
        await put(cluster, "level", await end_of(cluster), hold_bytes=segment)
        for _ in range(2):
            await snapshot(cluster)
        await cluster.ask("n1", "POST", "/admin/expire", b"{}", JSON)
        await node.components.cursor_lags.look()
        held = [hold for hold in expiry(cluster)["holds"] if hold["what"] == "cursor"]
        first = (await got(cluster, "mail"))["next_index"]
        assert [(hold["index"], "mail" in hold["why"]) for hold in held] == [(first, True)]
        assert node_status(node)["lowest_index"] == 0, "what the consumer has not read is there"
        assert not node_status(node)["alarms"]

        async with asyncio.timeout(DEADLINE_S):
            while node_status(node)["lowest_index"] == 0:
                await written(cluster, 2)
                await snapshot(cluster)
                await cluster.ask("n1", "POST", "/admin/expire", b"{}", JSON)
        await node.components.cursor_lags.look()
        alarms = "\n".join(node_status(node)["alarms"])
        assert "the cursor mail is at index 0, and this log begins at" in alarms
        row = await got(cluster, "mail")
        assert expiry(cluster)["floor"] <= row["next_index"], "mail holds what is left for it"
        assert 0 < row["lost"] <= node_status(node)["lowest_index"]

        for name in ("mail", "level"):
            await put(cluster, name, await end_of(cluster))
        await node.components.cursor_lags.look()
        assert not [alarm for alarm in node_status(node)["alarms"] if "cursor" in alarm]
        assert (await got(cluster, "mail"))["lost"] == 0


@pytest.mark.asyncio
async def test_a_node_that_installs_a_snapshot_has_its_cursors(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, retention_bytes=1, retention_follower_bytes=0, **SETTINGS) as cluster:
        await put(cluster, "mail", 0, token=ONE, take=True)
        stopped = cluster.nodes["n3"].config
        await cluster.stop("n3")
        for _ in range(2):
            await written(cluster, 3)
            await snapshot(cluster)
        await put(cluster, "mail", 3, token=ONE)
        await snapshot(cluster)
        async with asyncio.timeout(DEADLINE_S):
            while node_status(cluster.nodes["n1"].node)["lowest_index"] == 0:
                await cluster.ask("n1", "POST", "/admin/expire", b"{}", JSON)
        cluster.nodes["n3"] = await started(stopped)
        async with asyncio.timeout(DEADLINE_S):
            while applied_index(cluster.nodes["n3"].node) < applied_index(cluster.nodes["n1"].node):
                await cluster.ask("n3", "GET", "/healthz")
        components = cluster.nodes["n3"].node.components
        assert components.log.bounds.lowest_index > 0, "it continues from a snapshot"
        cursor = components.applying.applier.cursors.find("mail")
        assert cursor is not None
        assert (cursor.index, cursor.token.hex()) == (3, ONE)


@pytest.mark.asyncio
async def test_there_are_no_cursors_until_the_last_older_node_is_upgraded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr("quire.cluster.node.components.FEATURES", FEATURES - {CONSUMERS})
        async with running_cluster(tmp_path) as cluster:
            refused = await put(cluster, "mail", 0, at="n2")
            assert (refused.status, refused.problem) == (503, "feature-not-in-use")
            before.setattr("quire.cluster.node.components.FEATURES", FEATURES)
            for node_id in ("n1", "n2"):
                await cluster.restart(node_id)
                await cluster.ready()
            assert (await put(cluster, "mail", 0)).problem == "feature-not-in-use", "n3 is still the older version"
            assert not records_of(cluster)
            await cluster.restart("n3")
            await cluster.ready()
            async with asyncio.timeout(DEADLINE_S):
                while (reply := await put(cluster, "mail", 0)).status == 503:
                    assert reply.problem == "feature-not-in-use"
            assert reply.document == {"name": "mail", "index": 0}


@pytest.mark.asyncio
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_a_standalone_log_says_that_it_has_no_cursors(tmp_path: Path, method: str) -> None:
    async with served(tmp_path) as log:
        reply = await log.call(method, "/cursors/mail", data=b'{"index": 0}', headers={"Content-Type": JSON})
    assert reply.status == 404
    assert "a standalone log, which has no cluster, no machine and no cursors" in reply.document["detail"]
