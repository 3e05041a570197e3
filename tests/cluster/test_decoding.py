"""Request bodies: an exact value passes unchanged, everything else is refused with a reason."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cluster import values as decoding
from quire.cluster.errors import LimitExceeded, Malformed
from quire.cluster.http import bodies
from quire.cluster.http.bodies import (
    JSON,
    MSGPACK,
    NDJSON,
    pack_records,
)
from quire.cluster.values import CONTAINERS_LIMIT, DEPTH_LIMIT, MalformedLine
from quire.log import pack
from quire.log.packing import ExtType, Timestamp, array_count, array_head


class Pairs(list[tuple[str, object]]):
    """A map as JSON text may have it: with repeated keys."""


MOST = 1_000
EDGES = [2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**18, -(10**18), 10**19, 10**20, 1e19, -1e300]


def decode_commands(content_type: str, body: bytes) -> list[Any]:
    return bodies.decode_commands(content_type, body, MOST)


def decode_records(content_type: str, body: bytes) -> list[Any]:
    return bodies.decode_records(content_type, body, MOST)


def written(value: object, space: str) -> str:
    """The value as JSON, with `space` around its colons."""
    if isinstance(value, Pairs):
        return "{" + ",".join(f"{json.dumps(key)}{space}:{space}{written(of, space)}" for key, of in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(written(of, space) for of in value) + "]"
    return json.dumps(value)


def repeats(value: object) -> bool:
    """Whether a map in the value has a key twice."""
    if isinstance(value, Pairs):
        return len({key for key, _ in value}) < len(value) or any(repeats(of) for _, of in value)
    return isinstance(value, list) and any(map(repeats, value))


def nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def test_the_three_encodings_of_a_batch_decode_to_the_same_commands() -> None:
    commands = [["add", 3], ["div", "5"], {"op": None, "x": [True, 1.5, "é"]}]

    assert decode_commands(JSON, json.dumps({"commands": commands}).encode()) == commands
    assert decode_commands(MSGPACK, pack({"commands": commands})) == commands
    assert decode_commands(NDJSON, "\n".join(map(json.dumps, commands)).encode()) == commands
    assert decode_commands(NDJSON, "".join(json.dumps(c) + "\r\n" for c in commands).encode()) == commands


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b"null",
        b"[]",
        b"[1]",
        b'"commands"',
        b"{}",
        b'{"commands": []}',
        b'{"commands": null}',
        b'{"commands": {}}',
        b'{"commands": "add"}',
        b'{"commands": [1], "more": 1}',
        b'{"Commands": [1]}',
        b'{"commands": [1]} x',
        b'{"commands": [1],}',
        b'{"commands": [NaN]}',
        b'{"commands": [Infinity]}',
        b'{"commands": [-Infinity]}',
        b'{"commands": [1e999]}',
        b'{"commands": [01]}',
        b'{"commands": [+1]}',
        b'{"commands": [.5]}',
        b'{"commands": [0x10]}',
        b"{'commands': [1]}",
        b'{"commands": ["\xff"]}',
        b'{"commands": ["\\ud800"]}',
        b'{"commands": ["\x01"]}',
        b'\xef\xbb\xbf{"commands": [1]}',
        b'{"commands": [18446744073709551616]}',
        b'{"commands": [-9223372036854775809]}',
        b'{"commands": [["add", 99999999999999999999999999]]}',
        json.dumps({"commands": [nested(DEPTH_LIMIT + 1)]}).encode(),
        b'{"commands": [' + b"[" * 30_000 + b"]" * 30_000 + b"]}",
        "﻿".encode("utf-16"),
    ],
)
def test_json_that_is_not_a_batch_of_commands_is_refused(body: bytes) -> None:
    with pytest.raises(Malformed):
        decode_commands(JSON, body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x92\x01",
        b"\x81\xa8commands",
        pack({"commands": []}),
        pack({"commands": None}),
        pack([["add", 3]]),
        pack({"commands": [1]}) + b"\x00",
        pack({b"commands": [1]}),
        pack({"commands": [float("nan")]}),
        pack({"commands": [["add", float("inf")]]}),
        pack({"commands": [{"deep": [{"x": float("-inf")}]}]}),
        pack({"commands": [nested(DEPTH_LIMIT + 1)]}),
        *(pack({"commands": [["add", ExtType(code, b"12")]]}) for code in range(16)),
        b"\x81\xa8commands\x91\xa2\xff\xfe",
        b"\x81\xa8commands\x91\x81\x90\x01",
        b"\x81\xa8commands\xdd\xff\xff\xff\xff\x01",
        b"\x81\xa8commands\x91\xd4\xfe\x00",
        b"\x81\xa8commands\x91\xd6\xff",
        b"\x81\xa8commands\x91\xc7\x03\xffabc",
        b"\x81\xa8commands" + b"\x91" * 100_000 + b"\x01",
    ],
)
def test_msgpack_that_is_not_a_batch_of_commands_is_refused(body: bytes) -> None:
    with pytest.raises(Malformed):
        decode_commands(MSGPACK, body)


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (b"\n", 1),
        (b"1\n\n2\n", 2),
        (b"1\n2\n\n", 3),
        (b"1,2\n3\n", 1),
        (b"[1\n2]\n", 1),
        (b'"a\nb"\n', 1),
        (b"1 2\n", 1),
        (b"1\n  \n", 2),
        (b"1\nNaN\n", 2),
        (b"1\n2\n18446744073709551616\n", 3),
        (b'["add", 3]\n["add", 3\n', 2),
    ],
)
def test_a_bad_line_is_refused_by_its_number(body: bytes, line: int) -> None:
    with pytest.raises(MalformedLine) as refused:
        decode_commands(NDJSON, body)

    assert refused.value.line == line


def test_a_body_without_lines_is_refused() -> None:
    with pytest.raises(Malformed, match="at least one"):
        decode_commands(NDJSON, b"")


@pytest.mark.parametrize("depth", [1, DEPTH_LIMIT])
@pytest.mark.parametrize("content_type", [JSON, MSGPACK, NDJSON])
def test_a_record_may_nest_as_deep_as_the_limit_and_no_deeper(content_type: str, depth: int) -> None:
    def encode(value: object) -> bytes:
        return pack([value]) if content_type == MSGPACK else json.dumps(value).encode()

    assert decode_records(content_type, encode(nested(depth))) == [nested(depth)]
    with pytest.raises(Malformed, match="deep"):
        decode_records(content_type, encode(nested(DEPTH_LIMIT + 1)))
    with pytest.raises(Malformed, match="deep"):
        decode_records(content_type, encode({"x": nested(DEPTH_LIMIT)}))


@pytest.mark.parametrize("number", [2**64 - 1, -(2**63), 10**18, -1, 0])
def test_every_integer_of_64_bits_passes_unchanged(number: int) -> None:
    for content_type, body in ((JSON, json.dumps(number).encode()), (MSGPACK, pack([number]))):
        [value] = decode_records(content_type, body)
        assert type(value) is int
        assert value == number


def test_long_digits_that_are_not_an_integer_pass() -> None:
    body = b'["123456789012345678901234567890", 0.1234567890123456789012345, 12345678901234567890123e2]'

    [value] = decode_records(JSON, body)

    assert value[0] == "123456789012345678901234567890"
    assert value[1:] == [0.1234567890123456789012345, 12345678901234567890123e2]


def test_free_ext_types_and_timestamps_pass() -> None:
    values = [ExtType(16, b"x"), ExtType(127, b"y"), Timestamp(1, 2)]

    assert decode_records(MSGPACK, pack(values)) == values


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(min_value=-(2**63), max_value=2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text("ab"), children, max_size=4),
    max_leaves=12,
)


@given(st.lists(json_values, min_size=1, max_size=5))
def test_what_a_log_can_hold_survives_every_encoding(values: list[object]) -> None:
    assert decode_records(MSGPACK, pack(values)) == values
    assert decode_records(NDJSON, "\n".join(map(json.dumps, values)).encode()) == values
    assert decode_commands(JSON, json.dumps({"commands": values}).encode()) == values
    assert pack_records(values, 1 << 20) == pack(values)


@given(st.integers())
def test_an_integer_is_kept_or_refused_but_never_changed(number: int) -> None:
    try:
        [value] = decode_records(JSON, str(number).encode())
    except Malformed:
        assert not -(2**63) <= number < 2**64
    else:
        assert type(value) is int
        assert value == number


@pytest.mark.parametrize("content_type", [JSON, NDJSON])
@pytest.mark.parametrize("text", [b'\\"[', b'"[\\', b"\\[", b'"[', b'[1\\"', b'{"":'])
def test_a_body_of_a_mebibyte_that_is_no_json_is_refused_in_as_many_steps_as_it_has_bytes(
    content_type: str, text: bytes
) -> None:
    # Steps that grow with the square of the length would take hours.
    for begin in (b"", b'{"commands":["', b'"'):
        with pytest.raises((Malformed, LimitExceeded)):
            decode_commands(content_type, begin + text * (2**20 // len(text)))


@pytest.mark.parametrize("content_type", [JSON, NDJSON])
@pytest.mark.parametrize("text", ['\\"[', "[\\\\", '\\"' * 20 + ":" * 20 + "1" * 30])
def test_a_text_of_a_mebibyte_that_looks_like_more_is_taken(content_type: str, text: str) -> None:
    command = ["add", text * (2**20 // len(text)), 1]
    body = json.dumps(command) if content_type == NDJSON else json.dumps({"commands": [command]})
    assert decode_commands(content_type, body.encode()) == [command]


@pytest.mark.parametrize("count", [MOST + 1, 70_000])
def test_a_batch_of_msgpack_that_is_too_long_is_refused_by_its_head(count: int) -> None:
    # The items are not even msgpack.
    body = array_head(count) + b"\xc1" * count
    with pytest.raises(LimitExceeded) as refused:
        decode_records(MSGPACK, body)
    assert refused.value.size == count
    with pytest.raises(LimitExceeded):
        decode_commands(MSGPACK, b"\x81\xa8commands" + body)


NUMBERS = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(EDGES)


@given(st.lists(NUMBERS, min_size=1, max_size=6))
def test_integers_that_do_not_fit_are_found_among_other_numbers(numbers: list[float]) -> None:
    body = json.dumps([*numbers, "9" * 30, {f"{number}": number for number in numbers}]).encode()
    fits = all(type(number) is float or -(2**63) <= number < 2**64 for number in numbers)
    if fits:
        assert decode_records(JSON, body) == [json.loads(body)]
    else:
        with pytest.raises(Malformed, match="does not fit 64 bits"):
            decode_records(JSON, body)


LONG = [False] * 20_000


@pytest.mark.parametrize("content_type", [JSON, MSGPACK, NDJSON])
def test_what_cannot_be_stored_is_found_beside_many_scalars(content_type: str) -> None:
    def encode(value: object) -> bytes:
        return pack([value]) if content_type == MSGPACK else json.dumps(value).encode()

    assert decode_records(content_type, encode(LONG)) == [LONG]
    assert decode_records(content_type, encode([*LONG, 1.5, nested(DEPTH_LIMIT - 1)])) == [
        [*LONG, 1.5, nested(DEPTH_LIMIT - 1)]
    ]
    for wrong in (nested(DEPTH_LIMIT), {"a": nested(DEPTH_LIMIT - 1)}, float("nan"), [float("inf")]):
        for value in ([*LONG, wrong], [wrong, *LONG], {"a": LONG, "b": wrong}):
            with pytest.raises(Malformed):
                decode_records(content_type, encode(value))
    if content_type != MSGPACK:
        with pytest.raises(Malformed, match="the same key twice"):
            decode_records(content_type, json.dumps([*LONG, {"a": 1}]).replace("1}", '1, "a": 2}').encode())


@given(st.binary(max_size=64))
def test_random_bytes_are_decoded_or_refused_as_malformed(body: bytes) -> None:
    for content_type in (JSON, MSGPACK, NDJSON):
        for decode in (decode_commands, decode_records):
            try:
                decode(content_type, body)
            except Malformed:
                continue


@pytest.mark.parametrize("count", [0, 1, 15, 16, 0xFFFF, 0x10000])
def test_the_head_of_an_array_tells_its_items(count: int) -> None:
    assert array_count(b"\x81" + array_head(count) + bytes(count), 1) == count
    if count:
        assert array_count(array_head(count) + bytes(count - 1), 0) == 0, "there are fewer bytes than items"
    assert all(array_count(array_head(count)[:cut], 0) == 0 for cut in range(3))


@given(st.text(alphabet='"\\:[]{}019- \n', max_size=12).map(json.dumps), st.text(alphabet='"\\:[{019', max_size=8))
def test_what_is_outside_strings_has_no_string_in_it(text: str, other: str) -> None:
    bare = decoding.outside_strings(f"[{text}, {json.dumps(other)}:7]".encode())
    assert bare == b"[, :7]"


def test_a_batch_may_be_as_large_as_its_limit_and_no_larger() -> None:
    assert len(pack_records(["x" * 100], 103)) == 103
    with pytest.raises(LimitExceeded) as refused:
        pack_records(["x" * 100], 102)
    assert (refused.value.size, refused.value.limit) == (103, 102)


@pytest.mark.parametrize(
    "value",
    [
        '{"a": 1, "a": 1}',
        '{"a":1,"b":2,"a":3}',
        '{"a" : 1, "a"\t:2}',
        '{"": 1, "": 2}',
        '{"a": 1, "\\u0061": 2}',
        '[[{"x": {"a": 1, "a": 2}}]]',
        '{"a\\\\": 1, "a\\\\": 2}',
        '{"x": 1, "x": 2, "a\\\\": 3}',
        '{"text": ":", "text": ":"}',
        '{"a": "\\":", "a": 1}',
    ],
)
def test_a_map_that_has_a_key_twice_is_refused(value: str) -> None:
    with pytest.raises(Malformed, match="the same key twice"):
        decode_records(JSON, value.encode())
    with pytest.raises(MalformedLine, match="line 2 has a map with the same key twice"):
        decode_records(NDJSON, b"[]\n" + value.encode())
    with pytest.raises(Malformed, match="the same key twice"):
        decode_commands(JSON, b'{"commands": [' + value.encode() + b"]}")


def test_a_body_with_two_lists_of_commands_is_refused() -> None:
    with pytest.raises(Malformed, match="the same key twice"):
        decode_commands(JSON, b'{"commands": [["add", 1]], "commands": [["add", 2]]}')
    with pytest.raises(Malformed, match="the same key twice"):
        decode_commands(MSGPACK, b"\x82" + 2 * (pack("commands") + pack([1])))


@pytest.mark.parametrize("pairs", [b"\x82\x01\x01\x01\x02", b"\x82\xa1a\x01\xa1a\x02", b"\x82\x01\x01\xc3\x02"])
def test_a_msgpack_map_whose_keys_are_equal_in_python_is_refused(pairs: bytes) -> None:
    with pytest.raises(Malformed, match="the same key twice"):
        decode_records(MSGPACK, b"\x91" + pairs)


TEXTS = st.text(alphabet='a":\\ \n', max_size=4)
VALUES = st.recursive(
    st.integers(-9, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.lists(st.tuples(TEXTS, inner), max_size=3).map(Pairs),
    max_leaves=8,
)


@given(VALUES, st.sampled_from(["", " ", "\t\r\n"]))
def test_colons_and_quotes_in_strings_are_not_keys(value: object, space: str) -> None:
    text = written(value, space)

    if repeats(value):
        with pytest.raises(Malformed, match="the same key twice"):
            decode_records(JSON, text.encode())
    else:
        assert decode_records(JSON, text.encode()) == [json.loads(text)]


@pytest.mark.parametrize("content_type", [JSON, MSGPACK, NDJSON])
def test_a_body_may_hold_as_many_commands_or_records_as_the_limit_and_not_one_more(content_type: str) -> None:
    def encoded(count: int, commands: bool) -> bytes:
        values = [["add", 1]] * count
        if content_type == NDJSON:
            return b"\n".join(json.dumps(value).encode() for value in values)
        document = {"commands": values} if commands else values
        return json.dumps(document).encode() if content_type == JSON else pack(document)

    assert len(decode_commands(content_type, encoded(MOST, True))) == MOST
    with pytest.raises(LimitExceeded, match="the number of commands"):
        decode_commands(content_type, encoded(MOST + 1, True))
    if content_type != JSON:  # As records, JSON is one value.
        assert len(decode_records(content_type, encoded(MOST, False))) == MOST
        with pytest.raises(LimitExceeded, match="the number of records"):
            decode_records(content_type, encoded(MOST + 1, False))


@pytest.mark.parametrize("content_type", [JSON, MSGPACK])
@pytest.mark.parametrize("empty", [[], {}])
def test_a_body_may_hold_as_many_lists_and_maps_as_the_limit_and_not_one_more(content_type: str, empty: object) -> None:
    encode = pack if content_type == MSGPACK else lambda value: json.dumps(value).encode()
    held = CONTAINERS_LIMIT - 3  # The document, the commands and the command are the others.
    assert len(decode_commands(content_type, encode({"commands": [[empty] * held]}))[0]) == held
    with pytest.raises(LimitExceeded, match="lists, maps and ext types"):
        decode_commands(content_type, encode({"commands": [[empty] * (held + 1)]}))


def test_ext_types_count_as_lists_and_maps_do() -> None:
    held = CONTAINERS_LIMIT - 2  # The records and the record are the others.
    assert len(decode_records(MSGPACK, pack([[ExtType(16, b"x")] * held]))[0]) == held
    with pytest.raises(LimitExceeded, match="lists, maps and ext types"):
        decode_records(MSGPACK, pack([[ExtType(16, b"x")] * (held + 1)]))


@pytest.mark.parametrize("content_type", [JSON, MSGPACK, NDJSON])
@pytest.mark.parametrize("text", ["[{" * CONTAINERS_LIMIT, 'ж\\"[' * CONTAINERS_LIMIT])
def test_brackets_and_high_bytes_in_texts_are_no_lists_and_maps(content_type: str, text: str) -> None:
    encode = pack if content_type == MSGPACK else lambda value: json.dumps(value, ensure_ascii=False).encode()
    body = encode([text]) if content_type == NDJSON else encode({"commands": [[text]]})
    found = decode_commands(content_type, body)
    assert found == [[text]]
