"""Sessions against a model that remembers everything: random opens, closes, retries in any grouping, mistakes.

The model follows the table in sm/DESIGN.md, a record at a time, without window, blocks or batches to get wrong.
"""

from typing import Any

import pytest
from hypothesis import note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from quire.log import SESSION_TTL, Kind, pack, stored_records
from quire.sm import Executed, Sessions, SessionStatus
from tests.sm.ledger import Desk, codes, replies

MAX_SESSIONS = 4
TTL_S = 10
NAMES = st.sampled_from([None, "a", "b", "c"])
OWNERS = st.sampled_from([None, None, "x", "y"])
COUNTS = st.one_of(st.integers(1, 4), st.sampled_from([15, 16, 17, 40, 63, 64, 65, 130]))


class History:
    """All that one session, under whatever ids, was ever answered."""

    def __init__(self, number: int, name: str | None) -> None:
        self.number = number
        self.name = name
        self.owner: str | None = None
        self.answered: list[tuple[bytes, Any]] = []


class Model:
    """Answers and executes one record at a time."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.histories: list[History] = []
        self.open: dict[int, History] = {}
        self.fenced: list[int] = []
        self.executed: list[Any] = []
        self.now = 0.0
        self.used: dict[int, float] = {}
        self.expires = False

    def open_session(self, index: int, name: str | None, owner: str | None) -> Any:
        others = [each for each in self.open.values() if name and each.name == name and each.owner not in (None, owner)]
        self.expire(None if others else name)
        for old, history in self.open.items():
            if name is not None and history.name == name:
                if others:
                    return "SESSION_OWNED"
                del self.open[old]
                self.fenced = [*self.fenced, old][-MAX_SESSIONS:]
                break
        else:
            if len(self.open) == MAX_SESSIONS:
                unnamed = [old for old, history in self.open.items() if not history.name]
                if not unnamed:
                    return "SESSIONS_FULL"
                del self.open[unnamed[0]]
            history = History(len(self.histories), name)
            self.histories.append(history)
        history.owner = owner
        self.open[index] = history
        self.used[index] = self.now
        return {"session": index, "sequence": len(history.answered)}

    def expire(self, but: str | None) -> None:
        for session, history in list(self.open.items()):
            idle = self.now - self.used[session] >= TTL_S
            if self.expires and idle and (but is None or history.name != but):
                del self.open[session]

    def use_expiry(self) -> None:
        if not self.expires:
            self.expires = True
            self.used = dict.fromkeys(self.used, self.now)

    def close_session(self, session: int) -> Any:
        if session not in self.open:
            return self.absence(session)
        return {"session": session, "sequence": len(self.open.pop(session).answered)}

    def absence(self, session: int) -> str:
        return "SESSION_FENCED" if session in self.fenced else "SESSION_EXPIRED"

    def execute(self, command: Any, index: int) -> Any:
        before = len(self.executed)
        self.executed.append(command)
        return ["NO", f"{before}, {index}"] if "no" in command else [before, index]

    def answer(self, session: int, sequence: int, command: Any, index: int) -> Any:
        if session == 0:
            return self.execute(command, index)
        if session not in self.open:
            return [self.absence(session)]
        self.open[session] = self.open.pop(session)  # Used last.
        self.used[session] = self.now
        answered = self.open[session].answered
        if sequence > len(answered) + 1:
            return ["SEQUENCE_GAP"]
        if sequence < 1 or sequence <= len(answered) - self.window:
            return ["REPLY_GONE"]
        if sequence == len(answered) + 1:
            answered.append((pack(command), self.execute(command, index)))
        known, reply = answered[sequence - 1]
        return reply if known == pack(command) else ["SEQUENCE_REUSED"]


class SessionsAgainstModel(RuleBasedStateMachine):
    @initialize(window=st.sampled_from([1, 3, 64, 100, 10_000]))
    def start(self, window: int) -> None:
        limits = {"session_window": window, "max_sessions": MAX_SESSIONS, "session_ttl_s": TTL_S}
        self.desk = Desk(**limits)
        self.reader = Executed(Sessions(**limits), 0)
        self.read: list[Any] = []
        self.frames_read = 0
        self.model = Model(window)
        self.ids: dict[int, int] = {}  # each id ever opened, to the number of its history

    @rule(name=NAMES, owner=OWNERS)
    def open(self, name: str | None, owner: str | None) -> None:
        applied = self.desk.try_open(name, owner)
        assert (applied.results[0] or applied.refused[0][1]) == self.model.open_session(applied.index, name, owner)
        if applied.results[0]:
            self.ids[applied.index] = self.model.open[applied.index].number

    @precondition(lambda self: self.ids)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from([*self.ids, 10_000]))
        [answer] = codes(replies(self.desk.close(session)))
        assert answer == self.model.close_session(session)

    @rule(data=st.data())
    def send(self, data: st.DataObject) -> None:
        run = self.draw_run(data)
        self.check(self.desk.send(*run), run)

    @rule(data=st.data())
    def send_runs(self, data: st.DataObject) -> None:
        runs = [self.draw_run(data) for _ in range(data.draw(st.integers(1, 6)))]
        self.check(self.desk.send_runs(*runs), *runs)

    @rule(seconds=st.sampled_from([0.5, 4, TTL_S - 0.000001, TTL_S]))
    def pass_time(self, seconds: float) -> None:
        self.desk.pass_time(seconds)
        self.model.now += seconds

    @rule()
    def use_expiry(self) -> None:
        self.desk.use_features(SESSION_TTL)
        self.model.use_expiry()

    @precondition(lambda self: self.ids and self.model.expires)
    @rule(data=st.data())
    def close_all(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from([*self.ids, 10_000]), max_size=4))
        expected = [session for session in dict.fromkeys(chosen) if session in self.model.open]
        assert self.desk.close_all(*chosen).results == [{"closed": expected}]
        for session in expected:
            del self.model.open[session]

    @rule()
    def restart_from_a_snapshot(self) -> None:
        self.desk.restart()

    def check(self, given: list[Any], *runs: tuple[int, int, list[Any]]) -> None:
        """Replies and executions equal the model's. (The model has only the codes of a session's refusals.)"""
        note(str([(session, sequence, len(commands)) for session, sequence, commands in runs]))
        first = self.desk.applier.applied_index - len(given)
        expected: list[Any] = []
        for session, sequence, commands in runs:
            for at, command in enumerate(commands, sequence):
                expected.append(self.model.answer(session, at, command, first + len(expected)))
        for reply, wanted in zip(given, expected, strict=True):
            assert reply[: len(wanted)] == wanted
        assert self.desk.ledger.executed == self.model.executed

    def draw_run(self, data: st.DataObject) -> tuple[int, int, list[Any]]:
        """A session, usually an open one, and commands around its next sequence; sometimes changed ones."""
        session = data.draw(st.sampled_from([*self.model.open, *self.model.open, *self.ids, 0, 10_000]))
        number = self.ids.get(session, -1)
        at_end = len(self.model.histories[number].answered) + 1 if number >= 0 else 1
        nearly = st.integers(-5, 2).map(lambda offset: at_end + offset)
        window_end = at_end - self.model.window
        sequence = data.draw(
            st.one_of(
                st.just(at_end),
                nearly,
                st.integers(1, at_end),
                st.integers(window_end - 2, window_end + 2),
            )
        )
        sequence = max(0, sequence) if session else 0
        count = data.draw(COUNTS)
        others = data.draw(st.sets(st.integers(0, count - 1), max_size=2)) if data.draw(st.booleans()) else set()
        return session, sequence, [command_of(number, sequence + at, at in others) for at in range(count)]

    @invariant()
    def every_session_stands_where_the_model_does(self) -> None:
        for session in getattr(self, "ids", ()):
            history = self.model.open.get(session)
            expected = history and SessionStatus(session, history.name, len(history.answered), history.owner)
            assert self.desk.applier.sessions.find(session) == expected

    @invariant()
    def a_reader_of_the_log_tells_which_commands_executed(self) -> None:
        desk = getattr(self, "desk", None)
        for frame in desk.log[self.frames_read :] if desk is not None else ():
            self.frames_read += 1
            for index, _, timestamp, kind, _, value, session, sequence in stored_records(frame):
                if kind == Kind.SYSTEM:
                    assert isinstance(value, dict)
                    self.reader.take_system(index, timestamp, value)
                elif self.reader.executes(index, timestamp, session, sequence):
                    self.read.append(value)
        if desk is not None:
            assert self.read == self.model.executed
            assert self.reader.assumed is None

    @invariant()
    def no_sequence_of_a_session_executed_twice(self) -> None:
        if hasattr(self, "desk"):
            under_session = [tuple(command[:2]) for command in self.desk.ledger.executed if command[0] >= 0]
            assert len(set(under_session)) == len(under_session)

    def teardown(self) -> None:
        if hasattr(self, "desk"):
            again = self.desk.again()
            assert (again.digest, again.state()) == (self.desk.applier.digest, self.model.executed)
            # However often it restarted, it writes what a replica that never restarted would write.
            assert b"".join(again.content()) == self.desk.content()


def command_of(number: int, sequence: int, other: bool) -> list[Any]:
    """The command that history `number` gives this sequence, or another; every third history's are long."""
    command = [number, sequence, other, "no" if sequence % 7 == 0 else "yes"]
    return [*command, "x" * 200] if number % 3 == 2 else command


SessionsAgainstModel.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
test_sessions_agree_with_a_model_that_remembers_everything = pytest.mark.slow(SessionsAgainstModel.TestCase)
