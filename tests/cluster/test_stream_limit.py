"""When an open stream is idle, and which one makes room, by a clock that the tests turn."""

import pytest

from quire.cluster.errors import Overloaded
from quire.cluster.http.admission.streams import STREAM_IDLE_S, YIELDS_AFTER_S, StreamLimit


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_stream_is_over_after_its_time_without_a_message_and_not_before() -> None:
    clock = Clock()
    limited = StreamLimit(1, clock)
    with limited.slot() as stream:
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
    with limited.slot() as stream:
        stream.sent()
        clock.now_s += 2 * STREAM_IDLE_S

        assert not limited.is_over(stream)
        with pytest.raises(Overloaded), limited.slot():
            pass
        assert not stream.ended.is_set()


def test_the_stream_that_was_idle_for_longest_makes_room_and_one_that_was_just_opened_does_not() -> None:
    clock = Clock()
    limited = StreamLimit(2, clock)
    with limited.slot() as older:
        clock.now_s += YIELDS_AFTER_S / 2
        with limited.slot() as newer:
            with pytest.raises(Overloaded), limited.slot():
                pass
            clock.now_s += YIELDS_AFTER_S / 2

            with limited.slot():
                assert (older.ended.is_set(), newer.ended.is_set(), len(limited)) == (True, False, 2)
                with pytest.raises(Overloaded), limited.slot():
                    pass
    assert len(limited) == 0
