"""The records of a frame, all and some."""

from collections.abc import Callable

import pytest

from quire.log import Frame, Kind, PayloadInvalid, each_stored_record, encode_frame, pack, stored_records, walk_frames
from quire.log.packing import array_head
from quire.log.payload import (
    Record,
    Run,
    check_frame,
    check_system,
    decode_runs,
    encode_blob,
    encode_records,
    encode_runs,
    encode_system,
    stored_record,
    truncate_runs,
)

VALUES = ["a", Record("b", {"key": "text"}), 3, None, b"\x00"]
FRAMES = {
    Kind.RECORDS: (encode_records(VALUES), 5),
    Kind.RUNS: (encode_runs([Run(7, 1, 2), Run(0, 0, 1), Run(9, 5, 2)], VALUES), 5),
    Kind.BLOB: (encode_blob(b"bytes", {"name": "text"}), 1),
    Kind.SYSTEM: (encode_system({"type": "epoch_start", "node_id": "n1"}), 1),
}


def frame(kind: Kind) -> Frame:
    payload, count = FRAMES[kind]
    [made] = walk_frames(
        encode_frame(index=40, epoch=1, timestamp=1, count=count, prev_crc32c=0, kind=kind, payload=payload)
    )
    return made


@pytest.mark.parametrize("kind", FRAMES)
@pytest.mark.parametrize(
    "positions",
    [slice(None), slice(0, 0), slice(1, 3), slice(2, 99), slice(0, 5, 2), slice(1, 5, 3), slice(0, 1)],
    ids=str,
)
def test_some_records_of_a_frame_are_those_that_stand_there(kind: Kind, positions: slice) -> None:
    held = frame(kind)
    whole = [stored_record(held, index) for index in range(40, 40 + held.header.count)]

    assert stored_records(held, positions) == whole[positions]


@pytest.mark.parametrize("is_of_runs", [False, True])
def test_a_record_is_read_without_unpacking_those_beside_it(is_of_runs: bool) -> None:
    broken = b"\xa1\xff"  # A text that is no UTF-8: it cannot be unpacked, but passed over.
    records = array_head(4) + broken + pack("wanted") + broken + pack("last")
    payload = array_head(2) + pack([[7, 1, 4]]) + records if is_of_runs else records
    kind = Kind.RUNS if is_of_runs else Kind.RECORDS
    [held] = walk_frames(
        encode_frame(index=40, epoch=1, timestamp=1, count=4, prev_crc32c=0, kind=kind, payload=payload)
    )

    assert stored_record(held, 41).value == "wanted"
    assert [record.value for record in stored_records(held, slice(1, 4, 2))] == ["wanted", "last"]
    each = each_stored_record(held, slice(1, None))
    assert next(each).index == 41
    with pytest.raises(PayloadInvalid):
        next(each)


@pytest.mark.parametrize("behind", [b"", b"\x00"], ids=["cut short", "too long"])
@pytest.mark.parametrize("kind", [Kind.RECORDS, Kind.RUNS])
def test_a_payload_that_is_not_exactly_its_records_is_invalid(kind: Kind, behind: bytes) -> None:
    payload, count = FRAMES[kind]
    wrong = payload + behind if behind else payload[:-1]
    [held] = walk_frames(
        encode_frame(index=40, epoch=1, timestamp=1, count=count, prev_crc32c=0, kind=kind, payload=wrong)
    )

    with pytest.raises(PayloadInvalid):
        stored_records(held)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 65_535, 65_536, 1 << 20])
def test_an_array_head_is_the_one_that_msgpack_writes(count: int) -> None:
    head = array_head(count)
    if count:
        assert encode_records([None] * count)[: len(head)] == head
    assert len(head) == (1 if count < 16 else 3 if count < 65_536 else 5)


def test_each_record_of_a_frame_of_runs_can_be_read_by_itself_with_its_session_and_sequence() -> None:
    held = frame(Kind.RUNS)
    singly = [stored_record(held, index) for index in range(40, 45)]
    assert singly == stored_records(held)
    assert [(record.session, record.sequence) for record in singly] == [(7, 1), (7, 2), (0, 0), (9, 5), (9, 6)]


@pytest.mark.parametrize(
    ("kept", "runs"),
    [(1, [(7, 1, 1)]), (2, [(7, 1, 2)]), (3, [(7, 1, 2), (0, 0, 1)]), (4, [(7, 1, 2), (0, 0, 1), (9, 5, 1)])],
)
def test_runs_that_are_cut_keep_whole_runs_before_the_cut_and_none_behind_it(
    kept: int, runs: list[tuple[int, int, int]]
) -> None:
    payload, count = FRAMES[Kind.RUNS]
    found, values = decode_runs(truncate_runs(payload, count, kept), kept)
    assert found == [Run(*run) for run in runs]
    assert len(values) == kept


def test_a_system_record_of_others_has_as_many_bytes_and_containers_as_the_limits_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    payload = encode_system({"type": "x", "rows": [[], [], []]})
    monkeypatch.setattr("quire.log.payload.MAX_SYSTEM_BYTES", len(payload))
    monkeypatch.setattr("quire.log.payload.MAX_SYSTEM_CONTAINERS", 5)
    check_system(payload)
    with pytest.raises(PayloadInvalid, match="arrays and maps"):
        check_system(encode_system({"type": "", "rows": [[], [], [], []]}))
    with pytest.raises(PayloadInvalid, match=r"a system record has [0-9,]+ bytes"):
        check_system(payload + b"x")


HOLDING: dict[str, tuple[Kind, Callable[[int], bytes]]] = {
    "records": (Kind.RECORDS, lambda items: encode_records([[{}] * items])),
    "runs": (Kind.RUNS, lambda items: encode_runs([Run(0, 0, 1)], [[None] * items])),
    "headers": (Kind.RECORDS, lambda items: encode_records([Record([0 for _ in range(items)], {})])),
    "metadata": (Kind.BLOB, lambda items: encode_blob(b"", dict.fromkeys(map(str, range(items)), ""))),
}
"""By how many items there are; the frames of others."""


@pytest.mark.parametrize("holding", HOLDING)
def test_a_frame_of_others_has_as_many_values_as_the_limit_and_no_more(
    monkeypatch: pytest.MonkeyPatch, holding: str
) -> None:
    kind, payload = HOLDING[holding]
    others = {"records": 2, "runs": 8, "headers": 5, "metadata": 1}[holding]
    monkeypatch.setattr("quire.log.payload.MAX_FRAME_VALUES", others + 6)
    items = 3 if holding == "metadata" else 6
    check_frame(kind, payload(items))
    with pytest.raises(PayloadInvalid, match=f"holds more than {others + 6} values"):
        check_frame(kind, payload(items + 1))


def test_a_frame_of_others_is_as_long_as_its_texts_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.log.payload.MAX_FRAME_VALUES", 2)
    check_frame(Kind.RECORDS, encode_records([bytes([0x80]) * 1000]))
    check_frame(Kind.BLOB, encode_blob(bytes([0x80]) * 1000))
    monkeypatch.setattr("quire.log.payload.MAX_SYSTEM_CONTAINERS", 1)
    with pytest.raises(PayloadInvalid, match="holds more than 1 arrays and maps"):
        check_frame(Kind.SYSTEM, encode_system({"type": "", "rows": []}))
