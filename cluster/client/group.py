"""What travels as one message of a stream: commands packed already, and who waits for their answers."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, NamedTuple, Self

from quire.log import pack
from quire.log.packing import array_head

from .errors import BadRequest, ClientError, Refused, ServerFault
from .replies import BatchReply

ARRAY_OF_TWO = b"\x92"
ARRAY_HEAD_BYTES = 5  # At most, of a msgpack array.

Answer = asyncio.Future[Any]


class Item(NamedTuple):
    """One call's commands, as msgpack without an array's head. `batch`: answered as a whole, and not to be split."""

    packed: bytes
    commands: int
    batch: bool
    answer: Answer


class Group:
    """Single commands and batches in their order; as one message they become a part of one frame.

    Parallel lists rather than a list of items: a single command must not cost more than a few appends.
    """

    __slots__ = (
        "_batches",
        "answers",
        "closes_at",
        "commands",
        "deadline",
        "doubtful",
        "live",
        "pieces",
        "sequence",
        "size",
    )

    def __init__(self, deadline: float, closes_at: float = 0.0) -> None:
        self.deadline = deadline
        self.closes_at = closes_at  # Who comes later waits in the next group, which has a later deadline.
        self.pieces: list[bytes] = []
        self.answers: list[Answer] = []
        self._batches: dict[int, int] = {}  # commands of each batch, by its place in the lists
        self.commands = 0
        self.size = 0
        self.sequence = 0  # 0: not numbered, for nothing of it was sent, or provably nothing of it came to anything
        self.doubtful = False  # It was sent on a stream that ended without a word of it.
        self.live = True  # Nobody was told yet what became of it.

    @classmethod
    def of(cls, items: Iterable[Item], deadline: float) -> Self:
        """A group of these items."""
        group = cls(deadline)
        for item in items:
            group.add(*item)
        return group

    def add(self, packed: bytes, commands: int, batch: bool, answer: Answer) -> None:
        """Put an item behind the others."""
        if batch:
            self._batches[len(self.pieces)] = commands
        self.pieces.append(packed)
        self.answers.append(answer)
        self.commands += commands
        self.size += len(packed)

    def items(self) -> Iterator[Item]:
        """The items, in order."""
        for at, (packed, answer) in enumerate(zip(self.pieces, self.answers, strict=True)):
            yield Item(packed, self._batches.get(at, 1), at in self._batches, answer)

    def message(self) -> bytes:
        """The message, the same at every call under one sequence."""
        return b"".join((ARRAY_OF_TWO, pack(self.sequence), array_head(self.commands), *self.pieces))

    def answer(self, index: int, epoch: int, results: list[Any], refused: Sequence[Sequence[Any]]) -> None:
        """Give everyone who waits their share of an answer: as many results as there are commands."""
        if self._batches or refused:
            self._answer_each(index, epoch, results, {place: [code, text] for place, code, text in refused})
            return
        for answer, result in zip(self.answers, results, strict=True):
            if not answer.done():
                answer.set_result(result)

    def _answer_each(self, index: int, epoch: int, results: list[Any], refusals: dict[int, list[str]]) -> None:
        place = 0
        for _, commands, batch, answer in self.items():
            end = place + commands
            refused = _refused_between(refusals, place, end)
            if answer.done():
                pass  # Cancelled: executed all the same.
            elif batch:
                answer.set_result(BatchReply(index + place, epoch, results[place:end], refused))
            elif refused:
                answer.set_exception(Refused(refused, index + place))
            else:
                answer.set_result(results[place])
            place = end

    def fail(self, error: Callable[[], ClientError]) -> None:
        """Tell everyone who waits; each gets an error of their own."""
        self.live = False
        for answer in self.answers:
            fail(answer, error)

    def parts(self, problem: Mapping[str, Any]) -> tuple[list["Group"], bool, list["Group"]]:
        """What is left when a problem refuses the message: before whom it means, whether they were told, and behind.

        A batch goes as a whole. Where the problem names no places, each item stands alone then: so it will hit the one
        that it means.
        """
        if not problem.get("refused"):
            if len(self.pieces) > 1:
                return [Group.of([item], self.deadline) for item in self.items()], False, []
            self.fail(lambda: failure_of(problem))
            return [], True, []
        refusals = {place: [code, text] for place, code, text in problem["refused"]}
        sides: tuple[list[Item], list[Item]] = [], []
        place, found = 0, False
        for item in self.items():
            refused = _refused_between(refusals, place, place + item.commands)
            place += item.commands
            if refused:
                found = True
                fail(item.answer, partial(Refused, refused))
            else:
                sides[found].append(item)
        if not found:
            return [], False, []
        before, after = ([Group.of(items, self.deadline)] if items else [] for items in sides)
        return before, True, after


def failure_of(problem: Mapping[str, Any]) -> ClientError:
    """What a problem means that refuses a message for what it holds."""
    if problem.get("status") == HTTPStatus.INTERNAL_SERVER_ERROR:
        return ServerFault(str(problem.get("detail")))
    return BadRequest(problem)


def fail(answer: Answer, error: Callable[[], ClientError]) -> None:
    """Raise where an answer is awaited, unless it is there or nobody wants it."""
    if not answer.done():
        answer.set_exception(error())


def _refused_between(refusals: dict[int, list[str]], place: int, end: int) -> list[list[Any]]:
    """The refusals at [place, end), counted from `place`."""
    if not refusals:
        return []
    return [[at - place, *refusals[at]] for at in range(place, end) if at in refusals]
