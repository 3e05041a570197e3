"""What sessions hold in memory for retries: bounded for each, bounded for all, and nothing executes twice for it."""

from typing import Any

import pytest

from quire.log import Frame, Run, pack
from quire.sm import Applier, Context, Sessions
from quire.sm.sessions.replies import TAIL_BYTES, TAIL_COMMANDS
from tests.cluster.machines import Wide
from tests.sm.frames import Frames, boundary_at
from tests.sm.ledger import codes, replies

LENGTH = TAIL_BYTES  # Of a result that is a block by itself.
BLOCK = len(pack([[LENGTH], [["x" * LENGTH], []]]))


class Counting(Wide):
    """Returns results of the length that a command asks for, and counts its executions."""

    def __init__(self, initial: Any = None) -> None:
        super().__init__(initial)
        self.executed = 0

    def apply(self, command: Any, context: Context) -> Any:
        self.executed += 1
        return super().apply(command, context)


class Desk:
    """Sessions with a log of frames before an applier."""

    def __init__(self, **limits: int) -> None:
        self.frames, self.machine = Frames(index=1), Counting()
        self.limits, self.log = limits, list[Frame]()
        self.applier = Applier(self.machine, boundary=boundary_at(1), sessions=Sessions(**limits))

    def apply(self, frame: Frame) -> list[Any]:
        self.log.append(frame)
        given = codes(replies(self.applier.apply(frame)))
        sessions = self.applier.sessions
        assert sessions.size == sum(held.size for held in sessions.replies.values())
        for held in sessions.replies.values():
            assert held.size == sum(block.size for block in held.blocks) + held.tail_size
            assert held.tail_size >= (len(pack([held.commands, held.results])) - 8 if held.commands else 0)
            assert len(held.commands) < TAIL_COMMANDS
            assert held.tail_size < TAIL_BYTES
            assert held.size - held.tail_size <= sessions.session_bytes
        assert sessions.size <= sessions.sessions_bytes
        return given

    def open(self, name: str | None = None) -> int:
        [answer] = self.apply(self.frames.system({"type": "open_session", "name": name}))
        return int(answer["session"])

    def send(self, session: int, sequence: int, *lengths: int) -> list[Any]:
        """For each record the length of its answer, or a code."""
        return _lengths(self.apply(self.frames.records(lengths, session, sequence)))

    def send_runs(self, *runs: tuple[int, int, list[int]]) -> list[Any]:
        headers = [Run(session, sequence, len(lengths)) for session, sequence, lengths in runs]
        return _lengths(self.apply(self.frames.runs(headers, [length for run in runs for length in run[2]])))


def _lengths(given: list[Any]) -> list[Any]:
    return [len(reply) if set(reply) <= {"x"} else reply for reply in given]


def test_a_session_keeps_its_bytes_and_not_one_more() -> None:
    for limit, first in ((3 * BLOCK, LENGTH), (3 * BLOCK - 1, "REPLY_GONE")):
        desk = Desk(session_bytes=limit)
        session = desk.open("a")
        for sequence in (1, 2, 3):
            desk.send(session, sequence, LENGTH)
        assert desk.send(session, 1, LENGTH, LENGTH, LENGTH) == [first, LENGTH, LENGTH]
        assert desk.send(session, 4, 1) == [1]
        assert desk.machine.executed == 4


def test_what_an_old_block_held_is_given_back_when_it_goes_and_not_what_the_new_one_holds() -> None:
    desk = Desk(session_bytes=3 * BLOCK)
    session = desk.open("a")
    for sequence in range(1, 4):
        desk.send(session, sequence, LENGTH)
    [held] = desk.applier.sessions.replies.values()
    before = held.size
    desk.send(session, 4, 2 * LENGTH)
    assert held.size == sum(block.size for block in held.blocks) + held.tail_size
    assert 0 < held.size <= before


def test_a_reply_that_is_longer_than_all_a_session_may_keep_is_gone_at_once() -> None:
    desk = Desk(session_bytes=BLOCK - 1)
    session = desk.open()
    assert desk.send(session, 1, 5, LENGTH, 5) == [5, LENGTH, 5]
    assert desk.send(session, 1, 5, LENGTH, 5) == ["REPLY_GONE"] * 3
    assert desk.send(session, 4, 5) == [5]
    assert desk.send(session, 3, 5, 5) == ["REPLY_GONE", 5]
    assert desk.machine.executed == 4


def test_the_shares_of_a_frame_that_sessions_hold_together_are_no_more_than_the_frame() -> None:
    desk = Desk()
    sessions = [desk.open() for _ in range(4)]
    desk.send_runs(*((session, 1, [100] * 25) for session in sessions))
    sheets = {id(block.sheet): block.sheet for held in desk.applier.sessions.replies.values() for block in held.blocks}
    [sheet] = sheets.values()
    assert len(sheet) <= desk.applier.sessions.size < len(sheet) + len(sessions)


@pytest.mark.parametrize(("spare", "evicted"), [(0, 0), (-1, 1), (-BLOCK, 1), (-BLOCK - 1, 2)])
def test_all_sessions_together_keep_their_bytes_and_beyond_it_those_used_longest_ago_go(
    spare: int, evicted: int
) -> None:
    desk = Desk(sessions_bytes=4 * BLOCK + spare)
    sessions = [desk.open("a"), *(desk.open() for _ in range(3))]
    for session in sessions:
        desk.send(session, 1, LENGTH)
    given = [desk.send(session, 1, LENGTH) for session in sessions]
    assert given == [[LENGTH], *[["SESSION_EXPIRED"]] * evicted, *[[LENGTH]] * (3 - evicted)]
    assert desk.machine.executed == 4


def test_where_all_have_names_the_one_used_longest_ago_forgets_its_replies_and_keeps_its_sequence() -> None:
    desk = Desk(sessions_bytes=2 * BLOCK)
    first, second, third = (desk.open(name) for name in "abc")
    for session in (first, second, third):
        assert desk.send(session, 1, LENGTH) == [LENGTH]
    assert desk.send(first, 1, LENGTH, 7) == ["REPLY_GONE", 7]
    assert desk.send(third, 1, LENGTH) == [LENGTH]
    again = desk.open("a")
    assert desk.send(again, 1, LENGTH, 7, 8) == ["REPLY_GONE", 7, 8]
    assert desk.machine.executed == 5


def test_a_session_that_holds_nothing_is_not_evicted_for_bytes() -> None:
    desk = Desk(sessions_bytes=BLOCK)
    empty, first, second = desk.open(), desk.open(), desk.open()
    desk.send(first, 1, LENGTH)
    desk.send(second, 1, LENGTH)
    assert [desk.send(session, 1, 5) for session in (empty, first)] == [[5], ["SESSION_EXPIRED"]]


def test_closing_and_evicting_give_the_bytes_back() -> None:
    desk = Desk(max_sessions=2)
    first, second = desk.open(), desk.open()
    desk.send_runs((first, 1, [LENGTH] * 2), (second, 1, [10] * 70))
    desk.apply(desk.frames.system({"type": "close_session", "session": first}))
    assert 0 < desk.applier.sessions.size < 70 * 200
    desk.open()
    desk.open()
    assert desk.applier.sessions.size == 0


def test_replicas_that_applied_the_same_hold_the_same_a_restored_one_too() -> None:
    desk = Desk(session_bytes=2 * BLOCK, sessions_bytes=5 * BLOCK, max_sessions=3)
    sessions = [desk.open(name) for name in ("a", None, "b", None)]
    for sequence in range(1, 9):
        desk.send_runs(*((session, sequence, [LENGTH // (1 + sequence % 3)]) for session in sessions))
    other = Applier(Counting(), boundary=boundary_at(1), sessions=Sessions(**desk.limits))
    for frame in desk.log:
        other.apply(frame)
    sessions_again = Sessions(**desk.limits)
    restored = Applier.restored(other.content(), other.boundary, Counting(), sessions_again, "a snapshot")
    desk.send_runs(*((session, 9, [5]) for session in sessions))
    for replica in (other, restored):
        replica.apply(desk.log[-1])
        assert replica.digest == desk.applier.digest
        assert replica.sessions.size == desk.applier.sessions.size
        assert list(replica.sessions.replies) == list(desk.applier.sessions.replies)
        assert b"".join(replica.content()) == b"".join(desk.applier.content())
