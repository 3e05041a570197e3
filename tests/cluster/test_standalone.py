"""The standalone log's HTTP interface: what each call does, its limits, and what an answer proves."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from quire.cluster.data_dir.identity import DataDirRefused, read_identity
from quire.cluster.standalone import app, service
from quire.cluster.standalone.config import StandaloneConfig
from quire.cluster.standalone.service import LogService
from quire.log import Expiry, FileDirectory, Kind, Log, LogOptions, LogRotten, pack, unpack
from quire.replication import PromiseFile
from tests.cluster.logs import Device, served
from tests.log.sectors import Sectors
from tests.replication.loopback import turns, until

MSGPACK, NDJSON, JSON = "application/msgpack", "application/x-ndjson", "application/json"
TRUNCATE = "/rpc/truncate"


async def in_chunks(size: int, count: int, gate: asyncio.Event | None = None) -> AsyncIterator[bytes]:
    for number in range(count):
        if number and gate is not None:
            await gate.wait()
        yield bytes([number % 256]) * size


async def test_records_are_appended_read_and_counted(tmp_path: Path) -> None:
    async with served(tmp_path) as log:
        assert (await log.call("GET", "/index_bounds")).document == {"lowest_index": 0, "highest_index": 0}
        assert (await log.append(b"raw bytes")).document == {"write_index": 0, "count": 1}
        assert (await log.append(b'{"a": 1}', JSON)).document == {"write_index": 1, "count": 1}
        assert (await log.append(b'"x"\n2\n', NDJSON)).document == {"write_index": 2, "count": 2}
        packed = pack([b"\x00", None, [1.5]])
        assert (await log.append(packed, MSGPACK)).document == {"write_index": 4, "count": 3}
        assert (await log.call("GET", "/index_bounds")).document == {"lowest_index": 0, "highest_index": 7}

        raw = await log.call("GET", "/records/0")
        assert (raw.body, raw.headers["Content-Type"], raw.headers["Quire-Kind"]) == (
            b"raw bytes",
            "application/octet-stream",
            "records",
        )
        assert (await log.call("GET", "/records/1")).document == {"a": 1}
        assert (await log.call("GET", "/records/3")).document == 2
        answered = await log.call("GET", "/records/6", headers={"Accept": MSGPACK})
        assert unpack(answered.body) == [1.5]
        assert log.log.tail.epoch == 0


async def test_a_large_record_is_a_blob_and_comes_back_as_a_stream_with_its_headers(tmp_path: Path) -> None:
    async with served(tmp_path) as log:
        headers = json.dumps({"name": "photo", "n": "1"})
        reply = await log.append(in_chunks(1 << 16, 40), Quire_Headers=headers)
        assert reply.document == {"write_index": 0, "count": 1}
        assert log.log.reader.header(0).kind == Kind.BLOB
        back = await log.call("GET", "/records/0")
        assert back.body == b"".join(bytes([number]) * (1 << 16) for number in range(40))
        assert back.headers["Content-Length"] == str(40 << 16)
        assert (back.headers["Quire-Kind"], json.loads(back.headers["Quire-Headers"])) == ("blob", json.loads(headers))


@pytest.mark.parametrize(("size", "kind"), [(1 << 20, Kind.RECORDS), ((1 << 20) + 1, Kind.BLOB), (0, Kind.RECORDS)])
async def test_raw_bytes_are_a_bin_up_to_a_mebibyte_and_a_blob_above(tmp_path: Path, size: int, kind: Kind) -> None:
    async with served(tmp_path) as log:
        body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        assert (await log.append(body, Quire_Headers='{"h": "v"}')).status == 200
        back = await log.call("GET", "/records/0")
        assert back.body == body
        assert json.loads(back.headers["Quire-Headers"]) == {"h": "v"}
        assert log.log.reader.header(0).kind == kind


async def test_a_record_may_be_as_large_as_the_limit_and_no_larger_and_leaves_nothing(tmp_path: Path) -> None:
    limit = 1_500_000
    async with served(tmp_path, max_record_bytes=limit, segment_bytes=1 << 16) as log:
        assert (await log.append(b"x" * limit)).status == 200
        declared = await log.append(b"x" * (limit + 1))
        assert (declared.status, declared.problem, declared.document["limit"]) == (413, "limit-exceeded", limit)
        streamed = await log.append(in_chunks(limit // 2, 3))
        assert (streamed.status, streamed.problem) == (413, "limit-exceeded")
        assert log.log.bounds == (0, 1)
        await until(lambda: not list((tmp_path / "log").glob("*.spool")))


async def test_a_batch_may_be_as_large_as_the_limit_and_no_larger(tmp_path: Path) -> None:
    async with served(tmp_path, max_request_bytes=1024) as log:
        assert (await log.append(b'"' + b"x" * 1022 + b'"', JSON)).status == 200
        refused = await log.append(b'"' + b"x" * 1023 + b'"', JSON)
        assert (refused.status, refused.document["limit"]) == (413, 1024)


async def test_a_slow_upload_blocks_nobody(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with served(tmp_path) as log:
        slow = asyncio.create_task(log.append(in_chunks(1 << 18, 9, gate)))
        for number in range(20):
            assert (await log.append(b"quick")).document["write_index"] == number
        assert not slow.done()
        gate.set()
        assert (await slow).document["write_index"] == 20
        assert (await log.call("GET", "/records/20")).body[-1] == 8


async def test_a_caller_that_hangs_up_leaves_nothing(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with served(tmp_path) as log:
        upload = asyncio.create_task(log.append(in_chunks(1 << 20, 3, gate)))
        await until(lambda: bool(list((tmp_path / "log").glob("*.spool"))))
        upload.cancel()
        await until(lambda: not list((tmp_path / "log").glob("*.spool")))
        assert log.log.bounds == (0, 0)


async def test_a_body_that_stops_coming_is_a_408_and_nothing_was_written(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with served(tmp_path, request_timeout_ms=200) as log:
        reply = await log.append(in_chunks(1000, 2, gate))
        assert (reply.status, reply.problem, reply.document["timeout_ms"]) == (408, "body-timeout", 200)
        assert "nothing was written" in reply.document["detail"]
        assert log.log.bounds == (0, 0)
        assert (await log.append(b"after it")).document["write_index"] == 0


async def test_a_body_that_trickles_is_a_408_and_nothing_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.cluster.http.admission.slow_callers.BODY_BYTES_PER_S", 1e12)
    async with served(tmp_path, request_timeout_ms=500) as log:
        answered = asyncio.Event()

        async def trickle() -> AsyncIterator[bytes]:
            while not answered.is_set():
                yield b"x"
                await log.call("GET", "/healthz")

        async with asyncio.timeout(30):
            reply = await log.append(trickle())
        answered.set()
        assert (reply.status, reply.problem) == (408, "body-timeout")
        assert log.log.bounds.highest_index == 0


async def test_a_flush_that_takes_too_long_is_a_504_that_names_the_index(tmp_path: Path) -> None:
    device = Device()
    async with served(tmp_path, device, request_timeout_ms=200) as log:
        device.runs.clear()
        reply = await log.append(b"one")
        assert (reply.status, reply.problem) == (504, "outcome-unknown")
        assert (reply.document["write_index"], reply.document["count"]) == (0, 1)
        unread = await log.call("GET", "/records/0")
        assert (unread.status, unread.problem) == (404, "not-committed")
        assert (await log.call("GET", "/index_bounds")).document["highest_index"] == 0
        device.runs.set()
        await until(lambda: log.log.durable_index == 1)
        assert (await log.call("GET", "/records/0")).body == b"one"


async def test_a_record_that_is_truncated_before_it_is_flushed_is_a_409_also_if_another_got_its_index(
    tmp_path: Path,
) -> None:
    device = Device()
    async with served(tmp_path, device) as log:
        device.runs.clear()
        writing = asyncio.create_task(log.append(b"a"))
        await until(lambda: log.log.bounds.highest_index == 1)
        device.runs.set()  # The event loop learns that the flush ended only after what follows.
        log.log.truncate(0)
        log.log.append([b"b"])
        reply = await writing
        assert (reply.status, reply.problem) == (409, "truncated")
        assert reply.document["truncate_index"] == 0
        assert not log.service.ended.is_set()
        assert (await log.append(b"c")).document == {"write_index": 1, "count": 1}
        assert (await log.call("GET", "/records/0")).body == b"b"


async def test_a_device_that_fails_leaves_the_outcome_unknown_and_ends_the_service(tmp_path: Path) -> None:
    device = Device()
    async with served(tmp_path, device) as log:
        assert (await log.append(b"durable")).status == 200
        device.broken = True
        failed = await log.append(b"lost")
        assert (failed.status, failed.document["write_index"]) == (504, 1)
        assert log.service.ended.is_set()
        refused = await log.append(b"refused")
        assert (refused.status, refused.problem) == (503, "state-unavailable")
        assert (await log.call("GET", "/healthz")).status == 503
        assert (await log.call("GET", "/records/0")).body == b"durable"


async def test_a_write_that_the_device_fails_has_an_unknown_outcome(tmp_path: Path) -> None:
    device = Device()
    async with served(tmp_path, device) as log:
        device.broken = True
        # More than the log's buffer, so that it is written at once: a restart may find it whole.
        failed = await log.append(json.dumps("x" * (1 << 19)).encode(), JSON)
        assert (failed.status, failed.problem) == (504, "outcome-unknown")
        assert log.service.ended.is_set()
        assert (await log.append(b"refused")).status == 503


async def test_a_full_disk_refuses_what_it_has_no_room_for_and_goes_on(tmp_path: Path) -> None:
    device = Device()
    async with served(tmp_path, device, segment_bytes=1 << 16) as log:
        device.full = True
        refused = await log.append(b"x" * (1 << 17))
        assert (refused.status, refused.problem) == (503, "disk-full")
        assert log.log.bounds == (0, 0)
        device.full = False
        assert (await log.append(b"x" * (1 << 17))).document["write_index"] == 0
        assert not log.service.ended.is_set()


async def test_a_process_that_can_open_no_more_files_refuses_a_write_and_takes_it_later(tmp_path: Path) -> None:
    device = Device()
    async with served(tmp_path, device, segment_bytes=1 << 16) as log:
        assert (await log.append(b"x" * (1 << 17))).status == 200
        device.exhausted = True
        refused = await log.append(b"y")
        assert (refused.status, refused.problem) == (503, "resources-exhausted")
        assert refused.headers["Retry-After"] == "1"
        device.exhausted = False
        assert (await log.append(b"y")).document["write_index"] == 1
        assert not log.service.ended.is_set()


async def test_as_many_writes_as_the_limit_are_in_progress_and_one_more_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "WRITES_LIMIT", 3)
    gate = asyncio.Event()
    async with served(tmp_path) as log:
        uploads = [asyncio.create_task(log.append(in_chunks(10, 2, gate))) for _ in range(3)]
        writes = log.application[app.WRITES]
        await until(lambda: len(writes) == 3)
        refused = await log.append(b"one more")
        assert (refused.status, refused.problem, refused.headers["Retry-After"]) == (429, "overloaded", "1")
        assert (await log.call("GET", "/index_bounds")).status == 200
        gate.set()
        assert [(await upload).status for upload in uploads] == [200] * 3
        assert (await log.append(b"again")).status == 200


async def test_as_many_large_reads_as_the_limit_are_in_progress_and_one_more_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "READS_LIMIT", 1)
    async with served(tmp_path) as log:
        await log.append(in_chunks(1 << 20, 40))
        async with log.client.get(f"{log.url}/records/0") as taking:
            assert taking.status == 200
            assert (await log.call("GET", "/records/0")).status == 429
            assert len(await taking.read()) == 40 << 20
        await until(lambda: len(log.application[app.READS]) == 0)
        assert (await log.call("GET", "/records/0")).status == 200


async def test_the_expected_index_is_the_next_one_or_nothing_is_written(tmp_path: Path) -> None:
    async with served(tmp_path, initial_index=100) as log:
        assert (await log.call("POST", "/records?index=100", data=b"a")).status == 200
        for body in (b"b", b"b" * (2 << 20)):
            reply = await log.call("POST", "/records?index=100", data=body)
            assert (reply.status, reply.problem, reply.document["highest_index"]) == (409, "wrong-index", 101)
        assert log.log.bounds == (100, 101)


async def test_truncate_removes_from_an_index_on_also_inside_a_batch(tmp_path: Path) -> None:
    async with served(tmp_path) as log:
        await log.append(b"1\n2\n3\n4\n", NDJSON)
        await log.append(b"5")

        async def truncate(index: Any) -> Any:
            return await log.call("POST", TRUNCATE, json={"truncate_index": index})

        assert (await truncate(5)).document == {"lowest_index": 0, "highest_index": 5}
        assert (await truncate(2)).document == {"lowest_index": 0, "highest_index": 2}
        assert (await log.call("GET", "/records/1")).document == 2
        assert (await log.append(b"9", JSON)).document["write_index"] == 2
        beyond = await truncate(4)
        assert (beyond.status, beyond.problem, beyond.document["highest_index"]) == (404, "out-of-bounds", 3)
        for wrong in ("1", -1, True, None, 1.5):
            assert (await truncate(wrong)).problem == "malformed"
        assert (await log.call("POST", TRUNCATE, json={"index": 1})).status == 400


@pytest.mark.parametrize("cancelled", [1, 3])
async def test_a_call_that_is_cancelled_ends_when_its_thread_is_done_with_the_file(cancelled: int) -> None:
    held, begun = threading.Event(), threading.Event()

    def block() -> None:
        begun.set()
        assert held.wait(60)

    call = asyncio.create_task(app.in_thread(block))
    await until(begun.is_set)
    for _ in range(cancelled):
        call.cancel()
        await turns(20)
    assert not call.done()
    held.set()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_what_is_not_there_is_told_with_the_bounds(tmp_path: Path) -> None:
    async with served(tmp_path, segment_bytes=1 << 16, retention_bytes=1 << 16) as log:
        beyond = await log.call("GET", "/records/7")
        assert (beyond.status, beyond.problem) == (404, "out-of-bounds")
        assert (beyond.document["lowest_index"], beyond.document["highest_index"]) == (0, 0)
        for _ in range(6):
            await log.append(bytes(40_000))
        assert log.log.expiry.remove(max_bytes=1 << 16) > 0
        gone = await log.call("GET", "/records/0")
        assert (gone.status, gone.problem) == (410, "expired")
        assert gone.document["lowest_index"] == log.log.bounds.lowest_index


async def test_rot_is_a_503_with_its_place_and_never_wrong_bytes(tmp_path: Path) -> None:
    async with served(tmp_path) as log:
        await log.append(b"first")
        await log.append(in_chunks(1 << 20, 2))
        for index, position in ((0, 64 + 64 + 3), (1, 1 << 20)):
            path = tmp_path / "log" / f"{0:020d}.store"
            with path.open("r+b") as file:
                file.seek(position)
                byte = file.read(1)
                file.seek(position)
                file.write(bytes([byte[0] ^ 1]))
            reply = await log.call("GET", f"/records/{index}")
            assert (reply.status, reply.problem) == (503, "corrupt-here")
            assert f"{0:020d}.store" in reply.document["detail"]


async def test_what_the_disk_does_not_give_is_rot_and_an_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with served(tmp_path) as log:
        await log.append(b"first")
        await log.append(in_chunks(1 << 20, 2))
        monkeypatch.setattr(os, "pread", Sectors(tmp_path / "log" / f"{0:020d}.store").pread)
        for index in (0, 1, 0):
            reply = await log.call("GET", f"/records/{index}")
            assert (reply.status, reply.problem) == (503, "corrupt-here")
            assert f"{0:020d}.store is corrupt at byte" in reply.document["detail"]
            assert "input/output error" in reply.document["detail"]
    assert capsys.readouterr().out.count("the log has rot") == 1


@pytest.mark.parametrize(
    ("path", "given"),
    [
        ("/records?index=x", {"data": b"x"}),
        ("/records?indx=1", {"data": b"x"}),
        ("/records", {"data": b"{", "headers": {"Content-Type": JSON}}),
        ("/records", {"data": b"", "headers": {"Content-Type": NDJSON}}),
        ("/records", {"data": b"x", "headers": {"Quire-Headers": "[]"}}),
        ("/records", {"data": b"x", "headers": {"Quire-Headers": '{"a": 1}'}}),
        ("/records", {"data": b"x", "headers": {"Quire-Headers": "{"}}),
        ("/records", {"data": b"1\n2", "headers": {"Content-Type": NDJSON, "Quire-Headers": "{}"}}),
        ("/records", {"data": b"x", "headers": {"Quire-Session": "1"}}),
    ],
)
async def test_what_is_malformed_is_refused_and_nothing_is_written(
    tmp_path: Path, path: str, given: dict[str, Any]
) -> None:
    async with served(tmp_path) as log:
        headers = {"Content-Type": "application/octet-stream"} | given.pop("headers", {})
        reply = await log.call("POST", path, headers=headers, **given)
        assert (reply.status, reply.problem) == (400, "malformed")
        assert reply.headers["Quire-Request-Id"] == reply.document["request_id"]
        assert log.log.bounds == (0, 0)


@pytest.mark.parametrize("flush", ["always", "batched", "never"])
async def test_a_stop_flushes_whatever_the_policy_is(tmp_path: Path, flush: str) -> None:
    async with served(tmp_path, flush=flush) as log:
        assert (await log.append(b"kept")).status == 200
    async with served(tmp_path, flush=flush) as log:
        assert log.log.bounds == (0, 1)
        assert (await log.call("GET", "/records/0")).body == b"kept"


async def test_a_batched_log_answers_at_once_and_is_readable_when_it_is_flushed(tmp_path: Path) -> None:
    async with served(tmp_path, flush="batched", flush_records=3, flush_interval_ms=600_000) as log:
        for number in range(2):
            assert (await log.append(b"x")).document["write_index"] == number
        assert (await log.call("GET", "/records/0")).problem == "not-committed"
        await log.append(b"x")
        await until(lambda: log.log.durable_index == 3)
        assert (await log.call("GET", "/records/0")).status == 200


async def test_the_oldest_segments_expire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.cluster.standalone.service.EXPIRY_INTERVAL_S", 0.05)
    async with served(tmp_path, segment_bytes=1 << 16, retention_bytes=100_000) as log:
        for _ in range(8):
            await log.append(bytes(40_000))
        await until(lambda: log.log.bounds.lowest_index > 0)
        assert (await log.call("GET", "/index_bounds")).document["lowest_index"] > 0


async def test_no_segment_s_files_are_removed_on_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.cluster.standalone.service.EXPIRY_INTERVAL_S", 0.05)
    unlink, here = os.unlink, set[bool]()

    def seen(path: str) -> None:
        if path.endswith(".store"):
            here.add(threading.current_thread() is threading.main_thread())
        unlink(path)

    monkeypatch.setattr(os, "unlink", seen)
    async with served(tmp_path, segment_bytes=1 << 16, retention_bytes=100_000) as log:
        for _ in range(8):
            await log.append(bytes(40_000))
        await until(lambda: bool(here))
    assert here == {False}


async def test_a_quiet_log_s_records_expire_by_age_though_their_segment_is_not_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.cluster.standalone.service.EXPIRY_INTERVAL_S", 0.02)
    async with served(tmp_path, retention_ms=50) as log:
        await log.append(b"quiet")
        await until(lambda: list(log.log.segments.bases) == [0, 1])
        await log.append(b"the newest record stays")
        await until(lambda: log.log.bounds.lowest_index == 1)


async def test_a_clock_ten_years_ahead_expires_nothing_young(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.cluster.standalone.service.EXPIRY_INTERVAL_S", 0.02)
    shown, looks = time.time_ns, 0
    async with served(tmp_path, segment_bytes=1 << 16, retention_ms=3_600_000) as log:
        begun = log.log.expiry.begin

        def looked(**limits: Any) -> Expiry | None:
            nonlocal looks
            looks += 1
            return begun(**limits)

        monkeypatch.setattr(log.log.expiry, "begin", looked)
        for _ in range(4):
            await log.append(bytes(40_000))
        monkeypatch.setattr(time, "time_ns", lambda: shown() + 10 * 365 * 86_400 * 10**9)
        for _ in range(4):
            await log.append(bytes(40_000))
        looks = 0
        await until(lambda: looks > 1)
        assert log.log.bounds.lowest_index == 0


async def test_a_directory_keeps_its_identity_and_is_no_cluster_s(tmp_path: Path) -> None:
    async with served(tmp_path, initial_index=5) as log:
        await log.append(b"x")
    identity = read_identity(FileDirectory(tmp_path))
    assert identity is not None
    assert (identity.mode, identity.machine) == ("standalone", ("log", 1))
    async with served(tmp_path, initial_index=9) as log:
        assert log.log.bounds == (5, 6)
    assert read_identity(FileDirectory(tmp_path)) == identity
    PromiseFile.create(FileDirectory(tmp_path), bytes(16)).close()
    with pytest.raises(DataDirRefused, match="cluster"):
        await opened(tmp_path)


async def opened(data_dir: Path) -> LogService:
    service = LogService(StandaloneConfig(listen="127.0.0.1:1", data_dir=data_dir))
    await service.start()
    return service


async def test_a_log_without_identity_is_served_under_the_id_that_it_has(tmp_path: Path) -> None:
    log = Log.open(FileDirectory(tmp_path), LogOptions(), cluster_id=b"x" * 16, clock=lambda: 1, standalone=True)
    log.append(["of a program"])
    log.close()
    async with served(tmp_path) as again:
        assert (await again.call("GET", "/records/0")).document == "of a program"
    identity = read_identity(FileDirectory(tmp_path))
    assert identity is not None
    assert identity.cluster_id == b"x" * 16


async def test_a_log_that_caches_no_index_reads_it_for_each_read(tmp_path: Path) -> None:
    for cached, reads in ((64, 0), (0, 1)):
        device, folder = Device(), tmp_path / str(cached)
        async with served(folder, segment_bytes=1 << 16) as log:
            while len(log.log.segments.bases) < 3:
                await log.append(bytes(20_000))
        async with served(folder, device, segment_bytes=1 << 16, cached_indexes=cached) as log:
            base = log.log.segments.bases[0]
            assert (await log.call("GET", f"/records/{base}")).status == 200
            before = len(device.index_reads)
            assert (await log.call("GET", f"/records/{base + 1}")).status == 200
            assert min(1, len(device.index_reads) - before) == reads


async def test_a_directory_in_use_or_whose_log_is_gone_is_refused(tmp_path: Path) -> None:
    async with served(tmp_path):
        with pytest.raises(DataDirRefused, match="another process"):
            await opened(tmp_path)
    for path in (tmp_path / "log").iterdir():
        path.unlink()
    with pytest.raises(DataDirRefused, match="its log is missing"):
        await opened(tmp_path)


async def test_rot_at_the_start_is_refused_and_the_lock_given_back(tmp_path: Path) -> None:
    async with served(tmp_path) as log:
        await log.append(b"x")
    (tmp_path / "mark").write_bytes(bytes(8192))
    with pytest.raises(LogRotten, match="quire log repair"):
        await opened(tmp_path)
    with pytest.raises(LogRotten, match="quire log repair"):
        await opened(tmp_path)


@pytest.mark.parametrize("flush_policy", ["always", "never"])
async def test_nothing_is_acknowledged_into_a_directory_that_was_removed_and_the_process_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush_policy: str
) -> None:
    monkeypatch.setattr(service, "MARK_INTERVAL_S", 0.01)
    async with served(tmp_path / "d", flush=flush_policy) as log:
        assert (await log.append(b"kept")).status == 200
        shutil.rmtree(tmp_path / "d")
        if flush_policy == "always":
            refused = await log.append(b"lost")
            assert refused.status == 504
            assert "was removed" in refused.document["detail"]
        await until(lambda: log.service.failure is not None)
        await turns(3)
        health = await log.call("GET", "/healthz")
        assert health.status == 503
        assert f"cp /proc/{os.getpid()}/fd/N" in health.document["reason"]
        assert (await log.append(b"more")).status == 503
        assert (await log.call("GET", "/records/0")).body == b"kept"  # While the process lives, it can be saved.
        assert not log.service.ended.is_set()


@pytest.mark.parametrize("damage", ["removed", "replaced"])
async def test_a_log_whose_lock_was_taken_away_takes_no_more_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """Without it, a second server could write the same files: both answered index 1."""
    monkeypatch.setattr(service, "MARK_INTERVAL_S", 0.01)
    async with served(tmp_path) as log:
        assert (await log.append(b"kept")).status == 200
        (tmp_path / "lock").unlink()
        if damage == "replaced":
            (tmp_path / "lock").touch()
        await until(lambda: log.service.failure is not None)
        assert (await log.append(b"more")).status == 503
        assert f"lock was {damage}" in (await log.call("GET", "/healthz")).document["reason"]


async def test_a_log_that_works_hard_is_never_accused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MARK_INTERVAL_S", 0.001)
    monkeypatch.setattr(service, "EXPIRY_INTERVAL_S", 0.002)
    async with served(tmp_path, segment_bytes=65536, retention_bytes=262144) as log:
        for number in range(150):
            assert (await log.append(bytes(9_000))).status == 200
            if number % 40 == 39:
                index = log.log.bounds.highest_index - 9
                await log.call(
                    "POST", TRUNCATE, data=json.dumps({"truncate_index": index}), headers={"Content-Type": JSON}
                )
        assert log.log.bounds.lowest_index > 0
        assert log.service.failure is None
