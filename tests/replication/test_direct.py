"""What `DirectReader` takes of a WebSocket's bytes, in whatever pieces they come, and what it leaves to aiohttp."""

import asyncio
import random
from collections.abc import Callable
from typing import cast

import pytest

from quire.replication.net.direct import MOST_BYTES, TELL_S, TURN_S, DirectReader, framed, unmasked

BINARY, TEXT, CLOSE, PING, CONTINUATION = 0x82, 0x81, 0x88, 0x89, 0x80
FIRST_OF_SEVERAL = 0x02


def frame(first: int, payload: bytes, mask: bytes = b"") -> bytes:
    """A frame as RFC 6455, 5.2 describes it."""
    size, masked = len(payload), 0x80 if mask else 0
    if size < 126:
        head = bytes((first, masked | size))
    elif size < 1 << 16:
        head = bytes((first, masked | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((first, masked | 127)) + size.to_bytes(8, "big")
    return head + mask + (bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload)) if mask else payload)


class Aiohttp(asyncio.Protocol):
    """What gets the rest."""

    def __init__(self) -> None:
        self.received = b""
        self.lost = 0
        self.heard = 0
        """How often it was told that data came."""

    def data_received(self, data: bytes) -> None:
        assert data
        self.received += data

    def _data_received_cb(self) -> None:
        self.heard += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost += 1


class Transport:
    """A transport that notes who reads it."""

    def __init__(self) -> None:
        self.protocol: asyncio.BaseProtocol = Aiohttp()
        self.paused = self.closing = False

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


class Clock:
    """A clock that goes on with each look, so that each message takes some time."""

    def __init__(self, step_s: float) -> None:
        self._now_s, self._step_s = 0.0, step_s

    def __call__(self) -> float:
        self._now_s += self._step_s
        return self._now_s


class Reading:
    """A direct reader, what it took, and what aiohttp got."""

    def __init__(self, refuses: bytes = b"refused", clock: Callable[[], float] = lambda: 0.0) -> None:
        self.taken: list[bytes] = []
        self.transport = Transport()
        self.aiohttp = cast("Aiohttp", self.transport.protocol)
        self.reader = DirectReader(cast("asyncio.Transport", self.transport), clock)
        self._refuses = refuses

    def take(self, data: bytes) -> bool:
        if data == self._refuses:
            return False
        self.taken.append(data)
        return True


SIZES = (0, 1, 125, 126, 127, 65_535, 65_536)


@pytest.mark.parametrize("seed", range(20))
def test_binary_messages_are_taken_and_the_rest_is_left_whatever_the_pieces(seed: int) -> None:
    chance, reading = random.Random(seed), Reading()
    messages = [chance.randbytes(chance.choice(SIZES)) for _ in range(8)]
    pings = [frame(PING, chance.randbytes(chance.randint(0, 125)), b"mask") for _ in range(4)]
    frames = [frame(BINARY, message, chance.choice((b"", bytes(4), b"mask"))) for message in messages]
    order = sorted(
        [(chance.random(), 0, ping) for ping in pings] + [(place / 8, 1, f) for place, f in enumerate(frames)]
    )
    stream = b"".join(sent for *_, sent in order)
    begins = chance.randint(0, 1000)
    at = 0
    while at < len(stream):
        if at >= begins:
            reading.reader.begin(reading.take)
            begins = len(stream)
        piece = chance.choice((1, 2, 3, 10, 1_000, 70_000))
        reading.reader.data_received(stream[at : at + piece])
        at += piece
    reading.reader.begin(reading.take)
    assert reading.taken == messages
    assert sorted(reading.aiohttp.received) == sorted(b"".join(pings))


@pytest.mark.parametrize(
    "other",
    [
        frame(TEXT, b"a text"),
        frame(FIRST_OF_SEVERAL, b"the first part") + frame(CONTINUATION, b"and the last"),
        frame(BINARY, b"refused"),
        frame(BINARY | 0x40, b"of an extension"),
        frame(BINARY, bytes(MOST_BYTES + 1)),
    ],
    ids=["text", "parts", "refused", "extension", "large"],
)
def test_from_the_first_other_message_on_everything_is_left_in_order(other: bytes) -> None:
    rest = other + frame(BINARY, b"later") + frame(CLOSE, b"")
    for piece in (1, 7, len(rest)) if len(rest) < MOST_BYTES else (100_000, len(rest)):
        reading = Reading()
        reading.reader.begin(reading.take)
        reading.reader.data_received(frame(BINARY, b"before"))
        for at in range(0, len(rest), piece):
            reading.reader.data_received(rest[at : at + piece])
        assert reading.taken == [b"before"]
        assert reading.aiohttp.received == rest


def test_after_its_end_everything_is_left_even_what_had_arrived_of_a_frame() -> None:
    reading, sent = Reading(), frame(BINARY, b"message")
    reading.reader.begin(reading.take)
    reading.reader.data_received(sent + sent[:3])
    reading.reader.end()
    reading.reader.data_received(sent[3:] + sent)
    assert reading.taken == [b"message"]
    assert reading.aiohttp.received == sent + sent


def test_a_message_whose_taking_ends_the_reading_is_the_last() -> None:
    reading, sent = Reading(), frame(BINARY, b"message")

    def take(data: bytes) -> bool:
        reading.reader.end()
        return reading.take(data)

    reading.reader.begin(take)
    reading.reader.data_received(sent * 3)
    assert reading.taken == [b"message"]
    assert reading.aiohttp.received == sent * 2


async def test_after_some_time_the_loop_gets_a_turn_and_nothing_more_is_read_meanwhile() -> None:
    reading = Reading(clock=Clock(TURN_S / 5))
    reading.reader.begin(reading.take)
    sent = frame(BINARY, b"message")
    reading.reader.data_received(sent * 12)
    reading.reader.data_received(sent)  # The kernel had it already.
    assert (len(reading.taken), reading.transport.paused) == (5, True)
    await asyncio.sleep(0)
    assert (len(reading.taken), reading.transport.paused) == (10, True)
    await asyncio.sleep(0)
    assert (len(reading.taken), reading.transport.paused) == (13, False)
    assert reading.aiohttp.received == b""


async def test_of_a_connection_that_is_lost_nothing_more_is_taken() -> None:
    reading = Reading(clock=Clock(2 * TURN_S))
    reading.reader.begin(reading.take)
    reading.reader.data_received(frame(BINARY, b"message") * 3)
    reading.transport.closing = True
    reading.reader.connection_lost(None)
    await asyncio.sleep(0)
    assert (len(reading.taken), reading.aiohttp.lost, reading.aiohttp.received) == (1, 1, b"")


def test_what_it_leaves_it_leaves_for_good_and_none_stands_in_front_of_another() -> None:
    reading = Reading()
    reading.reader.end()
    assert reading.transport.protocol is reading.aiohttp
    reading = Reading()
    reading.reader.begin(reading.take)
    reading.reader.data_received(frame(TEXT, b"a text"))
    assert reading.transport.protocol is reading.aiohttp


def test_aiohttp_hears_of_data_once_in_a_while_and_need_not_ping() -> None:
    reading = Reading(clock=Clock(TELL_S / 4))
    reading.reader.begin(reading.take)
    for _ in range(9):
        reading.reader.data_received(frame(BINARY, b"message"))
    assert 2 <= reading.aiohttp.heard <= 5


def test_a_connection_that_was_lost_already_is_no_fault_of_this_program() -> None:
    transport = Transport()
    transport.protocol = cast("asyncio.BaseProtocol", None)
    with pytest.raises(ConnectionResetError):
        DirectReader(cast("asyncio.Transport", transport))


def test_before_it_begins_no_more_is_held_than_a_message_may_have() -> None:
    reading = Reading()
    reading.reader.data_received(bytes(MOST_BYTES + 1))
    assert reading.transport.paused


@pytest.mark.parametrize("size", [*SIZES, 70_000])
def test_a_message_is_framed_and_unmasked_as_the_standard_says(size: int) -> None:
    payload = random.Random(size).randbytes(size)
    assert framed(payload) == frame(BINARY, payload)
    assert framed(payload, b"mask") == frame(BINARY, payload, b"mask")
    masked = frame(BINARY, payload, b"\x01\xff\x10\x80")
    assert unmasked(masked[len(masked) - size :], b"\x01\xff\x10\x80") == payload
