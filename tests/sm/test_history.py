"""A `history` record: it ends all sessions, and what was in doubt before it is answered by none of them."""

from typing import Any

import pytest

from quire.log.simulated import Disk
from quire.sm import Applier, ApplyFailed, ArithmeticMachine, Owner, Sessions, SnapshotStore, write_snapshot
from quire.sm.snapshots.store import restore_newest
from tests.sm.frames import Frames

FIRST, SECOND, THIRD = bytes(range(16)), b"2" * 16, b"3" * 16
MEMBERS = [["n1", b"d" * 16, "h:1", "voter"]]
REMOVED = [["n2", b"e" * 16, 0]]


def record(index: int, history: bytes = SECOND, before: bytes = FIRST, **changed: Any) -> dict[str, Any]:
    fields = {"name": "main", "from": [before, index], "members": MEMBERS, "removed": REMOVED}
    return {"type": "history", "history": history, **fields, **changed}


def applier_with_sessions(frames: Frames) -> Applier:
    """An unnamed session at 1, a name at 2 that its next holder fenced at 3; both open ones have executed a command."""
    applier = Applier(ArithmeticMachine())
    applier.apply(frames.system({"type": "members", "members": MEMBERS}))
    for name in (None, "billing", "billing"):
        applier.apply(frames.system({"type": "open_session", "name": name}))
    for session in (1, 3):
        applier.apply(frames.records([["add", 1]], session=session, sequence=1))
    return applier


def test_a_history_record_is_kept_with_its_members_and_removed_disks() -> None:
    frames, applier = Frames(), Applier(ArithmeticMachine())
    applier.apply(frames.system({"type": "members", "members": MEMBERS, "removed": []}))

    applier.apply(frames.system(record(1)))

    boundary = applier.boundary
    assert (boundary.history, boundary.history_index, boundary.members_index) == (SECOND, 1, 1)
    assert (boundary.members, boundary.removed) == (MEMBERS, REMOVED)

    applier.apply(frames.system({"type": "members", "members": MEMBERS}))
    assert (applier.boundary.history_index, applier.boundary.members_index) == (1, 2)
    assert applier.boundary.removed == []


def test_a_record_of_features_may_stand_between_the_end_and_the_next_history() -> None:
    frames, applier = Frames(), Applier(ArithmeticMachine())
    applier.apply(frames.system({"type": "members", "members": MEMBERS}))
    applier.apply(frames.system({"type": "features", "names": []}))

    applier.apply(frames.system({**record(2), "from": [FIRST, 1]}))

    assert (applier.boundary.history, applier.boundary.history_index) == (SECOND, 2)


def test_no_session_survives_a_history_record_and_its_commands_do_not_execute() -> None:
    frames = Frames()
    applier = applier_with_sessions(frames)
    state = applier.state()

    applier.apply(frames.system(record(frames.index)))

    for session in (1, 2, 3):
        assert applier.sessions.find(session) is None
        applied = applier.apply(frames.records([["add", 1]], session=session, sequence=2))
        assert [code for _, code, _ in applied.refused] == ["HISTORY_CHANGED"]
    assert applier.state() == state
    assert applier.sessions.page(0, 10, "") == ([], None)


def test_a_name_tells_its_last_sequence_in_the_next_history_and_answers_what_is_there() -> None:
    frames = Frames()
    applier = applier_with_sessions(frames)
    applier.apply(frames.system(record(frames.index)))
    applier.apply(frames.system(record(frames.index, THIRD, SECOND)))
    state = applier.state()

    opened = applier.apply(frames.system({"type": "open_session", "name": "billing"}))

    assert opened.results == [{"session": opened.index, "sequence": 1}]
    again = applier.apply(frames.records([["add", 1]], session=opened.index, sequence=1))
    assert (again.refused, applier.state()) == ([], state)
    assert again.answered
    applier.apply(frames.records([["add", 1]], session=opened.index, sequence=2))
    assert applier.state() != state


def test_a_name_of_an_earlier_history_goes_on_for_its_owner_and_starts_over_for_another() -> None:
    frames = Frames()
    applier = applier_with_sessions(frames)
    for name in ("one", "two"):
        opened = applier.apply(frames.system({"type": "open_session", "name": name, "owner": "ana"}))
        applier.apply(frames.records([["add", 1]], session=opened.index, sequence=1))
    applier.apply(frames.system(record(frames.index)))

    by_owner = applier.apply(frames.system({"type": "open_session", "name": "one", "owner": "ana"}))
    by_another = applier.apply(frames.system({"type": "open_session", "name": "two", "owner": "bob"}))

    assert by_owner.results == [{"session": by_owner.index, "sequence": 1}]
    assert by_another.results == [{"session": by_another.index, "sequence": 0}]
    refused = applier.apply(frames.system({"type": "open_session", "name": "two", "owner": "ana"}))
    assert [code for _, code, _ in refused.refused] == ["SESSION_OWNED"]


def test_a_session_that_was_closed_in_this_history_has_expired() -> None:
    frames, applier = Frames(), Applier(ArithmeticMachine())
    applier.apply(frames.system(record(0)))
    session = applier.apply(frames.system({"type": "open_session"})).index
    applier.apply(frames.system({"type": "close_session", "session": session}))

    applied = applier.apply(frames.records([["add", 1]], session=session, sequence=1))

    assert [code for _, code, _ in applied.refused] == ["SESSION_EXPIRED"]


def test_replicas_that_read_a_snapshot_or_the_log_have_one_digest() -> None:
    frames, disk, cluster = Frames(), Disk(), Owner(FIRST, ("arithmetic", 1))
    applier = applier_with_sessions(frames)
    applier.apply(frames.system(record(frames.index)))
    store = SnapshotStore.open(disk.directory(), cluster)
    write_snapshot(store.begin(applier.applied_index), cluster, applier.boundary, applier.content())
    store.complete(applier.applied_index)
    restored = restore_newest(store, ArithmeticMachine, Sessions)
    late = frames.records([["add", 1]], session=3, sequence=2)
    opened = frames.system({"type": "open_session", "name": "billing"})

    assert restored.boundary == applier.boundary
    for frame in (late, opened):
        assert restored.apply(frame) == applier.apply(frame)
    assert restored.digest == applier.digest


@pytest.mark.parametrize(
    "changed",
    [
        {"history": b"short"},
        {"history": None},
        {"from": [FIRST, 7]},
        {"from": [THIRD, 1]},
        {"from": [SECOND, 1], "history": SECOND},
        {"from": FIRST},
        {"name": None},
        {"members": []},
        {"members": None},
    ],
)
def test_a_history_record_that_does_not_continue_the_log_stops_applying(changed: dict[str, Any]) -> None:
    frames, applier = Frames(), Applier(ArithmeticMachine())
    applier.apply(frames.system(record(0)))

    with pytest.raises(ApplyFailed, match="the payload cannot be read"):
        applier.apply(frames.system(record(1, THIRD, SECOND) | changed))

    assert applier.boundary.history == SECOND
