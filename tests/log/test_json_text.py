"""Values as JSON text, and back to the same bytes."""

from base64 import b64encode
from math import inf, nan
from random import Random
from typing import Any

import pytest
from orjson import loads

from quire.log import PayloadInvalid, pack
from quire.log.json_text import from_json, has_text_keys, to_exact_json, to_json, to_json_each
from quire.log.packing import RESERVED_EXT_TYPES, ExtType, Timestamp, unpack

VALUES = 20_000
INTS = [0, 1, -1, 127, 128, -32, -33, 2**31, 2**53 + 1, -(2**63), 2**63 - 1, 2**63, 2**64 - 1]
FLOATS = [0.0, -0.0, 1.0, -1.5, 0.1, 1e16, 1e22, 1e308, 5e-324, 2.0**53, 123456789.125]
TEXTS = [
    *("", "$", "$bin", "$ext", "$map", "$float", "$key", "key", "1", "1.0", "null", "true", '{"$', '\\{"$', "\\"),
    *('"', '{"$bin": ""}', "\x00", "\u2028", "\ud7ff", "\ue000", "\U0010ffff", "ä", "日本", "x" * 40),
]


def random_scalar(random: Random) -> Any:
    match random.randrange(9):
        case 0:
            return random.choice([None, True, False])
        case 1:
            return random.choice(INTS)
        case 2:
            return random.randrange(-(2**63), 2**64)
        case 3:
            return random.choice(FLOATS)
        case 4:
            return random.uniform(-1, 1) * 10.0 ** random.randrange(-300, 300)
        case 5:
            return random.randbytes(random.randrange(12))
        case 6:
            return ExtType(random.randrange(RESERVED_EXT_TYPES.stop, 128), random.randbytes(random.randrange(9)))
        case 7:
            seconds = random.choice([0, 1, 2**31, 2**33, 2**40, -1, -(2**40)])
            return Timestamp(seconds, random.choice([0, 1, 999_999_999]))
        case _:
            return random.choice(TEXTS)


def random_value(random: Random, depth: int = 5) -> Any:
    if depth == 0 or random.random() < 0.3:
        return random_scalar(random)
    count = random.choice([0, 1, 1, 1, 2, 3, 5])
    if random.random() < 0.35:
        return [random_value(random, depth - 1) for _ in range(count)]
    keys = [random.choice(TEXTS) if random.random() < 0.7 else random_scalar(random) for _ in range(count)]
    return {key: random_value(random, depth - 1) for key in keys}


@pytest.mark.slow
def test_random_values_come_back_to_equal_bytes_and_no_two_have_the_same_text() -> None:
    random = Random(17)
    by_text: dict[bytes, bytes] = {}
    for _ in range(VALUES):
        raw = pack(random_value(random))
        text = to_exact_json(unpack(raw, ext=True))
        assert pack(from_json(loads(text))) == raw, text
        assert by_text.setdefault(text, raw) == raw, text
    assert len(by_text) > VALUES / 2


def test_values_of_a_page_have_the_same_text_as_each_by_itself() -> None:
    random = Random(18)
    for _ in range(200):
        page = [random_value(random, 3) for _ in range(random.randrange(8))]
        assert to_json_each(page) == list(map(to_json, page))


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (b"\x00", {"$bin": "AA=="}),
        (ExtType(20, b"\x01"), {"$ext": [20, "AQ=="]}),
        (Timestamp(1), {"$ext": [-1, b64encode(Timestamp(1).to_bytes()).decode()]}),
        ({1: "a", "1": "b"}, {"$map": [[1, "a"], ["1", "b"]]}),
        ({1: "a"}, {"$map": [[1, "a"]]}),
        ({None: {True: b""}}, {"$map": [[None, {"$map": [[True, {"$bin": ""}]]}]]}),
        ({(1, 2): 3}, {"$map": [[[1, 2], 3]]}),
        ({"$bin": "x"}, {"$map": [["$bin", "x"]]}),
        ({"$map": []}, {"$map": [["$map", []]]}),
        ({"$": None}, {"$map": [["$", None]]}),
        ([{"a": {"$b": 1}}], [{"a": {"$map": [["$b", 1]]}}]),
        ({"$a": 1, "$b": 2}, {"$a": 1, "$b": 2}),
        ({}, {}),
        (nan, {"$float": "nan"}),
        ([1.0, -inf], [1.0, {"$float": "-inf"}]),
        ({inf: {"a": None}}, {"$map": [[{"$float": "inf"}, {"a": None}]]}),
    ],
)
def test_what_json_has_no_form_for_is_a_map_whose_only_key_begins_with_a_dollar(value: Any, form: Any) -> None:
    assert loads(to_json(value)) == form
    assert [loads(text) for text in to_json_each([value, "plain"])] == [form, "plain"]


@pytest.mark.parametrize("value", [nan, [None, {"a": inf}], {-inf: 1}, {"$float": nan}, ({1: (nan,)},)])
def test_a_float_that_is_not_finite_has_no_exact_text(value: Any) -> None:
    with pytest.raises(PayloadInvalid, match="not finite"):
        to_exact_json(value)
    with pytest.raises(PayloadInvalid, match="not finite"):
        from_json(loads(to_json(value)))


@pytest.mark.parametrize(
    "value", [{"$float": "nan"}, {"$float": "nan", "b": 1.0}, '{"$float": "nan"}', [{"$float": 1.5}]]
)
def test_a_map_that_looks_like_such_a_float_has_one(value: Any) -> None:
    assert from_json(loads(to_exact_json(value))) == value


@pytest.mark.parametrize(
    "document",
    [
        {"$bin": "x"},
        {"$bin": "AB=="},
        {"$bin": "AA==\n"},
        {"$bin": "ä"},
        {"$bin": 1},
        {"$bin": None},
        {"$ext": "AA=="},
        {"$ext": [20]},
        {"$ext": [20, "AA==", 1]},
        {"$ext": [True, "AA=="]},
        {"$ext": [128, "AA=="]},
        {"$ext": [-2, "AA=="]},
        {"$ext": [-1, "AA=="]},
        {"$ext": [-1, "////////////////"]},
        {"$map": {}},
        {"$map": [["a"]]},
        {"$map": [["a", 1, 2]]},
        {"$map": ["ab"]},
        {"$map": [[1, "a"], [1.0, "b"]]},
        {"$map": [[{}, 1]]},
        {"$map": [[[{}], 1]]},
        {"$float": "nan"},
        {"$new": 1},
        {"$": 1},
        [{"a": [{"$bin": "x"}]}],
        {"$map": [[1, {"$bin": "x"}]]},
    ],
)
def test_a_map_whose_only_key_begins_with_a_dollar_is_read_exactly_or_not_at_all(document: Any) -> None:
    with pytest.raises(PayloadInvalid):
        from_json(document)


def test_a_timestamp_of_msgpack_has_a_json_form_and_what_a_log_cannot_store_has_none() -> None:
    stamp = Timestamp(1)
    assert loads(to_json(stamp)) == {"$ext": [-1, b64encode(stamp.to_bytes()).decode()]}
    for value in (object(), {1: object()}, 2**64, "\ud800"):
        with pytest.raises(TypeError):
            to_json(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([{"a": [1, None, {"b": 2.5}]}, "text"], True),
        ([b"bytes", {"a": [{"b": ExtType(20, b"")}]}], True),
        ({1: "a"}, False),
        ([{"a": [b"", {"b": {None: 1}}]}], False),
        ({b"a": 1}, False),
        ([({2.5: 1},)], False),
        (b"", True),
    ],
)
def test_a_key_that_is_no_text_is_found_wherever_it_is(value: Any, expected: bool) -> None:
    assert has_text_keys(value) is expected
