"""How many arrays and maps a message holds, found before it is unpacked."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.log import PayloadInvalid, check_containers, pack
from quire.log.packing import ExtType

MOST = 64
EXAMPLES = 60
SIZES = (0, 1, 2, 4, 8, 15, 16, 31, 32, 255, 256, 65_535, 65_536)
"""Around each, msgpack changes to another head."""
SCALARS: list[object] = [
    *(None, True, 0.5, *(sign * 2**bits for bits in (0, 5, 6, 7, 8, 15, 16, 31, 32, 62) for sign in (1, -1))),
    *(make(size) for size in SIZES for make in (bytes, lambda size: "x" * size)),
    *(ExtType(16, bytes(size)) for size in SIZES),
]
VALUES = st.recursive(
    st.sampled_from(SCALARS[:80]),
    lambda items: st.lists(items, max_size=20) | st.dictionaries(st.integers(0, 99), items, max_size=20),
    max_leaves=30,
)


@pytest.mark.parametrize(("value", "most"), [([None] * 3, 4), ({"a": 1, "b": [2]}, 6), ([[[]], 0.5], 4)])
def test_as_many_values_as_the_limit_pass_and_not_one_more(value: object, most: int) -> None:
    check_containers(pack(value), 9, most)
    with pytest.raises(PayloadInvalid, match=f"holds more than {most - 1} values"):
        check_containers(pack(value), 9, most - 1)


@pytest.mark.parametrize("size", [1, 2, 4, 5, 8, 16, 40, 300, 70_000])
def test_what_is_in_an_ext_type_counts_if_that_is_asked_for(size: int) -> None:
    """In each of its encodings."""
    data = pack([ExtType(1, b"\x91" * (size - 1) + b"\0"), [ExtType(2, b"\x91" * size)]])
    check_containers(data, 2)
    check_containers(data, 1 + size, entered=b"\1")
    with pytest.raises(PayloadInvalid, match=f"holds more than {size} arrays and maps"):
        check_containers(data, size, entered=b"\1")


def containers(value: object) -> int:
    """By counting them in the value."""
    if isinstance(value, list):
        return 1 + sum(map(containers, value))
    return 1 + sum(map(containers, value.values())) if isinstance(value, dict) else 0


def holds(data: bytes, most: int) -> bool:
    try:
        check_containers(data, most)
    except PayloadInvalid:
        return False
    return True


def check(value: object) -> None:
    data, count = pack(value), containers(value)
    assert holds(data, count)
    assert count == 0 or not holds(data, count - 1)
    assert not holds(data[:-1], MOST * MOST)
    assert not holds(data + b"\0", MOST * MOST)


def test_the_arrays_and_maps_of_each_kind_of_value_are_counted() -> None:
    for value in SCALARS:
        check(value)
        check([value, {0: value}])
    for size in SIZES:
        check([0] * size)
        check(dict.fromkeys(range(size)))


@settings(max_examples=EXAMPLES)
@given(VALUES)
def test_the_arrays_and_maps_of_any_value_are_counted(value: object) -> None:
    check(value)


@pytest.mark.parametrize("item", [[], {}, [0], {0: 0}])
def test_as_many_arrays_and_maps_as_allowed_pass_and_one_more_does_not(item: object) -> None:
    assert holds(pack([item] * (MOST - 1)), MOST)
    assert not holds(pack([item] * MOST), MOST)


def test_nested_ones_are_counted_without_recursion() -> None:
    assert holds(b"\x91" * MOST + b"\0", MOST)
    assert not holds(b"\x91" * (MOST + 1) + b"\0", MOST)
    assert not holds(b"\x91" * 100_000 + b"\0", MOST)
    assert holds(b"\x91" * 100_000 + b"\0", 100_000)


@pytest.mark.parametrize(
    "head", ["dcffff", "ddffffffff", "deffff", "dfffffffff", "dbffffffff", "c6ffffffff", "c9ffffffff00", "c1", ""]
)
def test_what_a_message_declares_and_does_not_hold_is_refused(head: str) -> None:
    assert not holds(bytes.fromhex(head), MOST)
    assert not holds(bytes.fromhex(head) + bytes(1000), MOST)
