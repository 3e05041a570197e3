"""Which records executed, told from a log whose beginning has expired. (test_session_model has whole logs.)"""

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import pytest

from quire.sm import Executed, Sessions

LOWEST = 100
SECOND = 1_000_000
OPEN_A = {"type": "open_session", "name": "a"}
Told = Mapping[str, Any] | tuple[int, int]


def told(*records: Told, sessions: Sessions | None = None, seconds: int = 1) -> tuple[list[int], int]:
    """The positions, from LOWEST on, of the (session, sequence) that executed; and how many were assumed to."""
    reader = Executed(sessions or Sessions(), LOWEST)
    executed: list[int] = []
    for index, record in enumerate(records, LOWEST):
        if isinstance(record, Mapping):
            reader.take_system(index, index * SECOND * seconds, record)
        elif reader.executes(index, index * SECOND * seconds, *record):
            executed.append(index)
    return [index - LOWEST for index in executed], reader.assumed.count if reader.assumed else 0


def test_of_a_session_of_before_only_what_was_told_before_is_a_retry() -> None:
    assert told((7, 50), (7, 51), (7, 50), (7, 53), (9, 4), (7, 52), (7, 53), (0, 0)) == ([0, 1, 3, 4, 5, 7], 5)


def test_after_a_history_record_only_sessions_that_were_opened_later_execute() -> None:
    history = {"type": "history"}
    executed, _ = told(OPEN_A, (LOWEST, 1), history, (LOWEST, 2), (7, 51), OPEN_A, (LOWEST + 5, 1), (LOWEST + 5, 2))
    assert executed == [1, 6, 7]  # The log does not show what the name had before: nothing may be left out.


def test_the_records_that_were_assumed_are_counted_from_the_first_to_the_last() -> None:
    reader = Executed(Sessions(), LOWEST)
    assert reader.assumed is None
    assert [reader.answered(LOWEST, 0, 7, 50, 3), reader.answered(LOWEST + 9, 0, 7, 52, 4)] == [0, 1]
    assert reader.assumed == (6, LOWEST, LOWEST + 12)


def test_a_session_that_the_log_would_show_to_be_opened_and_does_not_executes_nothing() -> None:
    assert told((LOWEST, 1), (LOWEST + 50, 1)) == ([], 0)


def test_an_unnamed_session_that_is_opened_in_the_log_begins_at_one() -> None:
    assert told({"type": "open_session", "name": None}, (LOWEST, 2), (LOWEST, 1), (LOWEST, 2)) == ([2, 3], 2)


def test_a_name_may_go_on_from_before_when_it_is_first_opened_and_is_known_after_that() -> None:
    records = (OPEN_A, (LOWEST, 50), OPEN_A, (LOWEST, 51), (LOWEST + 2, 50), (LOWEST + 2, 51))
    assert told(*records) == ([1, 5], 2)


def test_a_name_that_is_opened_twice_before_its_first_record_may_still_go_on_from_before() -> None:
    assert told(OPEN_A, OPEN_A, (LOWEST, 50), (LOWEST + 1, 50), (LOWEST + 1, 50)) == ([3], 1)


@pytest.mark.parametrize(
    "closing", [{"type": "close_session", "session": 7}, {"type": "close_sessions", "sessions": [7]}]
)
def test_a_session_of_before_that_was_closed_executes_nothing_more(closing: Mapping[str, Any]) -> None:
    assert told(closing, (7, 50)) == ([], 0)
    assert told((7, 50), closing, (7, 51)) == ([0], 1)


def test_a_name_that_was_closed_begins_anew() -> None:
    closing = {"type": "close_session", "session": LOWEST}
    assert told(OPEN_A, (LOWEST, 50), closing, OPEN_A, (LOWEST + 3, 51), (LOWEST + 3, 1)) == ([1, 5], 2)


def test_nothing_expires_or_is_evicted_where_the_log_does_not_show_what_was() -> None:
    other, unnamed = {"type": "open_session", "name": "other"}, {"type": "open_session", "name": None}
    few = Sessions(session_ttl_s=10, max_sessions=1)
    few.expire_from(0)
    assert told(unnamed, (LOWEST, 1), other, (LOWEST, 2), (LOWEST + 2, 1), sessions=few, seconds=10) == ([1, 3, 4], 3)


def test_a_name_that_was_not_used_for_long_may_go_on_or_begin_anew() -> None:
    records = (OPEN_A, (LOWEST, 50), OPEN_A, (LOWEST + 2, 1), (LOWEST + 2, 51), (LOWEST + 2, 1))
    assert told(*records, sessions=Sessions(session_ttl_s=2)) == ([1, 3, 4], 3)


def test_what_a_replica_knows_of_a_record_is_taken() -> None:
    reader = Executed(Sessions(), LOWEST)
    executed = [
        reader.executes(LOWEST, 0, 7, 50, known=True),
        reader.executes(LOWEST + 1, 0, 7, 49),  # From here on it is sure.
        reader.executes(LOWEST + 2, 0, 7, 51),
        reader.executes(LOWEST + 3, 0, 7, 52, known=False),
        reader.executes(LOWEST + 4, 0, LOWEST, 1, known=True),
        reader.executes(LOWEST + 5, 0, 0, 0, known=True),
    ]
    assert executed == [True, False, True, False, True, True]
    assert reader.assumed == (1, LOWEST + 2, LOWEST + 2)


def test_no_record_executes_under_sequence_0() -> None:
    assert told((7, 0), (7, 3)) == ([1], 1)


def test_a_record_under_sequence_0_is_a_use_of_its_session() -> None:
    reader = Executed(Sessions(max_sessions=2), 0)
    for index in (0, 1):
        reader.take_system(index, index, {"type": "open_session", "name": None})
    assert not reader.executes(2, 2, 0 + 1, 0)
    reader.take_system(3, 3, {"type": "open_session", "name": None})  # It evicts the one that was not used since.
    assert reader.executes(4, 4, 1, 1)


class Writers:
    """Writers that open sessions, retry, skip, are fenced, and are away for long; what they write is a log."""

    def __init__(self, random: Random, owners: Sequence[str | None]) -> None:
        self.random = random
        self.owners = owners
        self.now = 0
        self.sent: dict[int, int] = {}  # By session, what its writer would send next.
        self.names: dict[int, str | None] = {}

    def next(self, index: int) -> Told:
        """The record at an index. A sequence is of one command under all sessions of a name."""
        random = self.random
        self.now += random.choice((0, 1, 1, 30)) * SECOND
        if not self.sent or random.random() < 0.2:
            name = random.choice([None, "a", "b", "c"])
            held = [self.sent[session] for session in self.sent if name is not None and self.names[session] == name]
            self.sent[index], self.names[index] = max(1, (held or [1])[-1] - random.randrange(3)), name
            owner = random.choice(self.owners)
            return {"type": "open_session", "name": name} | ({} if owner is None else {"owner": owner})
        session = random.choice(list(self.sent))
        if random.random() < 0.05:
            return {"type": "close_session", "session": session}
        sequence = max(1, self.sent[session] + random.choice((0, 0, 0, 0, 1, -1, -2)))
        self.sent[session] = max(self.sent[session], sequence + 1)
        return session, sequence


@pytest.mark.parametrize("owners", [[None], ["x", "y", "x", None]], ids=["unowned", "owned"])
@pytest.mark.parametrize("seed", range(300))
def test_no_command_that_executed_is_left_out_of_a_log_whose_beginning_expired(
    seed: int, owners: list[str | None]
) -> None:
    random = Random(seed)
    writers, limits = Writers(random, owners), {"session_ttl_s": 100, "max_sessions": 6}
    whole, lowest = Executed(Sessions(**limits), 0), random.randrange(1, 100)
    rest = Executed(Sessions(**limits), lowest)
    executed: Counter[tuple[str | int, int]] = Counter()
    exported: Counter[tuple[str | int, int]] = Counter()
    whole.take_system(0, 0, {"type": "features", "names": ["session_ttl"]})
    for index in range(1, 200):
        record = writers.next(index)
        if isinstance(record, Mapping):
            whole.take_system(index, writers.now, record)
            if index >= lowest:
                rest.take_system(index, writers.now, record)
            continue
        session, sequence = record
        command = writers.names[session] or session, sequence
        if whole.executes(index, writers.now, session, sequence) and index >= lowest:
            executed[command] += 1
        if index >= lowest and rest.executes(index, writers.now, session, sequence):
            exported[command] += 1
    assert executed <= exported  # For each command: one of a name that was closed has another life.
