"""KeyboardInterrupt or MemoryError inside a change: how far it got is unknown, so nothing may follow."""

from __future__ import annotations

import pytest

from quire.log import Kind, LogReadOnly, encode_frame, encode_records
from quire.log.simulated import Disk
from tests.log.histories import open_log
from tests.log.streamed import append_stream


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("goes_on", [True, False])
def test_an_exception_inside_an_append_is_final_and_a_restart_keeps_every_durable_record(
    interruption: type[BaseException], goes_on: bool
) -> None:
    stop = 0
    while True:
        stop += 1
        disk = Disk()
        log = open_log(disk)
        log.append(["x" * 2100])
        log.append(["y" * 600])
        log.append(["z" * 900])
        log.flush()
        stopping = disk.operations + stop

        def breaking_in(_operation: str, _name: str, disk: Disk = disk, stopping: int = stopping) -> bool:
            if disk.operations == stopping:
                raise interruption
            return False

        disk.failing = breaking_in
        try:
            log.append(["x" * 900])
            index, epoch, timestamp, crc = log.tail
            payload = encode_records(["y" * 900])
            log.append_frames(
                encode_frame(
                    index=index,
                    epoch=epoch,
                    timestamp=timestamp,
                    count=1,
                    prev_crc32c=crc,
                    kind=Kind.RECORDS,
                    payload=payload,
                )
            )
            append_stream(log, [b"z" * 900])
        except interruption:
            pass
        else:
            break
        disk.failing = None
        durable = log.durable_index
        if goes_on:
            try:
                log.append(["short"])
            except LogReadOnly:
                pass
            else:
                log.flush()
                durable = log.durable_index
        log.close()
        assert open_log(disk).durable_index >= durable
    assert stop > 12


def test_an_interrupted_sync_proves_nothing_to_its_next_caller() -> None:
    disk = Disk()
    log = open_log(disk)
    log.append(["a"])
    flush = log.begin_flush()
    assert flush is not None

    def breaking_in(_operation: str, _name: str) -> bool:
        raise KeyboardInterrupt

    disk.failing = breaking_in
    with pytest.raises(KeyboardInterrupt):
        flush.run()
    disk.failing = None
    with pytest.raises(OSError, match="interrupted") as error:
        flush.run()
    log.end_flush(flush, error.value)
    assert log.durable_index == 0
    with pytest.raises(LogReadOnly):
        log.append(["b"])
