"""The linearizability check, on histories known to be linearizable or not."""

import pytest

from quire.cluster.simulator.clients import NotLinearizable, Order


def test_operations_one_after_the_other_in_the_order_of_the_log_are_linearizable() -> None:
    order = Order()
    for index in range(3):
        order.wrote(order.began(), index)
        order.read(order.began(), index + 1)


def test_operations_at_the_same_time_may_take_effect_in_any_order() -> None:
    order = Order()
    first, second, reading = order.began(), order.began(), order.began()
    order.wrote(second, 0)
    order.wrote(first, 1)
    order.read(reading, 0)


def test_a_read_that_misses_a_write_that_had_ended_is_found() -> None:
    order = Order()
    order.wrote(order.began(), 4)
    with pytest.raises(NotLinearizable, match="a read saw what is below 4"):
        order.read(order.began(), 4)


def test_a_read_that_goes_back_behind_another_is_found() -> None:
    order = Order()
    order.read(order.began(), 5)
    with pytest.raises(NotLinearizable):
        order.read(order.began(), 4)


def test_a_write_before_one_that_had_ended_is_found() -> None:
    order = Order()
    order.wrote(order.began(), 5)
    with pytest.raises(NotLinearizable, match="took effect at 5"):
        order.wrote(order.began(), 5)


def test_a_write_before_what_a_read_had_seen_is_found() -> None:
    order = Order()
    order.read(order.began(), 5)
    with pytest.raises(NotLinearizable):
        order.wrote(order.began(), 4)
    order.wrote(order.began(), 5)


def test_a_write_that_ends_late_need_not_stand_behind_what_began_after_it() -> None:
    order = Order()
    early = order.began()
    order.wrote(order.began(), 7)
    order.wrote(early, 3)
    assert order.began() == 8
