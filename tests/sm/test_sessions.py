"""The session table: open, name, fence, close, and its limits."""

import pytest

from quire.sm import EMPTY_DIGEST, MAX_SESSIONS, SESSION_WINDOW, Sessions, SessionStatus
from quire.sm.sessions.table import MAX_NAMED_SESSIONS, SESSION_BYTES, SESSIONS_BYTES
from tests.sm.ledger import Desk, codes, replies


def test_the_index_of_its_record_is_the_session_s_id() -> None:
    desk = Desk()
    desk.send(0, 0, ["a", "b"])
    applied = desk.try_open("billing")
    assert applied[:5] == (3, 4, 1, [{"session": 3, "sequence": 0}], [])
    assert desk.applier.applied_index == 4
    assert desk.applier.sessions.find(3) == SessionStatus(3, "billing", 0)


@pytest.mark.parametrize(
    ("most", "named"), [(0, 0), (1, 1), (9, 9), (10, 9), (20, 18), (MAX_SESSIONS, MAX_NAMED_SESSIONS)]
)
def test_one_slot_in_ten_is_for_sessions_without_a_name(most: int, named: int) -> None:
    assert Sessions(max_sessions=most).named_limit == named


def test_a_leader_admits_new_names_up_to_their_limit_and_not_one_more() -> None:
    table = Sessions(max_sessions=1100)
    for number in range(988):
        table.open(number, f"name {number}")
    assert table.full("new", 1, 0) is None
    refusal = table.full("new", 2, 0)
    assert refusal is not None
    assert refusal.code == "SESSIONS_FULL"
    assert "988 named sessions are open and 2 more are being opened, of at most 990" in refusal.text
    assert "the rest of 1,100 is for sessions without a name" in refusal.text
    assert table.full("name 1", 2, 0) is None
    assert table.full(None, 2, 0) is None


def test_a_leader_admits_one_owner_s_new_names_up_to_half_of_those_of_all() -> None:
    table = Sessions(max_sessions=1100)
    for number in range(493):
        table.open(number, f"name {number}", owner="alice")
    table.open(500, None, owner="alice")
    assert table.owned_limit == 495
    assert table.share_full("new", "alice", 1, 0) is None
    refusal = table.share_full("new", "alice", 2, 0)
    assert refusal is not None
    assert refusal.code == "SESSIONS_FULL"
    assert "493 named sessions of 'alice' are open and 2 more are being opened" in refusal.text
    assert "one name of a token may have 495" in refusal.text
    assert table.share_full("name 1", "alice", 2, 0) is None, "an open name is no new one"
    assert table.share_full("new", "bob", 2, 0) is None
    for session in (1, 500):
        table.close(session)
    table.open(600, "name 2", owner="alice")  # In place of the former session of that name.
    assert table.share_full("new", "alice", 2, 0) is None
    assert table.share_full("new", "alice", 3, 0) is not None
    table.end_history(700)
    assert table.share_full("new", "alice", 3, 0) is not None, "names are kept in another history"


def test_above_an_owner_s_share_an_opening_is_admitted_that_forgets_one_of_its_own() -> None:
    table = Sessions(max_sessions=20, session_ttl_s=10)
    table.expire_from(0)
    for number in range(9):
        table.open(number, f"name {number}", timestamp=number * 1_000_000, owner="alice")
    assert table.share_full("new", "alice", 0, 9_000_000) is not None
    assert table.share_full("new", "alice", 0, 10_000_000) is None
    assert table.share_full("new", "alice", 1, 10_000_000) is not None, "one at a time"


def test_what_is_in_the_log_is_applied_above_the_limit_too() -> None:
    desk = Desk(max_sessions=20)
    for number in range(20):
        assert desk.try_open(f"name {number}").refused == []
    table = desk.applier.sessions
    assert table.full("new", 0, 0) is not None
    assert table.full("name 1", 0, 0) is None
    refusal = table.full(None, 0, 0)
    assert refusal is not None
    assert "20 sessions are open of at most 20, all of them with names; close some" in refusal.text
    desk.close(1)
    assert table.full(None, 0, 0) is None
    assert table.full("new", 0, 0) is not None


def test_sequences_start_at_one() -> None:
    desk = Desk()
    session = desk.open()
    assert codes(desk.send(session, 0, ["a"])) == ["REPLY_GONE"]
    assert codes(desk.send(session, 2, ["a"])) == ["SEQUENCE_GAP"]
    assert desk.send(session, 1, ["a"]) == [[0, 4]]


@pytest.mark.parametrize("name", ["billing", None, ""])
def test_opening_evicting_and_closing_leave_the_digest_as_it_is(name: str | None) -> None:
    desk = Desk(max_sessions=1)
    session = desk.open(name)
    codes(replies(desk.try_open("other")))
    desk.close(session)
    assert desk.applier.digest == EMPTY_DIGEST
    assert desk.applier.applied_index == 4


def test_a_name_opened_again_goes_on_with_its_sequence_and_replies() -> None:
    desk = Desk()
    old = desk.open("billing")
    first = desk.send(old, 1, ["a", "no", "c"])
    applied = desk.try_open("billing")
    new = applied.index
    assert new != old
    assert applied.results == [{"session": new, "sequence": 3}]
    assert desk.applier.sessions.find(new) == SessionStatus(new, "billing", 3)
    assert desk.send(new, 1, ["a", "no", "c"]) == first
    assert desk.send(new, 4, ["d"]) == [[3, 9]]
    assert desk.ledger.executed == ["a", "no", "c", "d"]


def test_a_fenced_session_executes_nothing_and_is_answered_so_from_then_on() -> None:
    desk = Desk()
    old = desk.open("billing")
    desk.send(old, 1, ["a"])
    new = desk.open("billing")
    refusal = ["SESSION_FENCED", f"session {old} was taken over by session {new} of its name"]
    assert desk.send(old, 2, ["b", "c"]) == [refusal, refusal]
    assert desk.send(old, 1, ["a"]) == [refusal]  # not even a recorded reply
    assert desk.applier.sessions.find(old) is None
    assert replies(desk.close(old)) == [refusal]  # nor may it close the new holder's
    newest = desk.open("billing")
    desk.close(newest)
    assert desk.send(old, 2, ["b"]) == [refusal]
    assert codes(desk.send(new, 2, ["b"])) == ["SESSION_FENCED"]
    assert desk.ledger.executed == ["a"]


def test_sessions_of_other_names_and_without_name_do_not_touch_each_other() -> None:
    desk = Desk()
    sessions = [desk.open("a"), desk.open("b"), desk.open(), desk.open(), desk.open(""), desk.open("")]
    assert [desk.send(session, 1, ["x"])[0][0] for session in sessions] == [0, 1, 2, 3, 4, 5]
    statuses = [desk.applier.sessions.find(session) for session in sessions]
    names = ["a", "b", None, None, None, None]
    assert statuses == [SessionStatus(*pair, 1) for pair in zip(sessions, names, strict=True)]


def test_a_closed_session_is_expired() -> None:
    desk = Desk()
    session = desk.open()
    desk.send(session, 1, ["a"])
    applied = desk.close(session)
    assert (applied.results, applied.refused) == ([{"session": session, "sequence": 1}], [])
    expired = ["SESSION_EXPIRED", f"session {session} is not open: closed, expired or never opened"]
    assert desk.send(session, 2, ["b"]) == [expired]
    assert desk.send(session, 1, ["a"]) == [expired]
    assert replies(desk.close(session)) == [expired]
    assert desk.applier.sessions.find(session) is None
    assert desk.ledger.executed == ["a"]


def test_closing_a_named_session_closes_the_name() -> None:
    desk = Desk()
    old = desk.open("billing")
    desk.send(old, 1, ["a"])
    desk.close(old)
    new = desk.open("billing")
    assert desk.applier.sessions.find(new) == SessionStatus(new, "billing", 0)
    assert codes(desk.send(old, 2, ["b"])) == ["SESSION_EXPIRED"]
    assert desk.send(new, 1, ["a"]) == [[1, 6]]


def test_an_unknown_session_is_expired() -> None:
    desk = Desk()
    desk.open()
    assert codes(desk.send(77, 1, ["a", "b"])) == ["SESSION_EXPIRED"] * 2
    assert codes(desk.send(2**64 - 1, 2**64 - 1, ["a"])) == ["SESSION_EXPIRED"]
    assert codes(replies(desk.close(77))) == ["SESSION_EXPIRED"]
    assert desk.ledger.executed == []


def test_named_sessions_are_opened_up_to_the_limit_and_not_one_more() -> None:
    desk = Desk(max_sessions=3)
    first, named, _ = desk.open("c"), desk.open("a"), desk.open("d")
    for name in (None, "b"):
        applied = desk.try_open(name)
        assert applied.results == [None]
        text = "3 sessions are open of at most 3, and all of them have names; close one"
        assert applied.refused == [[0, "SESSIONS_FULL", text]]
        assert desk.applier.sessions.find(applied.index) is None
    again = desk.open("a")  # It takes the old one's room.
    assert codes(desk.send(named, 1, ["x"])) == ["SESSION_FENCED"]
    assert desk.try_open().refused
    desk.close(first)
    assert desk.try_open("b").refused == []
    assert desk.try_open("c").refused
    assert desk.send(again, 1, ["x"]) == [[0, desk.applier.applied_index - 1]]


def test_at_the_limit_the_unnamed_session_goes_that_was_used_longest_ago_and_no_other() -> None:
    desk = Desk(max_sessions=3)
    first, named, last = desk.open(), desk.open("a"), desk.open()
    desk.send(first, 1, ["x"])  # `last` is the one that was used longest ago now; a name never goes.
    desk.open()
    assert codes(desk.send(last, 1, ["y"])) == ["SESSION_EXPIRED"]
    assert [desk.applier.sessions.find(session) is not None for session in (first, named, last)] == [True, True, False]
    desk.send_runs((first, 1, ["x"]))  # A retry is a use, too.
    newest = desk.open()
    assert [desk.applier.sessions.find(session) is not None for session in (first, newest)] == [True, True]
    assert desk.ledger.executed == ["x"]


def test_whoever_comes_back_to_an_evicted_session_executes_nothing_again() -> None:
    desk = Desk(max_sessions=1)
    session = desk.open()
    desk.send(session, 1, ["a", "b"])
    other = desk.open()
    retries = [desk.send(session, 1, ["a", "b"]), desk.send(session, 1, ["a"]), desk.send(session, 3, ["c"])]
    assert [set(codes(given)) for given in retries] == [{"SESSION_EXPIRED"}] * 3
    assert codes(desk.send_runs((session, 1, ["a"]), (other, 1, ["d"]), (session, 2, ["b"]))) == [
        *("SESSION_EXPIRED", [2, desk.applier.applied_index - 2], "SESSION_EXPIRED")
    ]
    assert codes(replies(desk.close(session))) == ["SESSION_EXPIRED"]
    assert desk.ledger.executed == ["a", "b", "d"]
    assert desk.again().digest == desk.applier.digest


def test_fenced_ids_are_remembered_up_to_the_limit_the_oldest_forgotten_first() -> None:
    desk = Desk(max_sessions=3)
    ids = [desk.open("a") for _ in range(4)]
    assert [codes(desk.send(old, 1, ["x"])) for old in ids[:3]] == [["SESSION_FENCED"]] * 3
    ids.append(desk.open("a"))
    assert codes(desk.send(ids[0], 1, ["x"])) == ["SESSION_EXPIRED"]
    assert [codes(desk.send(old, 1, ["x"])) for old in ids[1:4]] == [["SESSION_FENCED"]] * 3
    assert desk.ledger.executed == []


def test_the_limits_are_those_of_the_design_unless_given() -> None:
    assert (SESSION_WINDOW, MAX_SESSIONS) == (8192, 100_000)
    sessions = Sessions()
    assert (sessions.session_window, sessions.max_sessions) == (8192, 100_000)
    assert (sessions.session_bytes, sessions.sessions_bytes) == (SESSION_BYTES, SESSIONS_BYTES)


@pytest.mark.full
def test_the_table_holds_its_default_limit_and_not_one_more() -> None:
    sessions = Sessions()
    for index in range(1, MAX_SESSIONS + 1):
        sessions.open(index, f"name {index}" if index > 1 else None)
    desk = Desk()
    desk.applier.sessions = sessions
    desk.frames.index = desk.applier.applied_index = MAX_SESSIONS + 1
    assert desk.try_open().refused == []
    assert sessions.find(1) is None
    assert len(sessions.replies) == MAX_SESSIONS
    desk.open("now all have names")
    assert desk.try_open().refused[0][1] == "SESSIONS_FULL"


def test_other_system_records_have_no_results() -> None:
    desk = Desk()
    for record in ({"type": "digest", "index": 1, "digest": b""}, {"type": "epoch_start", "node_id": "n1"}):
        applied = desk.apply(desk.frames.system(record))
        assert (applied.results, applied.refused) == ([], [])
    assert desk.applier.applied_index == 3
