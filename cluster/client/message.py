"""A message of a command stream: packed commands of one or more calls, and the futures that await their results."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, NamedTuple, Self

from quire.log import pack
from quire.log.packing import array_head

from .errors import BadRequest, ClientError, CommandRefused, ResultsCut, ServerFault, session_error_of

ARRAY_OF_TWO = b"\x92"
ARRAY_HEAD_BYTES = 5  # The longest head of a msgpack array.

Answer = asyncio.Future[Any]
MakeError = Callable[[], ClientError]


@dataclass(frozen=True, slots=True)
class BatchReply:
    """The results of a batch of commands, whose records are [index, index + len(results)) in the log.

    `results` holds None for each refused command; `refused` lists those as [position, code, text]. `epoch` is that of
    the leader that answered. `index` is None if the answer is `repeated`.
    """

    index: int | None
    epoch: int
    results: list[Any]
    refused: list[list[Any]]

    @property
    def repeated(self) -> bool:
        """Whether the session answered commands of the message with recorded replies, since they had executed before.

        This happens if the client had to resend the message, or resumed the session. Each command executed once; its
        index in the log is unknown.
        """
        return self.index is None


class Submission(NamedTuple):
    """The commands of one call, as msgpack without an array head. A `batch` is never split and has one answer."""

    packed: bytes
    commands: int
    batch: bool
    answer: Answer


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
        self.answers: list[Answer] = []
        self._batches: dict[int, int] = {}  # The number of commands of each batch, by its position in the lists.
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

    def add(self, packed: bytes, commands: int, batch: bool, answer: Answer) -> None:
        """Append a submission."""
        if batch:
            self._batches[len(self.pieces)] = commands
        self.pieces.append(packed)
        self.answers.append(answer)
        self.commands += commands
        self.size += len(packed)

    def submissions(self) -> Iterator[Submission]:
        """The submissions, in order."""
        for at, (packed, answer) in enumerate(zip(self.pieces, self.answers, strict=True)):
            yield Submission(packed, self._batches.get(at, 1), at in self._batches, answer)

    def encode(self) -> bytes:
        """The message as msgpack: [sequence, commands]. The same bytes on every call until the sequence changes."""
        return b"".join((ARRAY_OF_TWO, pack(self.sequence), array_head(self.commands), *self.pieces))

    def answer(
        self,
        index: int | None,
        epoch: int,
        results: list[Any],
        refused: Sequence[Sequence[Any]],
        cut: int | None = None,
    ) -> None:
        """Resolve every future with its share of the results, of which there is one for each command below `cut`.

        `index` is None if the session answered commands of the message with recorded replies.
        """
        if self._batches or refused or cut is not None:
            self._answer_each(index, epoch, results, {position: [code, text] for position, code, text in refused})
            return
        for answer, result in zip(self.answers, results, strict=True):
            if not answer.done():
                answer.set_result(result)

    def _answer_each(self, index: int | None, epoch: int, results: list[Any], refusals: dict[int, list[str]]) -> None:
        position = 0
        for _, commands, batch, answer in self.submissions():
            end = position + commands
            own_index = None if index is None else index + position
            refused = _refused_between(refusals, position, end)
            if answer.done():
                pass  # The caller cancelled it. The command was executed anyway.
            elif end > len(results):
                answer.set_exception(ResultsCut(own_index))
            elif not batch and (error := session_error_of(refused)):
                answer.set_exception(error)
            elif batch:
                answer.set_result(BatchReply(own_index, epoch, results[position:end], refused))
            elif refused:
                answer.set_exception(CommandRefused(refused, own_index, repeated=index is None))
            else:
                answer.set_result(results[position])
            position = end

    def fail(self, error: MakeError) -> None:
        """Fail every future, each with its own error object."""
        self.pending = False
        for answer in self.answers:
            fail(answer, error)

    def parts(self, problem: Mapping[str, Any]) -> tuple[list["Message"], bool, list["Message"]]:
        """Split a refused message: what comes before the refused commands, whether any failed, and what comes after.

        A batch is refused as a whole. If the problem names no commands, each submission becomes a message of its own,
        so that the next refusal hits only the submission that caused it.
        """
        if not problem.get("refused"):
            if len(self.pieces) > 1:
                return [Message.of([each], self.deadline) for each in self.submissions()], False, []
            self.fail(lambda: error_of(problem))
            return [], True, []
        refusals = {position: [code, text] for position, code, text in problem["refused"]}
        sides: tuple[list[Submission], list[Submission]] = [], []
        position, found = 0, False
        for submission in self.submissions():
            refused = _refused_between(refusals, position, position + submission.commands)
            position += submission.commands
            if refused:
                found = True
                fail(submission.answer, partial(CommandRefused, refused))
            else:
                sides[found].append(submission)
        if not found:
            return [], False, []
        before, after = ([Message.of(side, self.deadline)] if side else [] for side in sides)
        return before, True, after


def error_of(problem: Mapping[str, Any]) -> ClientError:
    """The error for a problem that refuses a message because of its content."""
    if problem.get("status") == HTTPStatus.INTERNAL_SERVER_ERROR:
        return ServerFault(str(problem.get("detail")))
    return BadRequest(problem)


def fail(answer: Answer, error: MakeError) -> None:
    """Fail a future that is neither resolved nor cancelled."""
    if not answer.done():
        answer.set_exception(error())


def _refused_between(refusals: dict[int, list[str]], position: int, end: int) -> list[list[Any]]:
    """The refusals at [position, end), their positions relative to `position`."""
    if not refusals:
        return []
    return [[at - position, *refusals[at]] for at in range(position, end) if at in refusals]
