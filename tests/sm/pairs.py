"""Hypothesis strategies for kv commands, over so few keys and values that they meet."""

from hypothesis import strategies as st

keys = st.one_of(
    st.sampled_from(["a", "ab", "b", "é", "\U0001f9fe", "z" * 1024]),
    st.builds(lambda head, number: f"{head}{number}", st.sampled_from(["a/", "b/"]), st.integers(0, 30)),
)
atoms = st.one_of(
    st.sampled_from([0, 1, -1, True, False, 1.0, 0.0, -0.0, "", "1", b"1", 2**64 - 1, -(2**63)]),
    st.integers(-(2**63), 2**64 - 1),
    st.text(max_size=8),
)
values = st.one_of(atoms, st.lists(atoms, max_size=2), st.dictionaries(st.sampled_from(["x", "y"]), atoms, max_size=2))
commands = st.one_of(
    st.tuples(st.just("put"), keys, values),
    st.tuples(st.sampled_from(["get", "delete", "incr"]), keys),
    st.tuples(st.just("incr"), keys, st.one_of(st.integers(-5, 5), st.integers(-(2**63), 2**64 - 1))),
    st.tuples(st.just("cas"), keys, st.one_of(st.none(), values), st.one_of(st.none(), values)),
).map(list)
