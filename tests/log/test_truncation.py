"""What a truncation within the write segment costs, and what it leaves."""

from __future__ import annotations

from quire.log import Kind, Log, LogOptions, encode_system
from quire.log.simulated import Disk
from tests.log.histories import CLUSTER_ID, Clock


def test_a_truncation_in_the_write_segment_reads_the_frame_that_is_last_then_and_no_other() -> None:
    disk = Disk()
    options = LogOptions(segment_bytes=1 << 20)
    log = Log.open(disk.directory(), options, cluster_id=CLUSTER_ID, clock=Clock(0), standalone=False)
    for k in range(400):
        if k % 100 == 50:
            record = encode_system({"type": "members", "members": [k]})
            log.append_payload(record, count=1, kind=Kind.SYSTEM, epoch=k // 50)
        log.append([f"{k}".ljust(2_000)], epoch=k // 50)
    log.flush()
    for kept in (403, 260, 251, 250, 52, 50, 1, 0):
        before = disk.bytes_read
        log.truncate(kept)
        assert disk.bytes_read - before < 1 << 14
        again = Log.open(disk.fork().directory(), options, cluster_id=CLUSTER_ID, clock=Clock(0), standalone=False)
        assert (again.tail, again.epochs, again.members_index) == (log.tail, log.epochs, log.members_index)
        assert [log.read(k).index for k in range(kept)] == list(range(kept))
    for k in range(100):
        log.append([f"again {k}".ljust(3_000)], epoch=9)
    log.flush()
    assert [log.read(k).value for k in range(100)] == [f"again {k}".ljust(3_000) for k in range(100)]
    assert list(log.epochs) == [(9, 0)]
