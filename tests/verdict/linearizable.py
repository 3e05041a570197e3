"""Is a recorded history linearizable? Wing and Gong's search with Lowe's memory, for any model of one object.

Herlihy and Wing 1990: each operation seems to take effect at once, somewhere between its call and its answer. The
checker knows nothing of logs and indices: it looks for an order of the operations that agrees with real time and that
the model answers as the clients were answered. An operation of unknown outcome may take effect at any time after its
call, or never.

The search tries, from each state, what may be next: operations that began before any that is left had ended. Where
states do not recur (unique amounts are added), an answer fits one state only, and the search hardly ever turns back.
Operations of unknown outcome fit anywhere, so they come last, and first only one at a time, then two, and so on.
"""

import math
import random
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

UNKNOWN = object()  # The answer of an operation of which nobody knows whether it took effect.
NEVER = math.inf

Step = Callable[[Any, Any, Any], Hashable]


class Operation(NamedTuple):
    """What a client asked at `began` and was answered at `ended`; never, where its outcome is unknown."""

    client: int
    asked: Any
    answer: Any
    began: float
    ended: float


class DoesNotFit(Exception):
    """Raised by a model: this answer cannot be given in this state."""


class NotLinearizable(AssertionError):
    """No order of the operations gives their answers; the text shows where every order breaks off."""


class Undecided(AssertionError):
    """The search took more than MAX_STEPS: too many outcomes are unknown."""


MAX_STEPS = 500_000


def check_linearizable(history: Sequence[Operation], initial: Hashable, step: Step) -> None:
    """Return if an order is found. `step(state, asked, answer)` gives the next state, or raises DoesNotFit.

    Raises:
        NotLinearizable: there is none.
        Undecided: it would take too long to say.
    """
    unknown = sum(operation.ended == NEVER for operation in history)
    for in_a_row in range(unknown + 1):
        try:
            _Search(history, step, in_a_row).run(initial)
        except NotLinearizable:
            if in_a_row == unknown:
                raise
        else:
            return


class _Turn(NamedTuple):
    """A choice that was made: what took effect, and what it was before: the state, what else might have been next, and
    how many operations of unknown outcome had been chosen in a row.
    """

    place: int
    state: Hashable
    others: Iterator[int]
    in_a_row: int


class _Search:
    """Operations by their beginning; those that have not taken effect yet are a linked list.

    At most `most_in_a_row` operations of unknown outcome are chosen one after the other.
    """

    def __init__(self, history: Sequence[Operation], step: Step, most_in_a_row: int) -> None:
        self._operations = sorted(history, key=lambda operation: operation.began)
        count = len(self._operations)
        self._step = step
        self._most_in_a_row = most_in_a_row
        self._steps = 0
        self._following = [*range(1, count + 1), 0]  # The last place is the list's head.
        self._preceding = [count, *range(count)]
        self._left = sum(operation.ended < NEVER for operation in self._operations)
        chance = random.Random(count)
        self._names = [chance.getrandbits(128) for _ in self._operations]  # Their xor names a set of operations.
        if not count:
            self._following = [0]

    def run(self, state: Hashable) -> None:
        """Find an order. Raises NotLinearizable."""
        turns: list[_Turn] = []
        done, in_a_row, seen = 0, 0, set[tuple[int, Hashable]]()
        fewest, stuck = self._left + 1, (state, list[Operation]())
        candidates = self._candidates(in_a_row)
        while self._left:
            if self._left < fewest:
                fewest, stuck = self._left, (state, [self._operations[place] for place in self._candidates(0)])
            chosen = self._choose(candidates, state, done, seen)
            if chosen is not None:
                place, after = chosen
                turns.append(_Turn(place, state, candidates, in_a_row))
                state, done = after, done ^ self._names[place]
                in_a_row = in_a_row + 1 if self._operations[place].ended == NEVER else 0
                self._take(place)
                candidates = self._candidates(in_a_row)
            elif turns:
                place, state, candidates, in_a_row = turns.pop()
                done ^= self._names[place]
                self._put_back(place)
            else:
                raise NotLinearizable(_told(*stuck, len(self._operations)))

    def _choose(
        self, candidates: Iterator[int], state: Hashable, done: int, seen: set[tuple[int, Hashable]]
    ) -> tuple[int, Hashable] | None:
        """The next candidate that fits and leads to where the search has not been, and the state after it."""
        for place in candidates:
            operation = self._operations[place]
            self._steps += 1
            if self._steps > MAX_STEPS:
                raise Undecided(f"after {MAX_STEPS:,} steps, with {self._left} operations left")
            try:
                after = self._step(state, operation.asked, operation.answer)
            except DoesNotFit:
                continue
            mark = (done ^ self._names[place], after)
            if mark not in seen:
                seen.add(mark)
                return place, after
        return None

    def _candidates(self, in_a_row: int) -> Iterator[int]:
        """What may take effect next: first what was answered, since most of what was not never did."""
        answered: list[int] = []
        unknown: list[int] = []
        first_end, place = NEVER, self._following[-1]
        while place < len(self._operations) and self._operations[place].began < first_end:
            operation = self._operations[place]
            first_end = min(first_end, operation.ended)
            (answered if operation.ended < NEVER else unknown).append(place)
            place = self._following[place]
        return iter(answered if in_a_row >= self._most_in_a_row else answered + unknown)

    def _take(self, place: int) -> None:
        before, behind = self._preceding[place], self._following[place]
        self._following[before] = behind
        if behind < len(self._operations):
            self._preceding[behind] = before
        self._left -= self._operations[place].ended < NEVER

    def _put_back(self, place: int) -> None:
        before, behind = self._preceding[place], self._following[place]
        self._following[before] = place
        if behind < len(self._operations):
            self._preceding[behind] = place
        self._left += self._operations[place].ended < NEVER


def _told(state: Hashable, candidates: list[Operation], count: int) -> str:
    shown = "\n".join(f"  {operation}" for operation in candidates[:20])
    return f"of {count} operations no order fits; the longest ends in state {state!r}, where none does of:\n{shown}"


# The model of the machine that the tests run


def step_sum(state: Any, asked: Any, answer: Any) -> int:
    """The arithmetic machine as far as tests use it: ["add", n] answers the new sum, None reads the sum."""
    after = int(state) if asked is None else int(state) + int(asked[1])
    if answer is not UNKNOWN and int(answer) != after:
        raise DoesNotFit
    return after
