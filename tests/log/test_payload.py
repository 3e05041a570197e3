"""The records of a frame, all and some."""

import pytest

from quire.log import Frame, Kind, encode_frame, frame_records, stored_records, walk_frames
from quire.log.packing import array_head
from quire.log.payload import Record, Run, encode_blob, encode_records, encode_runs, encode_system

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
    "places",
    [slice(None), slice(0, 0), slice(1, 3), slice(2, 99), slice(0, 5, 2), slice(1, 5, 3), slice(0, 1)],
    ids=str,
)
def test_some_records_of_a_frame_are_those_that_stand_there(kind: Kind, places: slice) -> None:
    whole = [(record.value, record.headers) for record in stored_records(frame(kind))]

    assert [tuple(record) for record in frame_records(frame(kind), places)] == whole[places]


@pytest.mark.parametrize("count", [0, 1, 15, 16, 65_535, 65_536, 1 << 20])
def test_an_array_head_is_the_one_that_msgpack_writes(count: int) -> None:
    head = array_head(count)
    if count:
        assert encode_records([None] * count)[: len(head)] == head
    assert len(head) == (1 if count < 16 else 3 if count < 65_536 else 5)
