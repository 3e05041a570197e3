"""The checker on histories that are known to be linearizable, and on some that are known not to be."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.verdict.linearizable import (
    NEVER,
    UNKNOWN,
    NotLinearizable,
    Operation,
    Undecided,
    check_linearizable,
    step_sum,
)

READ = None


def check(*operations: tuple[object, object, float, float]) -> None:
    history = [Operation(number, *operation) for number, operation in enumerate(operations)]
    check_linearizable(history, 0, step_sum)


def add(number: int) -> list[object]:
    return ["add", number]


# Good


def test_no_history_at_all_is_linearizable() -> None:
    check()


def test_one_after_the_other() -> None:
    check((add(3), 3, 0, 1), (READ, 3, 2, 3), (add(4), 7, 4, 5), (READ, 7, 6, 7))


def test_a_read_beside_a_write_may_see_it_or_not() -> None:
    check((add(3), 3, 0, 9), (READ, 0, 1, 2))
    check((add(3), 3, 0, 9), (READ, 3, 1, 2))


def test_writes_at_the_same_time_may_take_effect_in_the_other_order() -> None:
    check((add(3), 7, 0, 9), (add(4), 4, 1, 8))


def test_a_write_of_unknown_outcome_may_have_happened_late() -> None:
    check((add(3), UNKNOWN, 0, NEVER), (READ, 0, 1, 2), (add(4), 4, 3, 4), (READ, 7, 5, 6))


def test_a_write_of_unknown_outcome_may_never_have_happened() -> None:
    check((add(3), UNKNOWN, 0, NEVER), (add(4), 4, 1, 2), (READ, 4, 3, 4))


def test_some_of_many_unknown_writes_may_have_happened() -> None:
    unknown = [(add(1 << bit), UNKNOWN, bit / 100, NEVER) for bit in range(8)]
    check(*unknown, (READ, 0b10010001, 1, 2), (add(1024), 1024 + 0b10010101, 3, 4))


# Bad


def test_a_read_that_misses_a_write_that_had_been_answered() -> None:
    with pytest.raises(NotLinearizable, match="state 3"):
        check((add(3), 3, 0, 1), (READ, 0, 2, 3))


def test_two_reads_one_after_the_other_that_see_a_write_and_then_do_not() -> None:
    with pytest.raises(NotLinearizable):
        check((add(3), 3, 0, 9), (READ, 3, 1, 2), (READ, 0, 3, 4))


def test_an_acknowledged_write_that_is_lost() -> None:
    with pytest.raises(NotLinearizable):
        check((add(3), 3, 0, 1), (add(4), 4, 2, 3))


def test_a_write_that_happened_twice() -> None:
    with pytest.raises(NotLinearizable):
        check((add(3), 3, 0, 1), (READ, 6, 2, 3))


def test_two_writes_that_both_were_the_first() -> None:
    with pytest.raises(NotLinearizable):
        check((add(3), 3, 0, 9), (add(4), 4, 1, 8))


def test_an_unknown_write_that_happened_and_then_had_not() -> None:
    with pytest.raises(NotLinearizable):
        check((add(3), UNKNOWN, 0, NEVER), (READ, 3, 1, 2), (READ, 0, 3, 4))


def test_an_unknown_write_that_was_seen_before_it_was_asked_for() -> None:
    with pytest.raises(NotLinearizable):
        check((READ, 3, 0, 1), (add(3), UNKNOWN, 2, NEVER))


def test_a_read_of_two_writes_the_later_of_which_began_after_the_read_had_ended() -> None:
    with pytest.raises(NotLinearizable):
        check((add(3), 3, 0, 9), (READ, 7, 1, 2), (add(4), 7, 3, 4))


# Made ones


def made(seed: int, count: int, clients: int = 5) -> list[Operation]:
    """A history of an object that is linearizable by its making: each operation takes effect at a moment of its own."""
    chance = random.Random(seed)
    free, state, history = [0.0] * clients, 0, []
    for moment in range(count):
        client = chance.randrange(clients)
        began = max(free[client], moment - chance.random() * 5)
        if began >= moment:
            continue
        ended = moment + chance.random() * 5
        asked = READ if chance.random() < 0.4 else add(1 + (moment << 8))
        lost = asked is not READ and chance.random() < 0.03
        if not (lost and chance.random() < 0.5):
            state = step_sum(state, asked, UNKNOWN)
        history.append(Operation(client, asked, *((UNKNOWN, began, NEVER) if lost else (state, began, ended))))
        free[client] = ended
    return history


@given(st.integers(0, 2**32), st.integers(0, 300))
@settings(deadline=None)
def test_every_history_that_is_made_of_moments_is_linearizable(seed: int, count: int) -> None:
    check_linearizable(made(seed, count), 0, step_sum)


@given(st.integers(0, 2**32), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_such_a_history_with_one_write_less_or_one_read_too_old_is_not(seed: int, chance: random.Random) -> None:
    history = [operation for operation in made(seed, 120) if operation.answer is not UNKNOWN]
    seen = max((int(operation.answer) for operation in history), default=0)
    writes = [it for it in history if it.asked is not READ and int(it.answer) < seen]
    if not writes:
        return
    lost = chance.choice(writes)
    stale = Operation(9, READ, int(lost.answer) - int(lost.asked[1]), max(it.ended for it in history) + 1, NEVER - 1)

    with pytest.raises(NotLinearizable):
        check_linearizable([it for it in history if it is not lost], 0, step_sum)
    with pytest.raises(NotLinearizable):
        check_linearizable([*history, stale._replace(ended=stale.began + 1)], 0, step_sum)


@pytest.mark.full
@pytest.mark.slow
def test_a_search_that_takes_too_long_says_so_and_does_not_call_it_good() -> None:
    unknown = [(add(1 << bit), UNKNOWN, bit / 100, NEVER) for bit in range(40)]
    with pytest.raises(Undecided):
        check(*unknown, (READ, (1 << 40) - 1, 1, 2))


@pytest.mark.slow
def test_ten_thousand_operations_are_checked_in_seconds() -> None:
    check_linearizable(made(7, 10_000), 0, step_sum)
