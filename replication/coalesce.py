"""Whatever waits becomes one frame (DESIGN 3): clients' writes, and how they share frames.

Sessionless records that stand next to one another share a `records` frame; a blob stands alone. A request is never
split, and its records are consecutive.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from quire.log import Kind


@dataclass(eq=False, slots=True)
class Write:
    """A client's write: a payload as DESIGN 3 has it for its kind, with the smallest array head.

    `owner` is whatever the node above wants to find again. `expected_index`: refused unless it would stand there.
    """

    payload: bytes
    count: int
    kind: Kind = Kind.RECORDS
    expected_index: int | None = None
    owner: Any = field(default=None, repr=False)

    @property
    def size(self) -> int:
        """Bytes that it adds to a frame."""
        return len(self.payload)


class Share(NamedTuple):
    """A write's share of a frame: its records begin `offset` records after the frame's first."""

    write: Write
    offset: int


class Sheet(NamedTuple):
    """One frame to append: a ready payload, and whose records it holds."""

    kind: Kind
    count: int  # type: ignore[assignment]  # It hides tuple.count, which nobody needs here.
    payload: bytes
    shares: Sequence[Share]


def array_head(count: int) -> bytes:
    """The smallest msgpack head of an array of `count`."""
    if count < 16:
        return bytes([0x90 | count])
    if count < 1 << 16:
        return struct.pack(">BH", 0xDC, count)
    return struct.pack(">BI", 0xDD, count)


def to_sheets(writes: Iterable[Write], next_index: int, rejected: list[Write]) -> Iterator[Sheet]:
    """Yield the frames that hold `writes`, in order; those with another `expected_index` go to `rejected` instead.

    `next_index` is the log's highest_index before the first; all frames but the last are taken to be appended.
    """
    shares: list[Share] = []
    count = 0
    for write in writes:
        if write.expected_index not in (None, next_index + count):
            rejected.append(write)
        elif write.kind is Kind.RECORDS:
            shares.append(Share(write, count))
            count += write.count
        else:
            if shares:
                yield _records(shares, count)
            yield Sheet(write.kind, write.count, write.payload, (Share(write, 0),))
            next_index += count + write.count
            shares, count = [], 0
    if shares:
        yield _records(shares, count)


def _records(shares: list[Share], count: int) -> Sheet:
    if len(shares) == 1:
        return Sheet(Kind.RECORDS, count, shares[0].write.payload, shares)
    bodies = (memoryview(share.write.payload)[len(array_head(share.write.count)) :] for share in shares)
    return Sheet(Kind.RECORDS, count, b"".join([array_head(count), *bodies]), shares)
