"""Sessions that expire by the time of the log."""

import pytest

from quire.log import FITNESS, SESSION_TTL
from quire.sm import SESSION_TTL_S, Sessions
from quire.sm.sessions.table import EXPIRED_AT_ONCE, SECOND
from tests.sm.ledger import Desk, codes


def test_a_session_expires_by_the_time_of_the_log_and_not_before_the_feature_is_in_use() -> None:
    desk = Desk(session_ttl_s=10)
    named, unnamed = desk.open("a"), desk.open()
    desk.pass_time(3600)
    assert desk.open("b")
    assert (codes(desk.send(named, 1, ["x"])), codes(desk.send(unnamed, 1, ["x"]))) == ([[0, 4]], [[1, 5]])
    desk.use_features(FITNESS)
    desk.pass_time(3600)
    desk.use_features(SESSION_TTL)
    desk.pass_time(9.999999)
    desk.open()
    assert desk.applier.sessions.find(named) is not None  # What came before counts as used when it began.
    desk.send(named, 2, ["y"])
    desk.pass_time(0.000001)
    desk.open()
    assert desk.applier.sessions.find(unnamed) is None
    assert desk.applier.sessions.find(named) is not None
    assert codes(desk.send(unnamed, 2, ["y"])) == ["SESSION_EXPIRED"]


def test_an_expired_name_begins_anew_and_never_expires_while_it_is_opened_in_time() -> None:
    desk = Desk(session_ttl_s=10)
    desk.use_features(SESSION_TTL)
    session = desk.open("a")
    desk.send(session, 1, ["x"])
    desk.pass_time(60)
    assert desk.try_open("a").results[0]["sequence"] == 1  # Its turn to expire had not come.
    desk.pass_time(60)
    desk.open("b")
    assert desk.try_open("a").results[0]["sequence"] == 0


def test_a_full_table_of_expired_names_takes_a_new_one_and_one_opening_forgets_a_bounded_number() -> None:
    count = 3 * EXPIRED_AT_ONCE
    desk = Desk(session_ttl_s=10, max_sessions=count)
    desk.use_features(SESSION_TTL)
    for number in range(count):
        desk.open(f"name {number}")
    assert desk.try_open().refused[0][1] == "SESSIONS_FULL"
    desk.pass_time(10)
    desk.open()
    assert len(desk.applier.sessions.replies) == count - EXPIRED_AT_ONCE + 1


@pytest.mark.parametrize(
    ("unnamed", "named", "admitted"),
    [(0, 1, True), (EXPIRED_AT_ONCE - 1, 1, True), (EXPIRED_AT_ONCE - 1, 0, False), (EXPIRED_AT_ONCE, 9, True)],
)
def test_above_the_limit_a_leader_admits_one_opening_at_a_time_that_forgets_what_expired(
    unnamed: int, named: int, admitted: bool
) -> None:
    table = Sessions(session_ttl_s=10, max_sessions=1000)
    table.expire_from(0)
    for number in range(unnamed + named):
        table.open(number, None if number < unnamed else f"old {number}", 0)
    for number in range(900):
        table.open(1000 + number, f"name {number}", SECOND)

    assert table.full("new", 0, 10 * SECOND - 1) is not None
    assert (table.full("new", 0, 10 * SECOND) is None) == admitted
    assert table.full("new", 1, 10 * SECOND) is not None
    assert table.full("name 1", 1, 10 * SECOND) is None
    table.open(5000, "new", 10 * SECOND)
    assert len(table.replies) == 901 + max(0, unnamed + named - EXPIRED_AT_ONCE)


def test_a_table_full_of_names_that_expired_takes_a_session_without_one() -> None:
    table = Sessions(session_ttl_s=10, max_sessions=3)
    table.expire_from(0)
    for number in range(3):
        table.open(number, f"name {number}", 0)

    refusal = table.full(None, 0, 10 * SECOND - 1)
    assert refusal is not None
    assert "a session that is unused for 10 s expires" in refusal.text
    assert table.full(None, 0, 10 * SECOND) is None
    assert table.open(5, None, 10 * SECOND).session == 5


def test_without_a_time_to_live_nothing_expires() -> None:
    desk = Desk(session_ttl_s=0)
    desk.use_features(SESSION_TTL)
    session = desk.open("a")
    desk.pass_time(10**9)
    desk.open()
    assert desk.applier.sessions.find(session) is not None


def test_many_sessions_are_closed_by_one_record() -> None:
    desk = Desk()
    sessions = [desk.open("a"), desk.open(), desk.open("c")]
    assert desk.close_all(sessions[0], 77, sessions[1], sessions[0]).results == [{"closed": sessions[:2]}]
    assert [desk.applier.sessions.find(session) is None for session in sessions] == [True, True, False]


def test_the_time_to_live_is_the_design_s_unless_given() -> None:
    assert Sessions().session_ttl_s == SESSION_TTL_S == 30 * 86_400
