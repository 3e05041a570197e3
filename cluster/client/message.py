"""A message of a command stream: packed commands of one or more calls, and the futures that await their results."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import NamedTuple, Self

from quire.log import PayloadInvalid, Value, pack
from quire.log.packing import array_head

from .errors import (
    BadRequest,
    ClientError,
    CommandRefused,
    Problem,
    Refusal,
    ResultsCut,
    ServerFault,
    refusals_of,
    session_error_of,
)

ARRAY_OF_TWO = b"\x92"
ARRAY_HEAD_BYTES = 5  # The longest head of a msgpack array.

Answer = asyncio.Future[Value]
BatchAnswer = asyncio.Future["BatchReply"]
MakeError = Callable[[], ClientError]


@dataclass(frozen=True, slots=True)
class BatchReply:
    """The results of a batch of commands, whose records are [index, index + len(results)) in the log.

    `results` holds None for each refused command; `refused` lists those as [position, code, text]. `epoch` is that of
    the leader that answered. `index` is None if the answer is `repeated`.
    """

    index: int | None
    epoch: int
    results: list[Value]
    refused: list[Refusal]

    @property
    def repeated(self) -> bool:
        """Whether the session answered commands of the message with recorded replies, since they had executed before.

        This happens if the client had to resend the message, or resumed the session. Each command executed once; its
        index in the log is unknown.
        """
        return self.index is None


class Submission(NamedTuple):
    """The commands of one call, as msgpack without an array head, and the future that awaits their results.

    A command of its own has an `answer`. A batch has a `reply`, and is never split.
    """

    packed: bytes
    commands: int
    answer: Answer | None
    reply: BatchAnswer | None


class Batch(NamedTuple):
    """The number of commands of a batch, and the future that awaits its reply."""

    commands: int
    reply: BatchAnswer


class Message:
    """Single commands and batches, in order. On the leader, a message becomes part of one frame.

    It keeps parallel lists instead of a list of submissions: adding a single command must cost no more than a few
    appends.
    """

    __slots__ = (
        "_batches",
        "answers",
        "closes_at",
        "commands",
        "deadline",
        "in_doubt",
        "pending",
        "pieces",
        "sequence",
        "size",
    )

    def __init__(self, deadline: float, closes_at: float = 0.0) -> None:
        self.deadline = deadline
        self.closes_at = closes_at  # Later submissions go to the next message, which has a later deadline.
        self.pieces: list[bytes] = []
        # Of the pieces that are no batches.
        self.answers: list[Answer] = []
        # By its position among the pieces.
        self._batches: dict[int, Batch] = {}
        self.commands = 0
        self.size = 0
        self.sequence = 0  # 0: not numbered, since it was never sent or provably had no effect.
        self.in_doubt = False  # It was sent on a stream that ended without an answer to it.
        self.pending = True  # The callers still wait.

    @classmethod
    def of(cls, submissions: Iterable[Submission], deadline: float) -> Self:
        """A message that holds these submissions."""
        message = cls(deadline)
        for submission in submissions:
            message.add(*submission)
        return message

    def add(self, packed: bytes, commands: int, answer: Answer | None, reply: BatchAnswer | None) -> None:
        """Append a submission."""
        if answer is not None:
            self.answers.append(answer)
        elif reply is not None:
            self._batches[len(self.pieces)] = Batch(commands, reply)
        self.pieces.append(packed)
        self.commands += commands
        self.size += len(packed)

    def submissions(self) -> Iterator[Submission]:
        """The submissions, in order."""
        answers = iter(self.answers)
        for at, packed in enumerate(self.pieces):
            if (batch := self._batches.get(at)) is not None:
                yield Submission(packed, batch.commands, None, batch.reply)
            else:
                yield Submission(packed, 1, next(answers), None)

    def encode(self) -> bytes:
        """The message as msgpack: [sequence, commands]. The same bytes on every call until the sequence changes."""
        return b"".join((ARRAY_OF_TWO, pack(self.sequence), array_head(self.commands), *self.pieces))

    def answer(
        self,
        index: int | None,
        epoch: int,
        results: list[Value],
        refused: Sequence[Refusal],
        cut: int | None = None,
    ) -> None:
        """Resolve every future with its share of the results, of which there is one for each command below `cut`.

        `index` is None if the session answered commands of the message with recorded replies.
        """
        if self._batches or refused or cut is not None:
            self._answer_each(index, epoch, results, _by_position(refused))
            return
        for answer, result in zip(self.answers, results, strict=True):
            if not answer.done():
                answer.set_result(result)

    def _answer_each(
        self, index: int | None, epoch: int, results: list[Value], refusals: Mapping[int, list[str]]
    ) -> None:
        position = 0
        for _, commands, answer, reply in self.submissions():
            end = position + commands
            own_index = None if index is None else index + position
            refused = _refused_between(refusals, position, end)
            # A future that is done was cancelled by the caller. The command was executed anyway.
            if end > len(results):
                fail(answer or reply, partial(ResultsCut, own_index))
            elif reply is not None and not reply.done():
                reply.set_result(BatchReply(own_index, epoch, results[position:end], refused))
            elif answer is not None and not answer.done():
                if error := session_error_of(refused):
                    answer.set_exception(error)
                elif refused:
                    answer.set_exception(CommandRefused(refused, own_index, repeated=index is None))
                else:
                    answer.set_result(results[position])
            position = end

    def fail(self, error: MakeError) -> None:
        """Fail every future, each with its own error object."""
        self.pending = False
        for submission in self.submissions():
            fail(submission.answer or submission.reply, error)

    def parts(self, problem: Problem) -> tuple[list["Message"], bool, list["Message"]]:
        """Split a refused message: what comes before the refused commands, whether any failed, and what comes after.

        A batch is refused as a whole. If the problem names no commands, each submission becomes a message of its own,
        so that the next refusal hits only the submission that caused it.
        """
        refused = refusals_of(problem)
        if not refused:
            if len(self.pieces) > 1:
                return [Message.of([each], self.deadline) for each in self.submissions()], False, []
            self.fail(lambda: error_of(problem))
            return [], True, []
        refusals = _by_position(refused)
        sides: tuple[list[Submission], list[Submission]] = [], []
        position, found = 0, False
        for submission in self.submissions():
            own = _refused_between(refusals, position, position + submission.commands)
            position += submission.commands
            if own:
                found = True
                fail(submission.answer or submission.reply, partial(CommandRefused, own))
            else:
                sides[found].append(submission)
        if not found:
            return [], False, []
        before, after = ([Message.of(side, self.deadline)] if side else [] for side in sides)
        return before, True, after


def error_of(problem: Problem) -> ClientError:
    """The error for a problem that refuses a message because of its content."""
    if problem.get("status") == HTTPStatus.INTERNAL_SERVER_ERROR:
        return ServerFault(str(problem.get("detail")))
    return BadRequest(problem)


def fail(future: Answer | BatchAnswer | None, error: MakeError) -> None:
    """Fail a future that is neither resolved nor cancelled."""
    if future is not None and not future.done():
        future.set_exception(error())


def pack_or_refuse(value: object) -> bytes:
    """The msgpack bytes of a value to be sent. Raises BadRequest if it has none."""
    try:
        return pack(value)
    except PayloadInvalid as error:
        raise BadRequest(
            {"type": "about:blank", "status": 400, "detail": f"the value cannot be sent: {error.reason}"}
        ) from None


def _by_position(refused: Iterable[Refusal]) -> dict[int, list[str]]:
    """The code and text of each refused command, by its position."""
    return {int(position): [str(code), str(text)] for position, code, text in refused}


def _refused_between(refusals: Mapping[int, list[str]], position: int, end: int) -> list[Refusal]:
    """The refusals at [position, end), their positions relative to `position`."""
    if not refusals:
        return []
    return [[at - position, *refusals[at]] for at in range(position, end) if at in refusals]
