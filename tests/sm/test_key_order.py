"""The order of keys against a sorted list."""

from hypothesis import given, settings
from hypothesis import strategies as st

from quire.sm.machines.key_order import STRETCH_KEYS, KeyOrder

words = st.text("abé", max_size=4)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.booleans(), words)), words, st.one_of(st.none(), words))
def test_keys_are_in_order_whatever_came_and_went(
    changes: list[tuple[bool, str]], prefix: str, after: str | None
) -> None:
    order, known = KeyOrder(), set[str]()
    for comes, key in changes:
        if comes and key not in known:
            known.add(key)
            order.add(key)
        elif not comes and key in known:
            known.remove(key)
            order.remove(key)
    expected = [key for key in sorted(known) if key.startswith(prefix) and (after is None or key > after)]
    assert list(order.beginning_with(prefix, after)) == expected
    assert list(KeyOrder(known).beginning_with(prefix, after)) == expected


def test_many_keys_are_in_order_from_either_end_and_from_the_middle() -> None:
    count = 5 * STRETCH_KEYS
    for numbers in (range(count), reversed(range(count)), [at * 7919 % count for at in range(count)]):
        order = KeyOrder()
        keys = [f"{number:06}" for number in numbers]
        for key in keys:
            order.add(key)
        assert list(order.beginning_with("", None)) == sorted(keys)
        for key in keys[::2]:
            order.remove(key)
        assert list(order.beginning_with("0", None)) == sorted(keys[1::2])
        for key in keys[1::2]:
            order.remove(key)
        assert list(order.beginning_with("", None)) == []
