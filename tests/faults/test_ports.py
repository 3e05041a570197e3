"""Ports for tests: none is given twice while it may still be unused."""

from contextlib import closing
from itertools import islice

import pytest

from tests.ports import BLOCK, BLOCKS_HELD, LOWEST_PORT, NoPort, free_ports, ports_of


def a_few_blocks(count: int) -> range:
    """Beside those that other test processes take theirs from."""
    return range(LOWEST_PORT - count * BLOCK, LOWEST_PORT, BLOCK)


def test_no_port_is_given_twice() -> None:
    given = [port for _ in range(100) for port in free_ports(3)]
    assert len(set(given)) == 300


def test_who_takes_ports_beside_another_gets_none_of_its_ports() -> None:
    two = a_few_blocks(2)
    with closing(ports_of(two)) as one, closing(ports_of(two)) as other, closing(ports_of(two)) as third:
        mine, theirs = ({next(each), *islice(each, BLOCK // 2)} for each in (one, other))
        assert mine.isdisjoint(theirs)
        with pytest.raises(NoPort):
            next(third)


def test_a_block_comes_again_behind_all_others() -> None:
    with closing(ports_of(a_few_blocks(BLOCKS_HELD + 2))) as each:
        given = list(islice(each, (BLOCKS_HELD + 1) * BLOCK))
    assert len(set(given)) == len(given)
