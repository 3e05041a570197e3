"""The manifest and the content of a snapshot: both are read back as written, and damage is reported."""

import tracemalloc
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from quire.log import Tail, UnknownVersion, pack
from quire.sm import (
    LOG_START,
    Applier,
    ArithmeticMachine,
    Boundary,
    LogMachine,
    Manifest,
    Refused,
    Sessions,
    SnapshotDamaged,
)
from quire.sm.boundary import MAX_EPOCHS
from quire.sm.cursors import CURSOR_NAME_BYTES
from quire.sm.snapshots.content import ROWS_IN_A_ROW
from quire.sm.snapshots.manifest import Chunk, decode_manifest
from tests.packed import unpacked
from tests.sm.frames import Frames
from tests.sm.ledger import Desk, Ledger, codes

BOUNDARY = Boundary(Tail(42, 3, 99, 7), 0, [["n1", bytes(16), "h:1", "voter"]], ((0, 0), (3, 12)), bytes(range(16)))
MANIFEST = Manifest(bytes(range(16)), ("arithmetic", 1), BOUNDARY, (Chunk(5, 6), Chunk(1, 2)), bytes(32))


def cut(content: bytes, size: int) -> list[bytes]:
    return [content[start : start + size] for start in range(0, len(content), size)]


def restored(content: Iterable[bytes], **limits: int) -> tuple[Ledger, Sessions]:
    ledger, sessions = Ledger(), Sessions(**limits)
    Applier.restored(content, LOG_START, ledger, sessions, "a snapshot")
    return ledger, sessions


def test_a_manifest_is_read_back_as_it_was_written() -> None:
    assert decode_manifest(MANIFEST.encode(), "42") == MANIFEST
    assert (MANIFEST.index, MANIFEST.size) == (42, 6)
    without_members = MANIFEST._replace(boundary=BOUNDARY._replace(members_index=None))
    assert decode_manifest(without_members.encode(), "42") == without_members


def test_a_manifest_of_a_later_history_is_read_back_with_the_removed_disks() -> None:
    removed = [["n2", bytes(range(16)), 9]]
    for boundary in (
        BOUNDARY._replace(removed=removed, features=("history",)),
        BOUNDARY._replace(removed=removed, members_index=9, history=b"h" * 16, history_index=9),
    ):
        manifest = MANIFEST._replace(boundary=boundary)
        assert decode_manifest(manifest.encode(), "42") == manifest
        assert unpacked(manifest.encode()[4:])["version"] == 3


def test_a_manifest_without_a_history_is_of_the_cluster_s_first_one_and_has_the_version_of_before() -> None:
    assert unpacked(MANIFEST.encode()[4:])["version"] == 1
    assert decode_manifest(MANIFEST.encode(), "42").history == MANIFEST.cluster_id


@pytest.mark.parametrize(
    "changed",
    [
        {"history": b"h" * 15},
        {"history": "h" * 16},
        {"history": b""},
        {"history_index": 0},
        {"history_index": 10},
        {"history_index": -1},
        {"removed": None},
    ],
)
def test_a_manifest_whose_history_is_in_no_log_is_damage(changed: dict[str, Any]) -> None:
    boundary = BOUNDARY._replace(members_index=9, history=b"h" * 16, history_index=9)
    fields = unpacked(MANIFEST._replace(boundary=boundary).encode()[4:])
    with pytest.raises(SnapshotDamaged):
        decode_manifest(with_crc(pack(fields | changed)), "42")


def test_every_flipped_byte_of_a_manifest_is_damage() -> None:
    raw = MANIFEST.encode()
    for place in range(len(raw)):
        damaged = bytearray(raw)
        damaged[place] ^= 1
        with pytest.raises(SnapshotDamaged, match="snapshot 42 is damaged"):
            decode_manifest(bytes(damaged), "42")
    for length in range(len(raw)):
        with pytest.raises(SnapshotDamaged):
            decode_manifest(raw[:length], "42")


@given(st.recursive(st.none() | st.integers(0, 2**63) | st.binary(max_size=20), st.lists))
def test_a_manifest_whose_parts_are_something_else_is_damage(value: Any) -> None:
    fields = unpacked(MANIFEST.encode()[4:])
    for name in fields:
        raw = with_crc(pack(fields | {name: value}))
        if name == "version" and value != 1:
            with pytest.raises((UnknownVersion, SnapshotDamaged)):
                decode_manifest(raw, "42")
            continue
        try:
            decode_manifest(raw, "42")
        except SnapshotDamaged:
            pass


@pytest.mark.parametrize(
    "changed",
    [
        {"crc32c": 2**32},
        {"crc32c": 2**64 - 1},
        {"members_index": 42},
        {"members_index": 2**64 - 1},
        {"epochs": [[3, 0], [0, 12]]},
        {"epochs": [[0, 12], [3, 12]]},
        {"epochs": [[0, 0], [4, 12]]},
        {"epochs": [[0, 0], [3, 42]]},
        {"index": 12},
        {"epoch": 2},
    ],
)
def test_a_manifest_whose_place_is_in_no_log_is_damage(changed: dict[str, Any]) -> None:
    # The log that begins there could not pack it, or not be compared with another.
    fields = unpacked(MANIFEST.encode()[4:])
    with pytest.raises(SnapshotDamaged):
        decode_manifest(with_crc(pack(fields | changed)), "42")


@pytest.mark.parametrize(
    "names", [None, 1, "a", [], [""], ["b", "a"], ["a", "a"], [1], ["x" * 33], [str(n + 10) for n in range(65)]]
)
def test_a_manifest_whose_features_are_no_names_is_damage(names: Any) -> None:
    fields = unpacked(MANIFEST.encode()[4:])
    with pytest.raises(SnapshotDamaged):
        decode_manifest(with_crc(pack(fields | {"version": 2, "features": names})), "42")


def with_crc(body: bytes) -> bytes:

    return crc32c(body).to_bytes(4, "little") + body


def test_a_manifest_of_another_version_is_refused_by_name() -> None:
    fields = unpacked(MANIFEST.encode()[4:])
    with pytest.raises(UnknownVersion, match="snapshot 42 has format version 4"):
        decode_manifest(with_crc(pack(fields | {"version": 4})), "42")


@pytest.mark.parametrize("size", [1, 3, 1000, 1 << 20])
def test_however_the_content_is_cut_it_is_read_back(size: int) -> None:
    desk = Desk()
    for name in ("a", None, "b", "a"):
        session = desk.open(name)
        for batch in range(5):
            desk.send(session, 1 + 20 * batch, [[session, batch, place] for place in range(20)])
    content = desk.content()
    ledger, sessions = restored(cut(content, size))
    assert ledger.executed == desk.ledger.executed
    assert b"".join(Applier(ledger, sessions=sessions).content()) == content


def test_a_session_that_was_restored_answers_a_retry_and_executes_nothing() -> None:
    desk = Desk()
    session, other = desk.open("a"), desk.open()
    commands = [["no"] if at % 7 == 0 else [at] for at in range(200)]
    answers = desk.send(session, 1, commands)
    few = desk.send(other, 1, [["few"], ["no"]])
    executed = list(desk.ledger.executed)
    desk.restart()
    assert desk.send(session, 1, commands) == answers
    assert desk.send(other, 1, [["few"], ["no"]]) == few
    assert codes(desk.send(other, 1, [["else"]])) == ["SEQUENCE_REUSED"]
    assert codes(desk.send(other, 4, [["gap"]])) == ["SEQUENCE_GAP"]
    assert desk.ledger.executed == executed


def test_fenced_sessions_stay_fenced_and_the_oldest_is_forgotten_first() -> None:
    desk = Desk(max_sessions=2)
    first, second, third = desk.open("a"), desk.open("a"), desk.open("a")
    desk.restart()
    assert codes(desk.send(first, 1, [["x"]])) == ["SESSION_FENCED"]
    desk.open("a")
    assert codes(desk.send(first, 1, [["x"]])) == ["SESSION_EXPIRED"]
    assert codes(desk.send(second, 1, [["x"]])) == ["SESSION_FENCED"]
    assert codes(desk.send(third, 1, [["x"]])) == ["SESSION_FENCED"]


def test_more_fenced_sessions_than_one_row_holds_are_kept() -> None:
    sessions = Sessions()
    sessions.put_fenced((old, old + 1) for old in range(ROWS_IN_A_ROW + 1))
    content = list(Applier(LogMachine(), sessions=sessions).content())
    again = Sessions()
    Applier.restored(content, LOG_START, LogMachine(), again, "a snapshot")
    assert again.all_fenced() == sessions.all_fenced()


def test_what_sessions_share_they_share_again() -> None:
    desk = Desk()
    ids = [desk.open() for _ in range(4)]
    desk.send_runs(*((session, 1, [[session, place] for place in range(30)]) for session in ids))
    desk.restart()
    sheets = {id(replies.blocks[0].sheet) for _, _, replies in desk.applier.sessions.all_open()}
    assert len(sheets) == 1


class Keyed:
    """A machine whose results are maps with a pair as a key."""

    name = "keyed"
    version = 1

    def __init__(self, initial: Any = None) -> None:
        pass

    def check(self, command: Any) -> None:
        return

    def apply(self, command: Any, context: Any) -> Any:
        if command == "no":
            raise Refused("NO", "no")
        return {(1, 2): [3]}

    def query(self, request: Any) -> Any:
        return None

    def snapshot(self) -> Iterator[bytes]:
        return iter(())

    def restore(self, chunks: Iterable[bytes]) -> None:
        list(chunks)


def test_a_result_that_no_list_can_be_a_key_of_is_restored() -> None:
    frames = Frames()
    applier = Applier(Keyed())
    applier.apply(frames.system({"type": "epoch_start", "node_id": "n1"}))
    applier.apply(frames.system({"type": "open_session", "name": None}))
    applier.apply(frames.records([["x"]], session=1, sequence=1))
    sessions = Sessions()
    Applier.restored(applier.content(), LOG_START, Keyed(), sessions, "a snapshot")
    assert sessions.replies[1].results == [{(1, 2): (3,)}]


@pytest.mark.parametrize("machine", [ArithmeticMachine, LogMachine])
def test_the_built_in_machines_are_restored_as_they_were(machine: Any) -> None:
    applier, frames = Applier(machine()), Frames()
    applier.apply(frames.records([["div", 3], ["mul", "1e6000"], ["sub", "0.5"]]))
    again = machine()
    Applier.restored(applier.content(), LOG_START, again, Sessions(), "a snapshot")
    assert again.query(None) == applier.state()


def test_content_that_ends_early_or_is_another_thing_is_damage() -> None:
    desk = Desk()
    desk.send(desk.open("a"), 1, [["x"]])
    content = desk.content()
    rows_end = content.index(bytes(4), 4)
    for length in range(rows_end + 3):
        with pytest.raises(SnapshotDamaged):
            restored([content[:length]])
    row = pack([9, "unknown"])
    with pytest.raises(SnapshotDamaged, match="an unknown row"):
        restored([len(row).to_bytes(4, "little") + row])
    row = pack([2, 1, "a", 1, 1, [1], [[7, 0, False]], b""])  # a sheet that never came
    with pytest.raises(SnapshotDamaged, match="its tables cannot be read"):
        restored([len(row).to_bytes(4, "little") + row])


def test_the_ground_of_an_applier_follows_from_its_frames_alone() -> None:
    frames = Frames(epoch=0)
    rows = [["n1", bytes(16), "h:1", "voter"]]
    applier = Applier(ArithmeticMachine())
    assert applier.boundary == LOG_START
    applier.apply(frames.system({"type": "genesis", "members": rows}))
    frames.epoch = 4
    applier.apply(frames.system({"type": "epoch_start", "node_id": "n1"}))
    last = frames.records([["add", 1], ["add", 2]])
    applier.apply(last)
    tail = Tail(4, 4, last.header.timestamp, last.header.crc32c)
    assert applier.boundary == Boundary(tail, 0, rows, ((0, 0), (4, 1)), applier.digest)


def test_as_many_epochs_as_the_limit_are_kept_and_the_oldest_goes_first() -> None:
    frames, applier = Frames(epoch=0), Applier(LogMachine())
    for epoch in range(MAX_EPOCHS + 1):
        frames.epoch = epoch
        applier.apply(frames.records([1]))
    assert len(applier.boundary.epochs) == MAX_EPOCHS
    assert (applier.boundary.epochs[0], applier.boundary.epochs[-1]) == ((1, 1), (MAX_EPOCHS, MAX_EPOCHS))


# What others made of the tables


def with_rows(*rows: object) -> list[bytes]:
    """The content of a snapshot with these rows."""
    packed = [row if isinstance(row, bytes) else pack(row) for row in rows]
    return [*(len(row).to_bytes(4, "little") + row for row in packed), bytes(4)]


def damage(*rows: object) -> str:
    """Why a snapshot with these rows is damaged."""
    with pytest.raises(SnapshotDamaged) as caught:
        Applier.restored(with_rows(*rows), LOG_START, LogMachine(None), Sessions(), "s")
    return caught.value.reason


TAIL = pack([["c"], ["r"], []])
SESSION = [2, 7, "name", 5, 4, [3], [[0, 0, False, 9]], 3, TAIL]
SHEET = [1, b"sheet"]
NO_NUMBERS: list[object] = [-1, True, None, 0.5, float("inf"), "1", b"1", [], {}]
NO_TEXTS: list[object] = ["", 1, None, b"a", ["a"], True]


def test_the_rows_that_are_changed_below_are_restored_as_they_are() -> None:
    sessions, cursor = Sessions(), ["c", 1, 2, bytes(16), "owner"]
    rows = [SHEET, SESSION, [3, [[1, 7]]], [5, [[7, "owner"]]], [6, [cursor, ["d", 0, 0, b""]]]]
    applier = Applier.restored(with_rows(*rows), LOG_START, LogMachine(None), sessions, "s")
    assert sessions.replies[7].size == 12
    assert len(applier.cursors) == 2


@pytest.mark.parametrize("place", [1, 3, 4, 7])
def test_a_session_whose_numbers_are_none_is_damage(place: int) -> None:
    for value in NO_NUMBERS:
        if place > 1 or value != -1:  # A session of an earlier history has its id negated.
            damage(SHEET, [*SESSION[:place], value, *SESSION[place + 1 :]])
            damage(SHEET, [4, *SESSION[1:3], value, *SESSION[3:]])


@pytest.mark.parametrize(
    "changed",
    [
        {2: 1},
        {2: b"name"},
        {3: 6},
        {4: 5},
        {5: None},
        {5: {}},
        {5: []},
        {5: [4]},
        {5: [True]},
        {6: None},
        {6: []},
        {6: [[-1, 0, False, 9]]},
        {6: [[1, 0, False, 9]]},
        {6: [[0, -1, False, 9]]},
        {6: [[0, 0, 0, 9]]},
        {6: [[0, 0, False, 0.5]]},
        {6: [[0, 0, False]]},
        {6: [7]},
        {8: "text"},
        {8: 1 << 40},
        {8: b""},
        {8: pack([["c"], ["r"]])},
        {8: pack(["c", "r", []])},
        {8: pack([["c"], [], []])},
        {8: pack([["c"], ["r"], None])},
    ],
)
def test_a_session_that_no_program_wrote_is_damage(changed: dict[int, Any]) -> None:
    damage(SHEET, [changed.get(place, value) for place, value in enumerate(SESSION)])


def test_an_owner_of_a_session_and_a_fenced_id_that_are_none_are_damage() -> None:
    for value in NO_NUMBERS:
        damage([3, [[value, 7]]])
        damage([3, [[1, value]]])
        damage(SHEET, SESSION, [5, [[value, "owner"]]])
    for text in NO_TEXTS:
        damage(SHEET, SESSION, [5, [[7, text]]])
    for row in ([3, [[1]]], [3, 1], [3, [1]], [5, [[7]]], [5, {}], [1, "text"], [1, 1 << 40], [9], 1, "x", [], None):
        damage(row)


@pytest.mark.parametrize("token", [b"abc", bytes(15), bytes(17), 1 << 40, 16, "a" * 16, None, [1], True])
def test_a_cursor_s_token_has_its_length_or_none_and_costs_no_memory(token: object) -> None:
    assert "is not a cursor's token" in damage([6, [["c", 1, 0, token]]])


def test_a_cursor_that_no_program_wrote_is_damage() -> None:
    for value in NO_NUMBERS:
        damage([6, [["c", value, 0, b""]]])
        damage([6, [["c", 1, value, b""]]])
    for text in NO_TEXTS:
        damage([6, [[text, 1, 0, b""]]])
        damage([6, [["c", 1, 0, b"", text]]])
    rows: list[object] = [["c", 1, 0], ["c", 1, 0, b"", "owner", "x"], [], 1, "c100", {}]
    for row in rows:
        damage([6, [row]])


def test_a_snapshot_has_as_many_cursors_as_the_limit_and_not_one_more(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[list[object]] = [[f"c{number}", 1, 0, b""] for number in range(4)]
    monkeypatch.setattr("quire.sm.cursors.MAX_CURSORS", 4)
    Applier.restored(with_rows([6, rows[:2]], [6, rows[2:]]), LOG_START, LogMachine(None), Sessions(), "s")
    monkeypatch.setattr("quire.sm.cursors.MAX_CURSORS", 3)
    assert "more than 3 cursors" in damage([6, rows])


def test_the_cursors_of_a_snapshot_are_in_order_and_their_names_as_long_as_the_limit() -> None:
    longest = "é" * (CURSOR_NAME_BYTES // 2)
    Applier.restored(
        with_rows([6, [["c", 1, 0, b""], [longest, 1, 0, b""]]]), LOG_START, LogMachine(None), Sessions(), "s"
    )
    assert "200 bytes" in damage([6, [[longest + "x", 1, 0, b""]]])
    for names in (["d", "c"], ["c", "c"], ["a", "c", "b"]):
        assert "is not in its order, or there twice" in damage([6, [[name, 1, 0, b""] for name in names]])
        assert "is not in its order, or there twice" in damage(*[[6, [[name, 1, 0, b""]]] for name in names])


def test_a_session_or_a_name_that_is_there_twice_is_damage() -> None:
    assert "is there twice" in damage(SHEET, SESSION, [*SESSION[:2], "other", *SESSION[3:]])
    assert "is there twice" in damage(SHEET, SESSION, [2, 8, *SESSION[2:]])


def test_a_row_may_hold_as_many_values_as_the_limit_and_not_one_more(monkeypatch: pytest.MonkeyPatch) -> None:
    row: list[object] = [6, [["c", 1, 0, bytes(16)]]]
    monkeypatch.setattr("quire.sm.snapshots.content.MAX_ROW_VALUES", 8)
    Applier.restored(with_rows(row), LOG_START, LogMachine(None), Sessions(), "s")
    monkeypatch.setattr("quire.sm.snapshots.content.MAX_ROW_VALUES", 7)
    assert "holds more than 7 values" in damage(row)


def test_a_row_may_be_as_long_as_the_limit_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.sm.snapshots.content.MAX_ROW_BYTES", len(pack(SHEET)))
    Applier.restored(with_rows(SHEET), LOG_START, LogMachine(None), Sessions(), "s")
    monkeypatch.setattr("quire.sm.snapshots.content.MAX_ROW_BYTES", len(pack(SHEET)) - 1)
    assert damage(SHEET) == "a row of its tables has 9 bytes"


def test_a_tail_may_hold_as_many_arrays_as_the_limit_and_not_one_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.sm.sessions.replies.MAX_TAIL_CONTAINERS", 4)
    Applier.restored(with_rows(SHEET, SESSION), LOG_START, LogMachine(None), Sessions(), "s")
    monkeypatch.setattr("quire.sm.sessions.replies.MAX_TAIL_CONTAINERS", 3)
    assert "holds more than 3 arrays" in damage(SHEET, SESSION)


def test_a_row_of_many_empty_arrays_is_damage_within_bounded_memory() -> None:
    count = 20_000_000
    row = b"\x92\x06\xdd" + count.to_bytes(4) + b"\x90" * count
    tracemalloc.start()
    try:
        assert "holds more than" in damage(row)
        assert tracemalloc.get_traced_memory()[1] < 10 * count
    finally:
        tracemalloc.stop()
