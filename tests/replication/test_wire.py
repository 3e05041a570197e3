"""The bytes of the messages: each survives a round trip, and nothing else is accepted."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.log import pack
from quire.replication.core import Promise
from quire.replication.core.messages import (
    Ack,
    Campaign,
    ControlMessage,
    CrcMismatch,
    GenesisOffer,
    Heartbeat,
    HeartbeatEcho,
    LagReport,
    Last,
    Open,
    OpenAnswer,
    OpenVerb,
    PeerMessage,
    PositionReport,
    PreVote,
    PreVoteAnswer,
    Probe,
    ProbeEcho,
    StreamMessage,
    VoteAnswer,
    VoteRequest,
)
from quire.replication.net.wire import (
    MAX_CONTROL_BYTES,
    MAX_EPOCHS,
    MAX_GENESIS_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_REASON,
    BadMessage,
    decode_peer,
    decode_stream,
    encode,
)
from tests.packed import unpacked

NODE_ID = "abcdefghijklmnopqrstuvwxyz0123456789-"
U64, U32 = st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)
FLAG = st.booleans()
DIGEST = st.binary(min_size=16, max_size=16)
PROMISE = st.builds(Promise, U64, st.text(NODE_ID, min_size=1, max_size=24), U64)
LAST = st.builds(Last, U64, U64)
REASON = st.text(st.characters(codec="utf-8"), max_size=50)
EPOCHS = st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 1000)), max_size=8).map(
    lambda steps: tuple(
        (sum(s[0] for s in steps[: n + 1]), sum(s[1] for s in steps[: n + 1])) for n in range(len(steps))
    )
)

PEER: st.SearchStrategy[PeerMessage] = st.one_of(
    st.builds(GenesisOffer, st.binary(min_size=64, max_size=200), FLAG),
    st.builds(PreVote, U64, LAST, st.none() | PROMISE),
    st.builds(Campaign, st.none() | PROMISE),
    st.builds(Probe, U64),
    st.builds(ProbeEcho, U64),
    st.builds(PreVoteAnswer, U64, FLAG, U64, LAST, U64),
    st.builds(VoteRequest, PROMISE, LAST),
    st.builds(VoteAnswer, PROMISE, FLAG, U64, U64),
    st.builds(Heartbeat, PROMISE, U64, U64),
    st.builds(HeartbeatEcho, U64, U64, U64),
    st.builds(PositionReport, U64, U64, DIGEST),
    st.builds(LagReport, U64, U64, U64),
    st.builds(ControlMessage, st.binary(min_size=1, max_size=50)),
)
STREAM: st.SearchStrategy[StreamMessage] = st.one_of(
    st.builds(Open, PROMISE, EPOCHS, U64, U64),
    st.builds(OpenAnswer, st.sampled_from(OpenVerb), U64, U32, REASON),
    st.builds(Ack, U64, U64, U64, DIGEST),
    st.builds(CrcMismatch, U64, U32),
)
VALUES = st.recursive(
    st.one_of(
        st.none(), FLAG, st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(max_size=5), st.binary(max_size=20)
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=6),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers(0, 9)), inner, max_size=3),
    ),
    max_leaves=12,
)


@given(PEER)
def test_every_message_of_a_peer_link_survives_a_round_trip(message: PeerMessage) -> None:
    assert decode_peer(encode(message)) == message


@given(STREAM)
def test_every_message_of_a_stream_survives_a_round_trip(message: StreamMessage) -> None:
    assert decode_stream(encode(message)) == message


@given(PEER)
def test_no_message_of_a_peer_link_is_accepted_on_a_stream(message: PeerMessage) -> None:
    with pytest.raises(BadMessage):
        decode_stream(encode(message))


@given(STREAM)
def test_no_message_of_a_stream_is_accepted_on_a_peer_link(message: StreamMessage) -> None:
    with pytest.raises(BadMessage):
        decode_peer(encode(message))


def taken_or_refused(decode: Callable[[bytes], object], data: bytes) -> None:
    """Decode; a `BadMessage` is an answer, anything else is an error of ours."""
    try:
        decode(data)
    except BadMessage:
        return


@given(st.binary(max_size=80))
def test_any_bytes_are_a_message_or_a_peers_fault(data: bytes) -> None:
    taken_or_refused(decode_peer, data)
    taken_or_refused(decode_stream, data)


@given(st.sampled_from([*range(12), 32, 33, 34]), st.lists(VALUES, max_size=6))
def test_any_fields_after_a_type_are_a_message_or_a_peers_fault(number: int, fields: list[object]) -> None:
    data = pack([number, *fields])
    taken_or_refused(decode_peer, data)
    taken_or_refused(decode_stream, data)


@given(st.one_of(PEER, STREAM), st.data())
def test_a_message_with_one_field_replaced_is_a_message_or_a_peers_fault(
    message: PeerMessage | StreamMessage, data: st.DataObject
) -> None:
    row = unpacked(encode(message))
    place = data.draw(st.integers(0, len(row) - 1))
    row[place] = data.draw(VALUES)
    taken_or_refused(decode_peer, pack(row))
    taken_or_refused(decode_stream, pack(row))


@given(st.one_of(PEER, STREAM), st.integers(1, 20))
def test_a_truncated_message_or_one_with_trailing_bytes_is_refused(
    message: PeerMessage | StreamMessage, size: int
) -> None:
    data = encode(message)
    for changed in (data[: -min(size, len(data))], data + bytes(size)):
        for decode in (decode_peer, decode_stream):
            with pytest.raises(BadMessage):
                decode(changed)


@pytest.mark.parametrize(
    "row",
    [
        [2, 1],
        [2, 1, [1, 1], 1],
        [2, -1, [1, 1]],
        [2, 2**64 - 1, [1, -1]],
        [2, True, [1, 1]],
        [2, 1.0, [1, 1]],
        [2, 1, [1]],
        [2, 1, {"epoch": 1}],
        [3, 1, 1, 1, [1, 1], 1],
        [6, [1, "n" * 25, 1], 1, 1],
        [6, [1, b"n1", 1], 1, 1],
        [8, 1, 1, b"15 bytes of it."],
        [8, 1, 1, "16 characters!!!"],
        [1, bytes(63), True],
        [1, bytes(MAX_GENESIS_BYTES + 1), True],
        [13, bytes(MAX_CONTROL_BYTES + 1)],
        [13, b""],
        [13, "text"],
        [True, 1, [1, 1]],
        [2.0, 1, [1, 1]],
        [],
        {},
        2,
    ],
)
def test_a_field_of_another_type_or_range_is_refused(row: object) -> None:
    with pytest.raises(BadMessage):
        decode_peer(pack(row))


@pytest.mark.parametrize("row", [[33, "resume", 1, 2**32, "", 0], [35, 1, 2**32], [35, 1, 2**64 - 1]])
def test_a_crc_of_more_than_32_bits_is_refused(row: list[object]) -> None:
    # It would pass for the crc of a frame that differs, which halts a node.
    with pytest.raises(BadMessage):
        decode_stream(pack(row))
    decode_stream(pack([2**32 - 1 if value in (2**32, 2**64 - 1) else value for value in row]))


@pytest.mark.parametrize("epochs", [[[2, 0], [1, 5]], [[1, 5], [1, 6]], [[1, 5], [2, 5]], [[1, 5], [2, 4]], [[1]], [1]])
def test_epochs_that_do_not_ascend_are_refused(epochs: object) -> None:
    with pytest.raises(BadMessage):
        decode_stream(pack([32, [1, "n1", 1], epochs, 9, 9]))


def test_the_most_epochs_fit_a_message_and_one_more_is_refused() -> None:
    start = 2**63
    most = tuple((start + number, start + number) for number in range(MAX_EPOCHS))
    opening = Open(Promise(2**64 - 1, "n" * 24, 2**64 - 1), most, 2**64 - 1, 2**64 - 1)

    assert len(encode(opening)) <= MAX_MESSAGE_BYTES
    assert decode_stream(encode(opening)) == opening
    with pytest.raises(BadMessage):
        decode_stream(pack([32, [1, "n1", 1], [[n, n] for n in range(MAX_EPOCHS + 1)], 99_999, 1]))


def test_a_control_message_at_the_limit_passes() -> None:
    longest = ControlMessage(bytes(MAX_CONTROL_BYTES))
    assert decode_peer(encode(longest)) == longest


def test_a_reason_of_the_limit_passes_and_one_character_more_does_not() -> None:
    answer = OpenAnswer(OpenVerb.REFUSE, 0, 0, "r" * MAX_REASON)

    assert decode_stream(encode(answer)) == answer
    with pytest.raises(BadMessage):
        decode_stream(pack([33, "refuse", 0, 0, "r" * (MAX_REASON + 1)]))


@pytest.mark.parametrize("name", ["n" * 25, "n1\0", "ñ1", "N1", "n 1", ""])
def test_a_candidate_that_is_not_a_node_id_is_refused(name: str) -> None:
    # It would be written into the promise file, which holds 24 ASCII bytes padded with zeros.
    with pytest.raises(BadMessage):
        decode_peer(pack([6, [1, name, 1], 1, 1]))
