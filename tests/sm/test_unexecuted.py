"""Which records executed nothing: ranges, their limit, and what is known of a record below them."""

from quire.sm.sessions.unexecuted import MAX_RANGES, Unexecuted


def test_what_a_session_answered_did_not_execute_and_what_was_applied_before_is_unknown() -> None:
    unexecuted = Unexecuted(10)
    unexecuted.add(12, [0, 1, 3])
    unexecuted.add(16, [0])
    unexecuted.add(20, [2])

    known = {index: unexecuted.executed(index) for index in range(8, 25)}
    assert {index for index, executed in known.items() if executed is None} == {8, 9}
    assert {index for index, executed in known.items() if executed is False} == {12, 13, 15, 16, 22}


def test_as_many_ranges_as_the_limit_are_known_and_with_one_more_the_oldest_is_forgotten() -> None:
    unexecuted = Unexecuted(0)
    for number in range(MAX_RANGES):
        unexecuted.add(10 * number, [5, 6])
    assert (unexecuted.known_from, unexecuted.executed(5), unexecuted.executed(7)) == (0, False, True)

    unexecuted.add(10 * MAX_RANGES, [5])
    assert (unexecuted.known_from, unexecuted.executed(5), unexecuted.executed(6)) == (7, None, None)
    assert (unexecuted.executed(7), unexecuted.executed(15)) == (True, False)

    many = 3 * MAX_RANGES
    unexecuted.add(10 * MAX_RANGES + 10, range(0, 2 * many, 2))  # In one frame.
    assert unexecuted.known_from == 10 * MAX_RANGES + 10 + 2 * (many - MAX_RANGES) - 1
    assert unexecuted.executed(unexecuted.known_from) is True
    assert unexecuted.executed(unexecuted.known_from + 1) is False


def test_a_range_grows_without_counting_as_another() -> None:
    unexecuted = Unexecuted(0)
    for index in range(2 * MAX_RANGES):
        unexecuted.add(index, [0])

    assert (unexecuted.known_from, unexecuted.executed(0), unexecuted.executed(2 * MAX_RANGES)) == (0, False, True)
