"""Frames span messages, and only whole ones count (rule 8)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.log import HEADER_BYTES, Kind, encode_frame, encode_records
from quire.replication.net.wire import BadMessage, FrameAssembler

LIMIT = 4096


def frames(*sizes: int) -> list[bytes]:
    """Frames with payloads of about these sizes; the epoch of each is its place."""
    return [
        encode_frame(
            index=place,
            epoch=place,
            timestamp=1,
            count=1,
            prev_crc32c=0,
            kind=Kind.RECORDS,
            payload=encode_records(["x" * size]),
        )
        for place, size in enumerate(sizes)
    ]


def assemble(pieces: list[bytes], limit: int = LIMIT) -> tuple[list[bytes], list[int]]:
    """What each piece made whole, and the epochs told."""
    assembler = FrameAssembler(limit)
    assembled = [assembler.feed(memoryview(piece)) for piece in pieces]
    return [each.raw for each in assembled], [each.last_epoch for each in assembled]


def test_frames_cut_at_every_byte_come_out_whole_and_in_order() -> None:
    parts = frames(5, 70, 0)
    stream = b"".join(parts)
    ends = [len(parts[0]), len(parts[0]) + len(parts[1]), len(stream)]

    for cut in range(len(stream) + 1):
        raws, epochs = assemble([stream[:cut], stream[cut:]])
        whole = max([end for end in ends if end <= cut], default=0)
        assert raws == [stream[:whole], stream[whole:]], cut
        assert epochs[0] == (ends.index(whole) if whole else 0)
        assert epochs[1] == (2 if whole < len(stream) else 0)


def test_frames_that_arrive_byte_by_byte_come_out_when_their_last_byte_does() -> None:
    parts = frames(3, 40)
    raws, _ = assemble([bytes([byte]) for byte in b"".join(parts)])

    assert [raw for raw in raws if raw] == parts
    assert raws[len(parts[0]) - 1] == parts[0]
    assert raws[-1] == parts[1]


@given(st.lists(st.integers(0, 400), min_size=1, max_size=6), st.data())
def test_any_cut_of_any_frames_gives_the_same_frames(sizes: list[int], data: st.DataObject) -> None:
    stream = b"".join(frames(*sizes))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

    raws, _ = assemble(pieces)

    assert b"".join(raws) == stream


def test_an_empty_piece_yields_nothing_and_keeps_the_buffer() -> None:
    part = frames(9)[0]
    raws, epochs = assemble([b"", part[:20], b"", part[20:], b""])

    assert raws == [b"", b"", b"", part, b""]
    assert epochs == [0] * 5


def test_a_frame_of_the_limit_passes_and_one_byte_more_does_not() -> None:
    size = len(frames(1000)[0])

    assert assemble(frames(1000), limit=size) == (frames(1000), [0])
    with pytest.raises(BadMessage, match="limit"):
        assemble(frames(1001), limit=size)


def test_a_frame_that_is_too_large_is_refused_with_its_header_and_not_collected() -> None:
    part = frames(5000)[0]

    with pytest.raises(BadMessage, match="limit"):
        assemble([part[:HEADER_BYTES]])


def test_garbage_is_refused_with_its_first_header() -> None:
    with pytest.raises(BadMessage):
        assemble([b"\xff" * HEADER_BYTES])
    with pytest.raises(BadMessage):
        assemble([frames(5)[0] + bytes(HEADER_BYTES)])


def test_garbage_after_a_piece_of_a_frame_is_refused() -> None:
    part = frames(5)[0]
    with pytest.raises(BadMessage):
        assemble([part[:30], part[30:] + b"\xff" * HEADER_BYTES])


@given(st.binary(min_size=HEADER_BYTES, max_size=200))
def test_any_other_bytes_are_refused_as_a_peers_fault(data: bytes) -> None:
    with pytest.raises(BadMessage):
        assemble([data])
