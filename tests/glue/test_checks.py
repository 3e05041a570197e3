"""The checks can fail: each finds what is planted in an archive, or in what callers were told."""

from typing import Any

import pytest

from quire.log import Kind, encode_frame, encode_records, encode_system, walk_frames
from tests.glue.checks import COUNTER, Archive, Asked, Violation, check_asked, check_reads

COUNTED = ["incr", COUNTER]
OTHER = ["put", "k", 1]
STARTED = {"type": "epoch_start", "node_id": "n1"}
ROLES = {"n1": "voter", "n2": "voter", "n3": "observer"}
PROMOTED = {"type": "members", "members": [[name, bytes(16), f"{name}:1", role] for name, role in ROLES.items()]}


def archive_of(*frames: Any) -> Archive:
    """An archive of these from index 0 on: a list of commands, or a system record."""
    archive, index, crc32c = Archive(), 0, 0
    for content in frames:
        is_system = isinstance(content, dict)
        raw = encode_frame(
            index=index,
            epoch=1,
            timestamp=1,
            count=1 if is_system else len(content),
            prev_crc32c=crc32c,
            kind=Kind.SYSTEM if is_system else Kind.RECORDS,
            payload=encode_system(content) if is_system else encode_records(content),
            session=0,
            sequence=0,
        )
        [frame] = walk_frames(raw)
        archive.frames[index] = frame
        index, crc32c = frame.header.next_index, frame.header.crc32c
    return archive


# Indices 1, 3, 4 and 6 are counted.
COUNTS = archive_of(STARTED, [COUNTED, OTHER], [COUNTED], [COUNTED, OTHER, COUNTED])
COUNT_BELOW = {0: 0, 1: 0, 3: 1, 4: 2, 7: 4}
"""By each boundary. At 1, 3 and 4 the next record is one that is counted."""


def test_a_read_of_all_that_is_below_its_index_is_good() -> None:
    check_reads(list(COUNT_BELOW.items()), COUNTS)


@pytest.mark.parametrize("off_by", [-1, 1])
@pytest.mark.parametrize("applied_index", COUNT_BELOW)
def test_a_read_that_lacks_a_record_below_its_index_or_has_one_of_above_is_found(
    applied_index: int, off_by: int
) -> None:
    with pytest.raises(Violation, match="a read is of the state at its index"):
        check_reads([(0, 0), (applied_index, COUNT_BELOW[applied_index] + off_by)], COUNTS)


TOLD = archive_of(STARTED, PROMOTED, [COUNTED])


def transferred(leader: str, *, wanted: str | None = None) -> Asked:
    return Asked("/admin/transfer", wanted, {"leader": leader, "epoch": 1})


def promoted(node_id: str, *changes: int) -> Asked:
    return Asked(f"/members/{node_id}", None, {"changes": list(changes)})


def test_what_an_operator_was_told_of_the_log_is_good_if_it_is_so() -> None:
    check_asked([transferred("n1"), transferred("n1", wanted="n1"), promoted("n2", 1), promoted("n3")], TOLD)


@pytest.mark.parametrize(
    ("asked", "rule"),
    [
        (transferred("n2"), "names who leads"),
        (transferred("n1", wanted="n2"), "names who leads"),
        (promoted("n2", 0), "the records of a change are in the log"),
        (promoted("n2", 2), "the records of a change are in the log"),
        (promoted("n2", 1, 3), "the records of a change are in the log"),
        (promoted("n3", 1), "who was promoted votes"),
        (promoted("n4", 1), "who was promoted votes"),
    ],
)
def test_what_an_operator_was_told_and_is_not_in_the_log_is_found(asked: Asked, rule: str) -> None:
    with pytest.raises(Violation, match=rule):
        check_asked([transferred("n1"), asked], TOLD)
