"""Reads of a log whose files cannot be opened for a while."""

from typing import Any, cast

import pytest

from quire.cluster.errors import ResourcesExhaustedError
from quire.cluster.node.reading import Reading
from quire.log.simulated import Disk
from tests.log.histories import open_log


class Committed:
    """What a read asks of the replica."""

    def __init__(self, commit_index: int) -> None:
        self.commit_index = commit_index


def test_a_read_that_finds_no_descriptor_is_refused_for_now() -> None:
    disk = Disk()
    log = open_log(disk)
    for number in range(200):
        log.append([number])
    log.flush()
    assert len(log.segment_bases) > 3
    reading = Reading(log, cast("Any", Committed(log.durable_index)), cast("Any", None), lambda: None)

    disk.exhausted = True
    with pytest.raises(ResourcesExhaustedError):
        reading.read(0)
    with pytest.raises(ResourcesExhaustedError):
        reading.read_frames(0, 1 << 20)

    disk.exhausted = False
    assert reading.read(0).value == 0
    assert reading.read_frames(0, 1 << 20)[1] > 0
