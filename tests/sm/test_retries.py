"""Retries: decided record by record, however they are grouped; nothing executes twice."""

import struct
from hashlib import blake2b
from typing import Any

import pytest

from quire.log import Record, Run, pack
from quire.sm import Applier, ApplyFailed, ArithmeticMachine, Context, LogMachine, Sessions
from quire.sm.sessions.replies import SHARED_BYTES, SHARED_COMMANDS, TAIL_COMMANDS
from tests.sm.frames import Frames, batches, boundary_at
from tests.sm.ledger import Desk, Ledger, codes

COMMANDS = [f"c{number}" if number % 5 else "no" for number in range(1, 301)]


def send_in_batches(desk: Desk, session: int, size: int, commands: list[Any] = COMMANDS) -> list[Any]:
    given: list[Any] = []
    for batch in batches(commands, size):
        given += desk.send(session, 1 + len(given), batch)
    return given


@pytest.mark.parametrize("retry_size", [1, 7, 64, 300])
@pytest.mark.parametrize("size", [1, 15, 16, 100, 300])
def test_a_known_sequence_is_answered_what_it_was_answered_first_however_it_is_grouped(
    size: int, retry_size: int
) -> None:
    desk = Desk()
    session = desk.open()
    first = send_in_batches(desk, session, size)
    executed = list(desk.ledger.executed)
    assert executed == COMMANDS
    assert send_in_batches(desk, session, retry_size) == first
    assert desk.ledger.executed == executed
    found = desk.applier.sessions.find(session)
    assert found is not None
    assert found.sequence == 300


@pytest.mark.parametrize("known", [1, 20, 70])
def test_a_run_may_begin_with_what_is_known_and_go_on_with_what_is_new(known: int) -> None:
    desk = Desk()
    session = desk.open()
    first = desk.send(session, 1, COMMANDS[:known])
    given = desk.send(session, 1, COMMANDS[:100])
    assert given[:known] == first
    assert desk.ledger.executed == COMMANDS[:100]
    index = desk.applier.applied_index - 100
    assert given[known] == [known, index + known]  # its own index, not that of the frame


def test_a_machine_s_refusal_is_a_reply_and_uses_its_sequence() -> None:
    desk = Desk()
    session = desk.open()
    first = desk.send(session, 1, ["no"])
    assert first == [["NO", "0, 2"]]
    assert desk.send(session, 2, ["b"]) == [[1, 3]]
    assert desk.send(session, 1, ["no"]) == first
    assert codes(desk.send(session, 1, ["yes"])) == ["SEQUENCE_REUSED"]


def test_a_gap_is_refused_record_by_record_and_uses_no_sequence() -> None:
    desk = Desk()
    session = desk.open()
    desk.send(session, 1, ["a"])
    assert desk.send(session, 3, ["c", "d"]) == [
        ["SEQUENCE_GAP", f"session {session} goes on with sequence 2, not 3"],
        ["SEQUENCE_GAP", f"session {session} goes on with sequence 2, not 4"],
    ]
    assert desk.send(session, 2, ["b"]) == [[1, 5]]
    assert desk.send(session, 3, ["c"]) == [[2, 6]]
    assert desk.ledger.executed == ["a", "b", "c"]


@pytest.mark.parametrize("size", [1, 15, 16, 40, 300])
@pytest.mark.parametrize("window", [1, 63, 64, 65, 200, 299, 300])
def test_the_window_is_exact_at_it_and_one_past(window: int, size: int) -> None:
    desk = Desk(session_window=window)
    session = desk.open()
    first = send_in_batches(desk, session, size)
    lowest = 301 - window
    assert desk.send(session, lowest, COMMANDS[lowest - 1 :]) == first[lowest - 1 :]
    [gone] = desk.send(session, lowest - 1, COMMANDS[lowest - 2 : lowest - 1] or ["any"])
    text = f"session {session} keeps replies from sequence {lowest} on, the last {window} at most; {lowest - 1} is gone"
    assert gone == ["REPLY_GONE", text]
    assert desk.ledger.executed == COMMANDS


@pytest.mark.parametrize("size", [15, 40, 100])
@pytest.mark.slow
def test_every_window_keeps_the_block_that_it_reaches_into(size: int) -> None:
    for window in range(1, 300):
        desk = Desk(session_window=window)
        session = desk.open()
        first = send_in_batches(desk, session, size)
        lowest = 301 - window
        assert desk.send(session, lowest, COMMANDS[lowest - 1 : lowest]) == first[lowest - 1 : lowest]


def test_the_default_window_is_exact() -> None:
    desk = Desk()
    session = desk.open()
    commands = [[number] for number in range(9000)]
    first = send_in_batches(desk, session, 450, commands)
    lowest = 9001 - 8192
    assert codes(desk.send(session, lowest - 1, commands[lowest - 2 :])) == ["REPLY_GONE", *first[lowest - 1 :]]


def test_what_executes_before_it_in_a_frame_moves_the_window() -> None:
    desk = Desk(session_window=3)
    session = desk.open()
    first = desk.send(session, 1, ["a", "b", "c"])
    new = ["d"]
    given = desk.send_runs((session, 1, ["a"]), (session, 4, new), (session, 1, ["a"]), (session, 2, ["b"]))
    assert [given[0], codes(given)[2], given[3]] == [first[0], "REPLY_GONE", first[1]]


def test_a_frame_larger_than_the_window_leaves_the_window() -> None:
    desk = Desk(session_window=100)
    session = desk.open()
    retry = (session, 1, COMMANDS)
    given = codes(desk.send_runs((session, 1, COMMANDS), retry))
    assert given[300:] == ["REPLY_GONE"] * 200 + given[200:300]
    assert desk.ledger.executed == COMMANDS


OTHERS = [
    (1, True),
    (1, 1.0),
    (1, "1"),
    (0.0, -0.0),
    ("a", b"a"),
    ([1, 2], [2, 1]),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    (None, False),
    ("x" * 500, "x" * 499 + "y"),
    (b"x" * 16, b"x" * 15 + b"y"),
]


@pytest.mark.parametrize("neighbours", [0, 15, 70])
@pytest.mark.parametrize(("command", "other"), OTHERS)
def test_a_sequence_reused_for_another_command_is_refused(command: Any, other: Any, neighbours: int) -> None:
    desk = Desk()
    session = desk.open()
    commands = [command, *["n"] * neighbours]
    first = desk.send(session, 1, commands)
    reused = ["SEQUENCE_REUSED", f"sequence 1 of session {session} was given to another command before"]
    assert desk.send(session, 1, [other]) == [reused]
    assert desk.send(session, 1, [other, *commands[1:]]) == [reused, *first[1:]]
    assert desk.send(session, 1, commands) == first
    assert desk.ledger.executed == commands


def test_equality_is_that_of_the_msgpack_bytes_so_not_a_number_is_itself() -> None:
    desk = Desk()
    session = desk.open()
    first = desk.send(session, 1, [float("nan")])
    assert desk.send(session, 1, [float("nan")]) == first


def test_a_retry_may_stand_in_the_same_frame_as_its_original() -> None:
    desk = Desk()
    session = desk.open()
    given = desk.send_runs((session, 1, ["a", "no"]), (session, 1, ["a", "no", "c"]), (session, 2, ["no", "c", "d"]))
    a, no, c, d = [0, 2], ["NO", "1, 3"], [2, 6], [3, 9]
    assert given == [a, no, a, no, c, no, c, d]
    assert desk.ledger.executed == ["a", "no", "c", "d"]
    assert desk.send(session, 1, ["a", "no", "c", "d"]) == [a, no, c, d]


def test_a_sequence_reused_in_the_same_frame_is_refused() -> None:
    desk = Desk()
    session = desk.open()
    assert codes(desk.send_runs((session, 1, ["a"]), (session, 1, ["b", "c"]))) == [[0, 2], "SEQUENCE_REUSED", [1, 4]]
    assert desk.ledger.executed == ["a", "c"]


def test_a_session_may_have_several_runs_in_a_frame_among_others() -> None:
    desk = Desk()
    one, two = desk.open(), desk.open()
    given = desk.send_runs((one, 1, ["a"]), (two, 1, ["b"]), (0, 0, ["c"]), (one, 2, ["d", "e"]), (two, 2, ["f"]))
    assert [reply[0] for reply in given] == [0, 1, 2, 3, 4, 5]
    assert desk.ledger.executed == ["a", "b", "c", "d", "e", "f"]
    assert desk.send(one, 1, ["a", "d", "e"]) == [given[0], given[3], given[4]]
    assert desk.send(two, 1, ["b", "f"]) == [given[1], given[5]]


@pytest.mark.parametrize("share", [SHARED_COMMANDS - 1, SHARED_COMMANDS, 600])
@pytest.mark.parametrize("others", [1, 40])
def test_sessions_that_share_a_frame_are_each_answered_what_they_were(share: int, others: int) -> None:
    desk = Desk()
    one, two = desk.open(), desk.open()
    ones: list[Any] = [["one", number] if number % 7 else "no" for number in range(2 * share)]
    twos: list[Any] = [["two", number] if number % 5 else "no" for number in range(share)]
    first_two = desk.send(two, 1, ["before"])
    given = desk.send_runs(
        (one, 1, ones[:share]),
        (two, 1, ["before"]),  # a retry among new commands
        (two, 2, twos),
        (0, 0, [["x" * 80]] * others),
        (one, share + 1, ones[share:]),
    )
    first_one = given[:share] + given[-share:]
    first_two += given[share + 1 : 2 * share + 1]

    assert desk.send(one, 1, ones) == first_one
    assert desk.send(two, 1, ["before", *twos]) == first_two
    for position in range(0, 2 * share, 9):
        assert desk.send(one, 1 + position, ones[position : position + 2]) == first_one[position : position + 2]
    assert codes(desk.send(two, share, [["two", -1]])) == ["SEQUENCE_REUSED"]
    assert len(desk.ledger.executed) == 1 + 3 * share + others


def test_a_session_with_a_small_part_of_a_long_frame_does_not_hold_the_frame() -> None:
    desk = Desk()
    one, two = desk.open(), desk.open()
    for number in range(50):
        mine, others = [[number]] * 20, [["y" * 100, number]] * 2000
        desk.send_runs((one, 1 + 20 * number, mine), (two, 1 + 2000 * number, others))

    held = {id(block.sheet): len(block.sheet) for block in desk.applier.sessions.replies[one].blocks}
    assert sum(held.values()) < 50 * 20 * SHARED_BYTES


def test_a_frame_is_held_once_by_all_that_share_it() -> None:
    desk = Desk()
    sessions = [desk.open() for _ in range(4)]
    desk.send_runs(*((session, 1, [[number] for number in range(200)]) for session in sessions))

    assert (
        len({id(block.sheet) for session in sessions for block in desk.applier.sessions.replies[session].blocks}) == 1
    )


def test_commands_without_session_execute_whenever_they_come() -> None:
    desk = Desk()
    assert desk.send_runs((0, 0, ["a"]), (0, 0, ["a"])) == [[0, 1], [1, 2]]
    assert desk.send(0, 0, ["a"]) == [[2, 3]]


def test_a_frame_is_one_batch_of_what_executes_in_record_order() -> None:
    desk = Desk()
    one, two = desk.open(), desk.open()
    desk.send_runs((one, 1, ["a", "b"]), (0, 0, ["c"]), (two, 1, ["d"]))
    assert desk.ledger.batches == [4]
    desk.send_runs((one, 2, ["b", "e"]), (77, 1, ["x"]), (two, 9, ["x"]), (0, 0, ["f"]), (two, 1, ["d", "g"]))
    assert desk.ledger.batches == [4, 3]
    assert desk.ledger.executed == ["a", "b", "c", "d", "e", "f", "g"]
    desk.send_runs((one, 1, ["a", "b"]), (77, 1, ["x"]))
    assert desk.ledger.batches == [4, 3]  # Nothing executes, so the machine is not called.


def test_a_frame_says_which_positions_its_sessions_answered() -> None:
    desk = Desk()
    one, two = desk.open(), desk.open()
    new = desk.apply(desk.frames.records(["a", "no"], one, 1))
    assert list(new.answered) == []
    assert list(desk.apply(desk.frames.records(["a"])).answered) == []
    partly = desk.apply(desk.frames.records(["a", "no", "c"], one, 1))
    assert list(partly.answered) == [0, 1]
    runs = [Run(two, 1, 1), Run(one, 3, 2), Run(two, 1, 1), Run(77, 1, 1), Run(two, 9, 1), Run(0, 0, 1)]
    among = desk.apply(desk.frames.runs(runs, ["d", "c", "e", "d", "x", "x", "f"]))
    assert list(among.answered) == [1, 3, 4, 5]  # Recorded, in this frame before, unknown, a gap.
    assert list(desk.apply(desk.frames.system({"type": "open_session"})).answered) == []


@pytest.mark.parametrize(
    ("commands", "decided"),
    [
        (["a", "x", "x"], ["SEQUENCE_REUSED", "SESSION_EXPIRED"]),
        (["a", "b", "x"], ["SESSION_EXPIRED"]),
        (["a", "no", "x"], ["NO", "SESSION_EXPIRED"]),
    ],
)
def test_replies_that_sessions_decide_stand_in_the_digest_like_the_machine_s(
    commands: list[Any], decided: list[str]
) -> None:
    desk = Desk()
    session = desk.open()
    desk.send(session, 1, ["a", "b"] if "no" not in commands else ["a"])
    before = desk.applier.digest
    frame = desk.frames.runs([Run(session, 1, 2), Run(77, 1, 1)], commands)
    applied = desk.apply(frame)
    assert applied.results[0] == [0, 2]
    assert [code for _, code, _ in applied.refused] == decided
    text = before + struct.pack("<QI", frame.header.index, frame.header.crc32c) + pack(list(applied[3:5]))
    assert desk.applier.digest == blake2b(text, digest_size=16).digest()


def test_a_failure_names_the_index_of_its_record_whatever_was_left_out_before_it() -> None:
    desk = Desk()
    desk.applier = Applier(OneByOne(), boundary=boundary_at(1))
    session = desk.open()
    desk.send(session, 1, ["a", "b"])
    with pytest.raises(ApplyFailed) as failure:
        desk.send(session, 1, ["a", "b", "c", "boom"])
    assert failure.value.index == 4 + 3
    found = desk.applier.sessions.find(session)
    assert found is not None
    assert found.sequence == 2  # Like applied_index, at the last whole frame.


class OneByOne(Ledger):
    """A ledger without `apply_batch` of its own."""

    apply_batch = None  # type: ignore[assignment]


def test_blobs_are_answered_by_their_session() -> None:
    frames = Frames(index=1)
    applier = Applier(LogMachine(), boundary=boundary_at(1))
    applier.apply(frames.system({"type": "open_session", "name": None}))
    for value, code in ((b"a" * 1000, []), (b"a" * 1000, []), (b"b" * 1000, ["SEQUENCE_REUSED"])):
        applied = applier.apply(frames.blob(value, session=1, sequence=1))
        assert [refusal[1] for refusal in applied.refused] == code


@pytest.mark.parametrize("count", [1, 20])
def test_the_headers_of_a_record_are_no_part_of_its_command(count: int) -> None:
    desk = Desk()
    session = desk.open()
    first = desk.send(session, 1, [Record("a", {"trace": "1"})] * count)
    assert desk.send(session, 1, ["a"] * count) == first
    assert desk.send(session, 1, [Record("a", {"trace": "2"})]) == first[:1]
    assert codes(desk.send(session, 1, [Record("b", {"trace": "1"})])) == ["SEQUENCE_REUSED"]


def test_long_commands_are_kept_as_digests() -> None:
    desk = Desk()
    session = desk.open()
    commands = [["x" * 10_000, number] for number in range(200)]
    first = send_in_batches(desk, session, 50, commands[:150]) + desk.send_runs((session, 151, commands[150:]))
    for number in range(20):
        first += desk.send(session, 1 + len(first), [["y" * 999, number]])
    replies = desk.applier.sessions.replies[session]
    assert sum(len(block.sheet) for block in replies.blocks) + len(pack(replies.commands)) < 220 * 40
    assert desk.send(session, 1, [*commands, *[["y" * 999, number] for number in range(20)]]) == first
    assert codes(desk.send(session, 7, [["x" * 10_000, 7], commands[7]])) == ["SEQUENCE_REUSED", first[7]]


@pytest.mark.parametrize("size", [1, 15, 100, 5000])
@pytest.mark.slow
def test_what_is_kept_is_bounded_by_the_window(size: int) -> None:
    desk = Desk(session_window=1000)
    session = desk.open()
    send_in_batches(desk, session, size, [[number] for number in range(20_000)])
    replies = desk.applier.sessions.replies[session]
    assert 20_001 - replies.block_starts[0] < 1000 + size + 2 * TAIL_COMMANDS
    assert len(replies.blocks) == len(replies.block_starts) < 100
    assert len(replies.commands) < 64


class Unreadable(Ledger):
    """Its results can be packed but not unpacked: a map whose key is an array."""

    def apply(self, command: Any, context: Context) -> Any:
        return {(1, 2): 3}


def test_a_reply_that_cannot_be_read_back_stops_applying_rather_than_execute_again() -> None:
    desk = Desk()
    desk.applier = Applier(Unreadable(), boundary=boundary_at(1))
    session = desk.open()
    desk.send(session, 1, COMMANDS[:100])
    with pytest.raises(ApplyFailed) as failure:
        desk.send(session, 1, COMMANDS[:1])
    assert "read back" in failure.value.text


def test_arithmetic_under_a_session_gives_recorded_results_and_refusals() -> None:
    frames = Frames(index=1)
    applier = Applier(ArithmeticMachine(), boundary=boundary_at(1), sessions=Sessions())
    applier.apply(frames.system({"type": "open_session", "name": "class"}))
    commands = [["add", 3], ["mul", "1e9999"], ["div", 5]]
    first = applier.apply(frames.records(commands, session=1, sequence=1))
    assert first.results == ["45", None, "9"]
    again = applier.apply(frames.records([*commands, ["mul", 2]], session=1, sequence=1))
    assert again.results == [*first.results, "18"]
    assert again.refused == first.refused
    assert applier.state() == "18"


@pytest.mark.parametrize("sizes", [[1] * 40, [40], [16, 3, 21]])
def test_the_same_frames_under_a_table_from_scratch_give_equal_digests(sizes: list[int]) -> None:
    desk = Desk(session_window=10, max_sessions=2)
    session, sequence = desk.open("a"), 1
    for size in sizes:
        desk.send(session, sequence, COMMANDS[:size])
        desk.send_runs((session, sequence + size - 1, COMMANDS[size - 1 : size + 2]), (0, 0, ["b"]))
        sequence += size + 2
    desk.open("a")
    desk.send(session, sequence, ["fenced"])
    again = desk.again()
    assert (again.digest, again.state()) == (desk.applier.digest, desk.applier.state())
