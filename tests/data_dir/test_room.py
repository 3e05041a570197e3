"""What a start says of the room for its log, and when it is refused for want of it."""

import errno

import pytest
from structlog.testing import capture_logs

from quire.cluster.data_dir.identity import DataDirRefused
from quire.cluster.data_dir.room import report_room
from quire.log import LogOptions
from quire.log.simulated import Disk, Keep
from tests.data_dir.voters import formatted, opened
from tests.log.histories import open_log

OPTIONS = LogOptions(segment_bytes=1 << 20)


@pytest.mark.parametrize("most_bytes", [None, 1 << 18])
def test_a_segment_that_is_shorter_than_it_should_be_is_told_with_the_option_for_it(most_bytes: int | None) -> None:
    disk = Disk()
    disk.most_bytes = most_bytes
    log = open_log(disk, OPTIONS)
    with capture_logs() as lines:
        report_room(log, "disk", OPTIONS.segment_bytes)
    assert ["--segment-bytes" in line["event"] for line in lines] == ([] if most_bytes is None else [True])
    assert most_bytes is None or most_bytes // 2 < log.room.allocated <= most_bytes


def test_a_first_start_without_room_is_refused_with_the_option_for_it_and_leaves_no_segment() -> None:
    disk = Disk()
    disk.failing = lambda operation, name: errno.ENOSPC if operation == "allocate" and "store" in name else 0
    with pytest.raises(DataDirRefused, match="--segment-bytes"):
        formatted(disk)
    assert disk.names("log") == []
    disk.failing = None
    formatted(disk)


def test_a_start_that_no_overwrite_has_room_for_is_refused_and_succeeds_when_there_is() -> None:
    disk = formatted()
    disk.copies_on_write = disk.full = True
    with pytest.raises(DataDirRefused, match="make room"):
        opened(disk)
    disk.lose_power(Keep.SOME)
    disk.full = False
    data_dir = opened(disk)
    assert data_dir.log is not None
    assert data_dir.log.bounds.highest_index == 1
    data_dir.close()


@pytest.mark.parametrize(("operation", "error"), [("write", errno.ENOSPC), ("sync", errno.ENOSPC), ("sync", errno.EIO)])
def test_a_stop_that_the_disk_fails_is_a_line_and_the_next_start_finds_what_is_durable(
    operation: str, error: int
) -> None:
    disk = formatted()
    data_dir = opened(disk)
    disk.failing = lambda what, _: error if what == operation else 0
    with capture_logs() as lines:
        data_dir.close()
    assert [line["log_level"] for line in lines] == ["warning"]
    assert disk.open_files == 0
    disk.failing = None
    disk.lose_power(Keep.NOTHING)
    data_dir = opened(disk)
    assert data_dir.log is not None
    assert data_dir.log.bounds.highest_index == 1
    data_dir.close()
