"""When an open stream is idle, and which one makes room, by a clock that the tests turn."""

from contextlib import ExitStack

import pytest
from aiohttp.test_utils import make_mocked_request

from quire.cluster.errors import Overloaded
from quire.cluster.http.admission.addresses import LEAST_SHARE, LEAST_SHARE_BYTES, address_of, share_of
from quire.cluster.http.admission.slow_callers import ResponseBodyLimit
from quire.cluster.http.admission.streams import STREAM_IDLE_S, STREAMS_LIMIT, YIELDS_AFTER_S, StreamLimit


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_stream_is_over_after_its_time_without_a_message_and_not_before() -> None:
    clock = Clock()
    limited = StreamLimit(1, clock)
    with limited.slot("a") as stream:
        clock.now_s += STREAM_IDLE_S - 1
        stream.sent()
        stream.answered()
        clock.now_s += STREAM_IDLE_S - 1
        assert not limited.is_over(stream)

        clock.now_s += 1
        assert limited.is_over(stream)


def test_a_stream_with_an_unanswered_message_is_not_idle() -> None:
    clock = Clock()
    limited = StreamLimit(1, clock)
    with limited.slot("a") as stream:
        stream.sent()
        clock.now_s += 2 * STREAM_IDLE_S

        assert not limited.is_over(stream)
        with pytest.raises(Overloaded), limited.slot("a"):
            pass
        assert not stream.ended.is_set()


def test_the_stream_that_was_idle_for_longest_makes_room_and_one_that_was_just_opened_does_not() -> None:
    clock = Clock()
    limited = StreamLimit(2, clock)
    with limited.slot("b") as older:
        clock.now_s += YIELDS_AFTER_S / 2
        with limited.slot("c") as newer:
            with pytest.raises(Overloaded, match=r"^at most 2 streams are open;"), limited.slot("a"):
                pass
            clock.now_s += YIELDS_AFTER_S / 2

            with limited.slot("a"):
                assert (older.ended.is_set(), newer.ended.is_set(), len(limited)) == (True, False, 2)
                with pytest.raises(Overloaded), limited.slot("a"):
                    pass
    assert len(limited) == 0


def test_one_address_gets_half_of_the_slots_and_the_idlest_of_its_own_makes_room() -> None:
    clock = Clock()
    limited = StreamLimit(4 * LEAST_SHARE, clock)
    with ExitStack() as opened:
        stranger = opened.enter_context(limited.slot("b"))
        clock.now_s += YIELDS_AFTER_S
        own = [opened.enter_context(limited.slot("a")) for _ in range(2 * LEAST_SHARE)]

        with pytest.raises(Overloaded, match=r"^at most 512 streams are open for one caller;"), limited.slot("a"):
            pass
        opened.enter_context(limited.slot("b"))
        clock.now_s += YIELDS_AFTER_S
        for stream in own[1:]:
            stream.sent()
        opened.enter_context(limited.slot("a"))

        assert (own[0].ended.is_set(), stranger.ended.is_set(), len(limited)) == (True, False, 2 * LEAST_SHARE + 2)


def test_half_of_the_default_slots_are_enough_for_the_clients_of_one_machine() -> None:
    assert share_of(STREAMS_LIMIT) == 512
    assert [share_of(limit) for limit in (0, 1, LEAST_SHARE, LEAST_SHARE + 1, 10_000)] == [
        0,
        1,
        LEAST_SHARE,
        LEAST_SHARE,
        5_000,
    ]


@pytest.mark.parametrize(
    ("peername", "address"),
    [
        (("10.0.0.7", 5000), "10.0.0.7"),
        (("::1", 5000, 0, 0), "::/64"),
        (("2001:db8:1:2:3:4:5:6", 5000, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 5000, 0, 2), "fe80::/64"),
        (("::ffff:10.0.0.7", 5000, 0, 0), "10.0.0.7"),
        (None, "None"),
        ("", ""),
    ],
)
def test_an_address_is_one_host_s(peername: object, address: str) -> None:
    assert address_of(peername) == address


def test_one_address_gets_half_of_the_bytes_but_for_a_single_response() -> None:
    limited = ResponseBodyLimit(limit=4 * LEAST_SHARE_BYTES)
    first, second, third, other = [make_mocked_request("GET", "/state") for _ in range(4)]
    limited.reserve(first, "a", 3 * LEAST_SHARE_BYTES)
    limited.release(first)
    limited.reserve(first, "a", LEAST_SHARE_BYTES)
    limited.reserve(second, "a", LEAST_SHARE_BYTES)

    with pytest.raises(Overloaded, match=r"^at most 67,108,864 bytes of responses are held for one caller;"):
        limited.reserve(third, "a", 1)
    limited.reserve(other, "b", LEAST_SHARE_BYTES)
    limited.release(first)
    limited.reserve(third, "a", LEAST_SHARE_BYTES)

    assert limited.held_bytes == 3 * LEAST_SHARE_BYTES
