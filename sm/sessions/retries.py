"""Which records of a frame execute, and which are retries or mistakes that their session answers.

This is decided before anything executes, because it depends on sequences and commands alone, never on a result. So the
records that execute form one batch, in record order. Sequences rise by one within a run, so a run consists of at most
four parts, in this order; a run that starts above the next sequence is a SEQUENCE_GAP as a whole.

    gone       below the window, or dropped            REPLY_GONE
    recorded   answered in an earlier frame            the recorded reply, or SEQUENCE_REUSED
    pending    executes at an earlier position here    the reply of that position, or SEQUENCE_REUSED
    new                                                executes

A refusal uses up no sequence.
"""

from collections.abc import Callable, Sequence

from quire.log import Frame, Kind, pack

from ..machine import RefusalRow, Refused
from .replies import (
    SHARED_BYTES,
    SHARED_COMMANDS,
    SHEET_COMMANDS,
    Bounds,
    Replies,
    command_digest,
    same_command,
    sheet_of_frame,
)
from .table import Sessions

SHORT_REPLY_BYTES = 4096  # If a frame's whole reply is shorter, its results are not measured one by one.
LONG_COMMAND_BYTES = 128  # Above this average length, digests are kept instead of a frame's commands.


class Verdicts:
    """What happens to each record of a frame. Call `judge`; after execution call `replies`, then `record`."""

    __slots__ = ("_answered", "_commands", "_copied", "_executing", "_sessions", "_timestamp")

    def __init__(self, sessions: Sessions, commands: Sequence[object], timestamp: int) -> None:
        """`timestamp` is that of the frame."""
        self._sessions = sessions
        self._timestamp = timestamp
        self._commands = commands
        self._answered: dict[int, object] = {}  # The result or Refused of positions that a session answers.
        self._copied: dict[int, int] = {}  # Positions that get the reply of an earlier position of this frame.
        self._executing: list[Replies] = []  # Of the sessions with pending commands.

    def judge(self, runs: Sequence[tuple[int, int, int]]) -> None:
        """Judge each run (session, sequence, count), and advance the sequences of what will execute."""
        table, executing = self._sessions.replies, self._executing
        position = 0
        for session, sequence, count in runs:
            if session:
                replies = table.get(session)
                if replies is not None and replies.next_sequence == sequence:  # The normal case: all new.
                    if not replies.pending_count:
                        executing.append(replies)
                    replies.reserve(position, count)
                    self._sessions.used(session, self._timestamp)
                elif replies is None:
                    refusal = self._sessions.refusal(session)
                    self._answered.update(dict.fromkeys(range(position, position + count), refusal))
                else:
                    self._sessions.used(session, self._timestamp)
                    self._judge_run(replies, session, sequence, range(position, position + count))
            position += count

    def positions(self) -> list[int] | None:
        """The positions that execute, in order; None if all do."""
        if self._all_execute:
            return None
        return [at for at in range(len(self._commands)) if at not in self._answered and at not in self._copied]

    def answered(self) -> Sequence[int]:
        """The positions that a session answers, ascending; the others execute."""
        return () if self._all_execute else sorted((*self._answered, *self._copied))

    def replies(self, executed: list[object]) -> list[object]:
        """The result or Refused of every record, given those of the executed records."""
        if self._all_execute:
            return executed
        answered, executed_next = self._answered, iter(executed)
        replies: list[object] = []
        for position in range(len(self._commands)):
            if position in answered:
                replies.append(answered[position])
            elif position in self._copied:
                replies.append(replies[self._copied[position]])
            else:
                replies.append(next(executed_next))
        return replies

    def record(self, frame: Frame, results: list[object], refused: list[RefusalRow], packed_reply: bytes) -> None:
        """Record the replies of the executed commands with their sessions."""
        executing = self._executing
        if not executing:
            return
        before = sum([replies.size for replies in executing])
        commands, sessions = self._commands, self._sessions
        bounds = Bounds(sessions.session_window, sessions.session_bytes)
        if len(frame.payload) > LONG_COMMAND_BYTES * len(commands):
            others, commands = executing, self._shortened()
        else:
            others = self._share(frame, packed_reply, bounds)
        if others:
            refused_at = {position: [code, text] for position, code, text in refused}
            size_of = _sizes(frame, results, refused_at, packed_reply)
            for replies in others:
                replies.record(commands, results, refused_at, bounds, size_of)
        sessions.grew(sum([replies.size for replies in executing]) - before)

    def _share(self, frame: Frame, packed_reply: bytes, bounds: Bounds) -> list[Replies]:
        """Record the frame's own bytes with the sessions that have enough of its commands; return the others."""
        count = len(self._commands)
        if count > SHEET_COMMANDS or frame.header.kind == Kind.BLOB:
            return self._executing
        share = -(-(len(frame.payload) + len(packed_reply)) // SHARED_BYTES)
        enough = max(SHARED_COMMANDS, min(count, share))
        others, sheet = [], b""
        for replies in self._executing:
            if replies.pending_count < enough:
                others.append(replies)
            else:
                sheet = sheet or sheet_of_frame(frame, packed_reply)
                of_runs = frame.header.kind == Kind.RUNS
                replies.record_sheet(sheet, bounds, of_runs=of_runs, commands=count)
        return others

    @property
    def _all_execute(self) -> bool:
        return not self._answered and not self._copied

    def _judge_run(self, replies: Replies, session: int, sequence: int, positions: range) -> None:
        """Judge the records of a run that is not all new."""
        window = self._sessions.session_window
        next_sequence, recorded_end = replies.next_sequence, replies.recorded_end
        run = range(sequence, sequence + len(positions))
        if sequence > next_sequence:
            for at, position in zip(run, positions, strict=True):
                text = f"session {session} goes on with sequence {next_sequence}, not {at}"
                self._answered[position] = Refused("SEQUENCE_GAP", text)
            return
        lowest = max(1, next_sequence - window, replies.kept_from)
        first = max(sequence, lowest)
        for at in range(sequence, min(run.stop, lowest)):
            text = f"session {session} keeps replies from sequence {lowest} on, the last {window} at most; {at} is gone"
            self._answered[positions[at - sequence]] = Refused("REPLY_GONE", text)
        for at, recorded in enumerate(replies.read(first, min(run.stop, recorded_end)), first):
            position = positions[at - sequence]
            same = recorded.is_of(self._commands[position])
            self._answered[position] = recorded.reply if same else _reused(session, at)
        for at in range(max(first, recorded_end), min(run.stop, next_sequence)):
            position, original = positions[at - sequence], replies.pending_position(at)
            if same_command(self._commands[original], self._commands[position]):
                self._copied[position] = original
            else:
                self._answered[position] = _reused(session, at)
        if run.stop > next_sequence:
            if not replies.pending_count:
                self._executing.append(replies)
            replies.reserve(positions[next_sequence - sequence], run.stop - next_sequence)

    def _shortened(self) -> list[object]:
        """The commands, with those that execute under a session replaced by their digests."""
        commands = list(self._commands)
        for replies in self._executing:
            for first, count in replies.pending:
                for position in range(first, first + count):
                    commands[position] = command_digest(commands[position])
        return commands


def _sizes(
    frame: Frame, results: list[object], refused: dict[int, list[str]], packed_reply: bytes
) -> Callable[[int, int], int]:
    """A function that gives the bytes of the commands and replies of positions [start, end)."""
    command = min(LONG_COMMAND_BYTES, len(frame.payload))
    if len(packed_reply) <= SHORT_REPLY_BYTES:
        each = command + len(packed_reply) // len(results) + 1
        return lambda start, end: each * (end - start)

    def measured(start: int, end: int) -> int:
        texts = [refused[position] for position in range(start, end) if position in refused] if refused else ()
        return command * (end - start) + len(pack([results[start:end], texts]))

    return measured


def _reused(session: int, sequence: int) -> Refused:
    text = f"sequence {sequence} of session {session} was given to another command before"
    return Refused("SEQUENCE_REUSED", text)
