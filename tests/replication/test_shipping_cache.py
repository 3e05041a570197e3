"""What the driver keeps of the frames that it read last, for streams at the same index, is what the log holds."""

from typing import Any, cast

import pytest

from quire.log import Log, MemoryDirectory, walk_frames
from quire.replication import Disk, PromiseFile
from quire.replication.core import actions, events
from quire.replication.core.messages import Ack, CrcMismatch, Open, OpenAnswer, PeerMessage
from quire.replication.driver import Driver
from quire.replication.net.wire import Shipment
from quire.replication.ports import Device
from tests.log.histories import CLUSTER_ID, SMALL, Clock


class Streams:
    """The sockets of a leader whose streams take everything."""

    def __init__(self) -> None:
        self.sent: list[Shipment] = []

    def send(self, node_id: str, message: PeerMessage) -> None:
        raise AssertionError("no link is used")

    def dial_stream(self, action: actions.DialStream) -> None:
        raise AssertionError("a leader dials nobody")

    def send_up(self, stream_id: int, message: Open | Ack | CrcMismatch) -> None:
        raise AssertionError("a leader sends nothing up")

    def send_down(self, stream_id: int, message: OpenAnswer | Shipment) -> bool:
        assert isinstance(message, Shipment)
        self.sent.append(message)
        return False

    def close_stream(self, stream_id: int) -> None:
        raise AssertionError("no stream is closed")


class Clocks:
    """The part of a device that shipping uses."""

    def clock(self) -> int:
        return 7


def shipping() -> tuple[Log, Streams, Driver[None]]:
    directory = MemoryDirectory()
    log = Log.open(directory, SMALL, cluster_id=CLUSTER_ID, clock=Clock(), standalone=False)
    streams = Streams()
    disk = Disk(log, PromiseFile.create(directory, bytes(16)))
    # Shipping asks neither the core nor the node.
    driver: Driver[None] = Driver(cast("Any", None), disk, cast("Any", None), streams, cast("Device", Clocks()))
    return log, streams, driver


def shipped(
    streams: Streams, driver: Driver[None], stream_id: int, index: int, max_bytes: int = 1 << 20
) -> list[bytes]:
    """The records of what a stream at `index` is sent."""
    ship = actions.Ship(stream_id, index, max_bytes, 0, 0)
    driver.carry_out_step(events.Tick(), [ship])
    return [bytes(frame.payload) for frame in walk_frames(streams.sent[-1].raw)]


@pytest.mark.parametrize("epoch", [1, 2])
def test_frames_that_replaced_truncated_ones_are_shipped_and_never_those_that_were_read_before(epoch: int) -> None:
    log, streams, driver = shipping()
    log.append(["first"], epoch=1)
    kept = log.append(["old"], epoch=1)
    old = shipped(streams, driver, 1, 0)
    assert shipped(streams, driver, 2, 0) == old
    log.truncate(kept)
    # As many records, of as many bytes, up to the same index.
    log.append(["new"], epoch=epoch)
    new = shipped(streams, driver, 1, 0)
    assert (new[0], len(new)) == (old[0], 2)
    assert new[1] == old[1].replace(b"old", b"new")
    assert shipped(streams, driver, 2, 1) == new[1:]


def test_what_was_read_for_one_stream_is_shipped_to_another_only_within_the_room_of_that_one() -> None:
    log, streams, driver = shipping()
    log.append(["first"], epoch=1)
    log.append(["second"], epoch=1)
    both = shipped(streams, driver, 1, 0)
    assert len(both) == 2
    assert shipped(streams, driver, 2, 0, max_bytes=1) == both[:1]
