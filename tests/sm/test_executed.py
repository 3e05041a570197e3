"""Which records executed, told from a log whose beginning has expired. (test_session_model has whole logs.)"""

from collections.abc import Mapping
from typing import Any

import pytest

from quire.sm import Executed, Sessions

LOWEST = 100
SECOND = 1_000_000
OPEN_A = {"type": "open_session", "name": "a"}
Told = Mapping[str, Any] | tuple[int, int]


def told(*records: Told, sessions: Sessions | None = None, seconds: int = 1) -> tuple[list[int], list[int]]:
    """The places, from LOWEST on, of the (session, sequence) that executed, and of those that were assumed to."""
    reader = Executed(sessions or Sessions(), LOWEST)
    executed: list[int] = []
    for index, record in enumerate(records, LOWEST):
        if isinstance(record, Mapping):
            reader.take_system(index, index * SECOND * seconds, record)
        elif reader.executes(index, index * SECOND * seconds, *record):
            executed.append(index)
    return [index - LOWEST for index in executed], [index - LOWEST for index in reader.assumed]


def test_the_first_record_of_a_session_of_before_counts_as_new_and_its_retries_do_not() -> None:
    assert told((7, 50), (7, 51), (7, 50), (7, 53), (9, 4), (7, 52), (0, 0)) == ([0, 1, 4, 5, 6], [0, 4])


def test_a_session_that_the_log_would_show_to_be_opened_and_does_not_executes_nothing() -> None:
    assert told((LOWEST, 1), (LOWEST + 50, 1)) == ([], [])


def test_an_unnamed_session_that_is_opened_in_the_log_begins_at_one() -> None:
    assert told({"type": "open_session", "name": None}, (LOWEST, 2), (LOWEST, 1), (LOWEST, 2)) == ([2, 3], [])


def test_a_name_may_go_on_from_before_when_it_is_first_opened_and_is_known_after_that() -> None:
    records = (OPEN_A, (LOWEST, 50), OPEN_A, (LOWEST, 51), (LOWEST + 2, 50), (LOWEST + 2, 51))
    assert told(*records) == ([1, 5], [1])


def test_a_name_that_is_opened_twice_before_its_first_record_may_still_go_on_from_before() -> None:
    assert told(OPEN_A, OPEN_A, (LOWEST, 50), (LOWEST + 1, 50), (LOWEST + 1, 50)) == ([3], [3])


@pytest.mark.parametrize(
    "closing", [{"type": "close_session", "session": 7}, {"type": "close_sessions", "sessions": [7]}]
)
def test_a_session_of_before_that_was_closed_executes_nothing_more(closing: Mapping[str, Any]) -> None:
    assert told(closing, (7, 50)) == ([], [])
    assert told((7, 50), closing, (7, 51)) == ([0], [0])


def test_a_name_that_was_closed_begins_anew() -> None:
    closing = {"type": "close_session", "session": LOWEST}
    assert told(OPEN_A, (LOWEST, 50), closing, OPEN_A, (LOWEST + 3, 51), (LOWEST + 3, 1)) == ([1, 5], [1])


def test_a_session_of_before_that_expired_in_the_log_executes_nothing_more() -> None:
    sessions = Sessions(session_ttl_s=10)
    sessions.expire_from(0)
    other = {"type": "open_session", "name": "other"}
    assert told((7, 50), (7, 51), other, (7, 52), sessions=sessions, seconds=10) == ([0, 1], [0])


def test_no_record_executes_under_sequence_0() -> None:
    assert told((7, 0), (7, 3)) == ([1], [1])


def test_a_record_under_sequence_0_is_a_use_of_its_session() -> None:
    sessions = Sessions(session_ttl_s=15)
    sessions.expire_from(0)
    unnamed = {"type": "open_session", "name": None}
    assert told(unnamed, (LOWEST, 0), unnamed, (LOWEST, 1), sessions=sessions, seconds=10) == ([3], [])
