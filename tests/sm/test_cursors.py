"""Cursors: what a row of a `cursors` record does, and that replicas, snapshots and replays agree on it."""

from typing import Any

import pytest

from quire.log import pack
from quire.sm import (
    LOG_START,
    MAX_CURSORS,
    Applier,
    ApplyFailed,
    ArithmeticMachine,
    Cursor,
    CursorRow,
    Cursors,
    Sessions,
    SnapshotDamaged,
    cursors_record,
    next_digest,
    share_of,
)
from tests.sm.frames import Frames

ONE, TWO = b"1" * 16, b"2" * 16


class Reader:
    """An applier with a log of 100 commands, whose cursors the tests set."""

    def __init__(self) -> None:
        self.frames, self.applier = Frames(), Applier(ArithmeticMachine())
        self.log = [self.frames.records([["add", 1]] * 100)]
        self.applier.apply(self.log[0])

    def write(self, record: dict[str, Any]) -> Any:
        self.log.append(self.frames.system(record))
        [rows] = self.applier.apply(self.log[-1]).results
        return rows

    def set(self, name: str, index: int, **fields: Any) -> Any:
        [row] = self.write(cursors_record([CursorRow(name, index, **fields)]))
        return row

    def delete(self, name: str) -> Any:
        [row] = self.write(cursors_record(deleted=[name]))
        return row

    def at(self, name: str) -> int | None:
        cursor = self.applier.cursors.find(name)
        return None if cursor is None else cursor.index

    def owner(self, name: str) -> str | None:
        cursor = self.applier.cursors.find(name)
        return None if cursor is None else cursor.owner


def test_a_cursor_never_goes_back_unless_it_is_rewound() -> None:
    reader = Reader()
    assert reader.set("mail", 10) == [10]
    assert reader.set("mail", 20) == [20]
    assert reader.set("mail", 19) == ["CURSOR_BACK", 20]
    assert reader.set("mail", 5, rewind=True) == [5]
    assert reader.at("mail") == 5


def test_a_request_may_be_repeated_and_its_condition_with_it() -> None:
    reader = Reader()
    reader.set("mail", 10)
    assert reader.set("mail", 20, expected=10) == [20]
    assert reader.set("mail", 20, expected=10) == [20]
    assert reader.set("mail", 30, expected=10) == ["CURSOR_MOVED", 20]
    assert reader.set("mail", 5, expected=20, rewind=True) == [5]
    assert reader.set("mail", 5, expected=20, rewind=True) == [5]


def test_a_condition_on_a_cursor_that_is_not_there_is_not_met() -> None:
    assert Reader().set("mail", 10, expected=0) == ["CURSOR_UNKNOWN", None]


@pytest.mark.parametrize("first", [{}, {"token": ONE, "take": True}])
def test_a_cursor_is_never_beyond_the_record_that_sets_it(first: dict[str, Any]) -> None:
    reader = Reader()
    end = reader.applier.applied_index
    assert reader.set("mail", end + 1, **first) == ["CURSOR_BEYOND", None]
    assert reader.set("mail", end + 1, **first) == [end + 1]
    assert reader.set("mail", end + 3) == ["CURSOR_BEYOND", end + 1]


def test_who_takes_a_cursor_begins_where_it_is_and_fences_its_holder() -> None:
    reader = Reader()
    assert reader.set("mail", 0, token=ONE, take=True) == [0]
    assert reader.set("mail", 10, token=ONE) == [10]
    assert reader.set("mail", 0, token=TWO, take=True) == [10]
    assert reader.set("mail", 20, token=ONE) == ["CURSOR_TAKEN", 10]
    assert reader.set("mail", 10, token=ONE) == ["CURSOR_TAKEN", 10]
    assert reader.set("mail", 30, token=TWO) == [30]
    assert reader.set("mail", 0, token=TWO, take=True) == [30]


def test_an_operator_moves_a_cursor_and_its_holder_is_fenced() -> None:
    reader = Reader()
    reader.set("mail", 0, token=ONE, take=True)
    assert reader.set("mail", 50) == [50]
    assert reader.set("mail", 60, token=ONE) == ["CURSOR_TAKEN", 50]


def test_the_holder_of_a_cursor_that_was_deleted_does_not_create_it_again() -> None:
    reader = Reader()
    reader.set("mail", 0, token=ONE, take=True)
    reader.set("mail", 10, token=ONE)
    assert reader.delete("mail") == [10]
    assert reader.delete("mail") == ["CURSOR_UNKNOWN", None]
    assert reader.set("mail", 20, token=ONE) == ["CURSOR_UNKNOWN", None]
    assert reader.at("mail") is None


def test_a_hold_stays_until_another_one_is_set() -> None:
    reader = Reader()
    reader.set("mail", 0, token=ONE, take=True, hold_bytes=1000)
    reader.set("mail", 10, token=ONE)
    assert reader.applier.cursors.holding() == [("mail", Cursor(10, 1000, ONE))]
    reader.set("mail", 10, hold_bytes=0)
    assert reader.applier.cursors.holding() == []
    reader.set("mail", 10, hold_bytes=5)
    reader.delete("mail")
    assert reader.applier.cursors.holding() == []


def test_a_history_ends_all_tokens_and_no_position() -> None:
    reader = Reader()
    reader.set("mail", 0, token=ONE, take=True)
    reader.set("mail", 10, token=ONE)
    history = {
        "type": "history",
        "history": b"h" * 16,
        "name": "a",
        "from": [b"g" * 16, 50],
        "members": [["n1", b"d" * 16, "a:1", "voter"]],
    }
    reader.applier.apply(reader.frames.system(history))
    assert reader.set("mail", 20, token=ONE) == ["CURSOR_TAKEN", 10]
    assert reader.set("mail", 0, token=ONE, take=True) == [10]


def test_there_is_a_limit_to_the_number_of_cursors() -> None:
    cursors = Cursors()
    for number in range(MAX_CURSORS):
        assert cursors.set(CursorRow(f"c{number}", 0), 1).code is None
    assert cursors.set(CursorRow("one more", 0), 1).result == ["CURSORS_FULL", None]
    assert cursors.set(CursorRow("one more", 0, token=ONE, take=True), 1).result == ["CURSORS_FULL", None]
    assert cursors.set(CursorRow("c7", 1), 1).result == [1]
    cursors.delete("c8")
    assert cursors.set(CursorRow("one more", 0), 1).result == [0]


def test_rows_of_one_record_take_effect_in_order_and_each_has_its_result() -> None:
    reader = Reader()
    rows = [CursorRow("a", 10), CursorRow("b", 5), CursorRow("a", 9), CursorRow("a", 11)]
    assert reader.write(cursors_record(rows, ["b"])) == [[10], [5], ["CURSOR_BACK", 10], [11], [5]]


def test_a_list_comes_in_pages_by_name() -> None:
    cursors = Cursors()
    for name in ("b/1", "a", "b/2", "c", "b", "b/3"):
        cursors.set(CursorRow(name, 0), 1)

    def names(after: str, most: int, prefix: str) -> tuple[list[str], str | None]:
        found, following = cursors.page(after, most, prefix)
        return [name for name, _ in found], following

    assert names("", 10, "") == (["a", "b", "b/1", "b/2", "b/3", "c"], None)
    assert names("", 2, "") == (["a", "b"], "b")
    assert names("b", 2, "") == (["b/1", "b/2"], "b/2")
    assert names("b/2", 2, "") == (["b/3", "c"], None)
    assert names("", 3, "b") == (["b", "b/1", "b/2"], "b/2")
    assert names("b/2", 3, "b") == (["b/3"], None)
    assert names("", 3, "b/") == (["b/1", "b/2", "b/3"], None)
    assert names("", 3, "z") == ([], None)


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("mail", (0, 1)),
        ("mail/2-4", (2, 4)),
        ("a/b/0-1", (0, 1)),
        ("mail/4-4", (0, 1)),
        ("mail/0-0", (0, 1)),
        ("2-4", (0, 1)),
        ("mail/2-4/x", (0, 1)),
    ],
)
def test_the_name_of_a_cursor_says_which_share_it_is(name: str, share: tuple[int, int]) -> None:
    assert share_of(name) == share


def test_the_results_of_cursors_are_in_the_digest() -> None:
    reader = Reader()
    before = reader.applier.digest
    reader.set("mail", 10)
    header = reader.log[-1].header
    assert reader.applier.digest == next_digest(before, header.index, header.crc32c, pack([[[[10]]], []]))


def test_a_replay_and_a_snapshot_have_the_same_cursors() -> None:
    reader = Reader()
    reader.set("mail", 0, token=ONE, take=True, hold_bytes=7)
    reader.set("mail", 10, token=ONE)
    reader.set("a", 3, owner="alice")
    again = Applier(ArithmeticMachine())
    for frame in reader.log:
        again.apply(frame)
    content = b"".join(reader.applier.content())
    assert (again.digest, again.cursors.all()) == (reader.applier.digest, reader.applier.cursors.all())
    assert b"".join(again.content()) == content
    boundary = reader.applier.boundary
    restored = Applier.restored([content], boundary, ArithmeticMachine(), Sessions(), "a snapshot")
    assert restored.cursors.all() == [("a", Cursor(3, 0, b"", "alice")), ("mail", Cursor(10, 7, ONE))]
    assert b"".join(restored.content()) == content
    frame = reader.frames.system(cursors_record([CursorRow("mail", 20, token=ONE)]))
    for applier in (reader.applier, again, restored):
        assert applier.apply(frame).results == [[[20]]]
        assert applier.digest == reader.applier.digest


def test_an_owner_stays_until_a_row_names_another_and_refuses_nobody() -> None:
    reader = Reader()
    reader.set("mail", 0, token=ONE, take=True, owner="alice")
    assert reader.set("mail", 10, token=ONE) == [10]
    assert reader.set("mail", 0, token=TWO, take=True) == [10]
    assert reader.owner("mail") == "alice", "a row that does not name one leaves it"
    assert reader.set("mail", 10, owner="bob") == [10]
    assert reader.set("mail", 9, owner="carol") == ["CURSOR_BACK", 10]
    assert reader.owner("mail") == "bob", "a refused row changes nothing"
    assert reader.set("mail", 11, owner="") == [11]
    assert reader.owner("mail") == ""
    reader.set("new", 0)
    assert reader.owner("new") == ""


def test_owned_cursors_and_holds_are_counted_whatever_becomes_of_them() -> None:
    reader = Reader()
    cursors = reader.applier.cursors

    def counted() -> tuple[int, int, int]:
        return cursors.owned_by("alice"), cursors.owned_by("bob"), cursors.hold_bytes

    reader.set("a", 0, owner="alice", hold_bytes=1 << 63)
    reader.set("b", 0, owner="alice", hold_bytes=5)
    assert counted() == (2, 0, (1 << 63) + 5)
    reader.set("a", 1, hold_bytes=7)
    reader.set("b", 1, owner="bob")
    assert counted() == (1, 1, 12)
    reader.delete("a")
    assert counted() == (0, 1, 5)
    content, boundary = b"".join(reader.applier.content()), reader.applier.boundary
    cursors = Applier.restored([content], boundary, ArithmeticMachine(), Sessions(), "a snapshot").cursors
    assert counted() == (0, 1, 5)


def test_a_row_has_a_field_for_the_owner_only_if_it_names_one() -> None:
    [former, given] = [cursors_record([row])["set"] for row in (CursorRow("a", 1), CursorRow("a", 1, owner="alice"))]
    assert former == [["a", 1, None, False, None, None, False]]
    assert given == [["a", 1, None, False, None, None, False, "alice"]]
    reader = Reader()
    reader.write({"type": "cursors", "set": [["a", 1, None, False, None, None, False, None]]})
    assert reader.owner("a") == ""


@pytest.mark.parametrize(
    "fields",
    [
        {"set": [["mail", 0]]},
        {"set": [["mail", 0, None, False, None, None, False, 7]]},
        {"set": [["mail", 0, None, False, None, None, False, "alice", None]]},
        {"set": [["", 0, None, False, None, None, False]]},
        {"set": [["m" * 201, 0, None, False, None, None, False]]},
        {"set": [["mail", -1, None, False, None, None, False]]},
        {"set": [["mail", True, None, False, None, None, False]]},
        {"set": [["mail", 0, None, False, None, b"short", False]]},
        {"set": [["mail", 0, None, False, None, None, True]]},
        {"set": [["mail", 0, None, False, -1, None, False]]},
        {"set": [["mail", 0, "x", False, None, None, False]]},
        {"set": [["mail", 0, None, False, None, None, False]] * 1001},
        {"delete": [7]},
        {"delete": "mail"},
        {"move": []},
    ],
)
def test_a_record_that_is_no_cursors_record_stops_the_machine_before_anything_changed(fields: dict[str, Any]) -> None:
    reader = Reader()
    with pytest.raises(ApplyFailed, match="the payload cannot be read"):
        reader.applier.apply(reader.frames.system({"type": "cursors", **fields}))
    assert reader.applier.cursors.all() == []


def test_a_snapshot_with_a_cursor_twice_is_damaged() -> None:
    reader = Reader()
    reader.set("mail", 10)
    content = b"".join(reader.applier.content())
    length = 4 + int.from_bytes(content[:4], "little")
    with pytest.raises(SnapshotDamaged, match="its tables cannot be read"):
        Applier.restored([content[:length] + content], LOG_START, ArithmeticMachine(), Sessions(), "a snapshot")
