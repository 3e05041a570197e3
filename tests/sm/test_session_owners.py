"""Sessions that belong to an owner: nobody else opens their name, on every replica alike."""

import pytest

from quire.log import SESSION_TTL
from quire.sm import Applier, ApplyFailed, Assumed, Executed, Sessions, SessionStatus, SnapshotDamaged
from quire.sm.snapshots.content import ROWS_IN_A_ROW
from tests.sm.ledger import Desk, Ledger, codes
from tests.sm.test_snapshot import restored


def refusal(desk: Desk, name: str, owner: str | None) -> str:
    """The code with which an opening is refused; empty if it is not."""
    refused = desk.try_open(name, owner).refused
    return refused[0][1] if refused else ""


def test_an_owned_name_is_refused_to_another_owner_and_to_nobody_in_particular() -> None:
    desk = Desk()
    session = desk.open("billing", "alice")
    desk.send(session, 1, ["x"])

    assert [refusal(desk, "billing", owner) for owner in ("bob", None)] == ["SESSION_OWNED", "SESSION_OWNED"]
    assert desk.applier.sessions.find(session) == SessionStatus(session, "billing", 1, "alice")
    assert codes(desk.send(session, 2, ["y"])) == [[1, 5]]  # Its holder is not fenced.


def test_the_refusal_names_the_owner_and_how_to_close_the_session() -> None:
    desk = Desk()
    session = desk.open("billing", "alice")

    [[_, _, text]] = desk.try_open("billing", "bob").refused
    assert "'alice'" in text
    assert f"quire session close {session}" in text


def test_the_owner_takes_its_name_back_and_fences_the_old_session() -> None:
    desk = Desk()
    old = desk.open("billing", "alice")
    desk.send(old, 1, ["x"])

    new = desk.open("billing", "alice")
    assert desk.applier.sessions.find(new) == SessionStatus(new, "billing", 1, "alice")
    assert desk.applier.sessions.all_owned() == [(new, "alice")]
    assert codes(desk.send(old, 2, ["y"])) == ["SESSION_FENCED"]


def test_a_session_without_an_owner_is_taken_over_by_the_first_one() -> None:
    desk = Desk()
    desk.send(desk.open("billing"), 1, ["x"])

    taken = desk.open("billing", "alice")
    assert desk.applier.sessions.find(taken) == SessionStatus(taken, "billing", 1, "alice")
    assert refusal(desk, "billing", None) == "SESSION_OWNED"


def test_an_empty_owner_is_none() -> None:
    desk = Desk()
    desk.open("billing", "")
    assert desk.applier.sessions.all_owned() == []
    assert refusal(desk, "billing", "bob") == ""


def test_a_closed_or_evicted_session_leaves_no_owner() -> None:
    desk = Desk(max_sessions=2)
    desk.close(desk.open("billing", "alice"))
    assert refusal(desk, "billing", "bob") == ""
    desk.open(None, "carol")
    desk.open(None)  # It evicts carol's.
    assert [owner for _, owner in desk.applier.sessions.all_owned()] == ["bob"]


def test_an_expired_session_does_not_hold_its_name_against_another_owner() -> None:
    desk = Desk(session_ttl_s=10)
    desk.use_features(SESSION_TTL)
    desk.send(desk.open("billing", "alice"), 1, ["x"])
    desk.pass_time(9)
    assert refusal(desk, "billing", "bob") == "SESSION_OWNED"
    desk.pass_time(1)

    taken = desk.open("billing", "bob")
    assert desk.applier.sessions.find(taken) == SessionStatus(taken, "billing", 0, "bob")  # It starts over.


def test_a_list_of_sessions_shows_owners() -> None:
    desk = Desk()
    desk.open("billing", "alice")
    desk.open()
    page, _ = desk.applier.sessions.page(-1, 10, "")
    assert [status.owner for status, _ in page] == ["alice", None]


def test_an_owner_that_is_no_text_stops_the_applier() -> None:
    desk = Desk()
    with pytest.raises(ApplyFailed, match="owner is text"):
        desk.apply(desk.frames.system({"type": "open_session", "name": "a", "owner": 7}))


def test_a_snapshot_restores_owners_whether_sessions_expire_or_not() -> None:
    for features in ([], [SESSION_TTL]):
        desk = Desk()
        desk.use_features(*features)
        desk.open("billing", "alice")
        desk.open(None, "bob")
        desk.open("audit")
        before, content = desk.applier.sessions.all_owned(), desk.content()

        desk.restart()
        assert desk.applier.sessions.all_owned() == before
        assert desk.content() == content
        assert refusal(desk, "billing", "bob") == "SESSION_OWNED"
        assert refusal(desk, "audit", "bob") == ""


def test_more_owners_than_one_row_holds_are_restored() -> None:
    sessions = Sessions()
    for number in range(1, ROWS_IN_A_ROW + 2):
        sessions.open(number, None, owner="alice")
    _, again = restored(Applier(Ledger(), sessions=sessions).content())
    assert again.all_owned() == sessions.all_owned()


def test_an_owner_of_a_session_that_a_snapshot_lacks_is_damage() -> None:
    sessions = Sessions()
    sessions.open(1, "a", owner="alice")
    sessions.replies.clear()
    with pytest.raises(SnapshotDamaged, match="its tables cannot be read"):
        restored(Applier(Ledger(), sessions=sessions).content())


def test_an_owner_changes_the_snapshot_and_the_digest_and_none_changes_neither() -> None:
    def desk_of(owner: str | None) -> Desk:
        desk = Desk()
        desk.send(desk.open("billing", owner), 1, ["x"])
        return desk

    desks = [desk_of(owner) for owner in (None, "alice", "bob", "bob")]
    contents = [desk.content() for desk in desks]
    digests = [desk.applier.digest for desk in desks]
    assert (len(set(contents)), len(set(digests))) == (3, 3)
    assert (contents[2], digests[2]) == (contents[3], digests[3])
    assert contents[1].replace(OWNED_BY_ALICE, b"") == contents[0]


OWNED_BY_ALICE = b"\x0b\0\0\0\x92\x05\x91\x92\x01\xa5alice"
"""The row of the session with id 1 in a snapshot."""


def test_a_reader_of_a_log_skips_what_was_written_under_a_refused_session() -> None:
    desk = Desk()
    alice = desk.open("billing", "alice")
    refused = desk.try_open("billing", "bob").index
    reader = Executed(Sessions(), 0)
    reader.take_system(alice, 0, {"type": "open_session", "name": "billing", "owner": "alice"})
    reader.take_system(refused, 0, {"type": "open_session", "name": "billing", "owner": "bob"})

    assert codes(desk.send(refused, 1, ["x"])) == ["SESSION_EXPIRED"]
    assert not reader.executes(9, 0, refused, 1)
    assert reader.executes(10, 0, alice, 1)


def test_a_reader_without_the_beginning_of_a_log_follows_both_owners_of_a_name() -> None:
    """Which one is refused depends on who held the name before."""
    reader = Executed(Sessions(), 5)
    for index, owner in ((6, "alice"), (7, "bob")):
        reader.take_system(index, 0, {"type": "open_session", "name": "billing", "owner": owner})
    assert [reader.executes(8, 0, session, 1) for session in (6, 7)] == [True, True]
    assert [reader.executes(9, 0, session, 1) for session in (6, 7)] == [False, False]

    reader.take_system(10, 0, {"type": "open_session", "name": "billing", "owner": "bob"})
    assert [reader.executes(11, 0, 10, sequence) for sequence in (1, 2)] == [False, True]  # A retry, and a new one.
    assert not reader.executes(12, 0, 7, 3)  # Bob's second session took over from it.
    assert reader.executes(13, 0, 6, 2)
    assert reader.assumed == Assumed(4, 8, 13)
