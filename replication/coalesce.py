"""Clients' writes, and how they share frames.

Consecutive writes share a frame. Its kind is `records` if all of them are sessionless, or if they are one session's
consecutive sequences; else `runs`, with one run for each write. A blob has a frame of its own. A write is never split,
and its records are consecutive. `log/DESIGN.md` has the payloads of the kinds.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from quire.log import Kind, pack
from quire.log.packing import array_head

RUN_BYTES = 32
"""The maximum that a write adds to a `runs` frame besides its records: its session, sequence and count, packed."""

SHORT_ARRAY = 16  # A shorter array has a head of one byte.


OwnerT = TypeVar("OwnerT")
OwnerT_co = TypeVar("OwnerT_co", covariant=True)


@dataclass(eq=False, slots=True)
class Write(Generic[OwnerT_co]):
    """A client's write: the payload of a frame of its kind, with the smallest array head.

    `expected_index`: reject the write unless its first record gets this index. `sequence` is that of its first record
    in `session`; both are 0 without a session. `owner` is the object that waits for the outcome.
    """

    payload: bytes
    count: int
    kind: Kind = Kind.RECORDS
    expected_index: int | None = None
    session: int = 0
    sequence: int = 0
    owner: OwnerT_co = field(kw_only=True, repr=False)

    @property
    def size(self) -> int:
        """The maximum number of bytes that it adds to a frame."""
        return len(self.payload) + RUN_BYTES


class Share(NamedTuple, Generic[OwnerT_co]):
    """A write's share of a frame: its records begin `offset` records after the frame's first one."""

    write: Write[OwnerT_co]
    offset: int


class DraftFrame(NamedTuple, Generic[OwnerT_co]):
    """A frame to append: its payload, and the writes whose records it holds."""

    kind: Kind
    count: int  # type: ignore[assignment]  # It hides tuple.count, which nobody needs here.
    payload: bytes
    shares: Sequence[Share[OwnerT_co]]
    session: int = 0
    sequence: int = 0


def coalesce(
    writes: Iterable[Write[OwnerT]], next_index: int, misplaced: list[Write[OwnerT]]
) -> Iterator[DraftFrame[OwnerT]]:
    """Yield the frames that hold `writes`, in order. A write whose `expected_index` differs goes to `misplaced`.

    `next_index` is the log's highest_index before the first frame. All but the last must be appended.
    """
    shares: list[Share[OwnerT]] = []
    count = 0
    for write in writes:
        if write.expected_index not in (None, next_index + count):
            misplaced.append(write)
        elif write.kind is Kind.RECORDS:
            shares.append(Share(write, count))
            count += write.count
        else:
            if shares:
                yield _draft(shares, count)
            yield DraftFrame(write.kind, write.count, write.payload, (Share(write, 0),), write.session, write.sequence)
            next_index += count + write.count
            shares, count = [], 0
    if shares:
        yield _draft(shares, count)


def _draft(shares: list[Share[OwnerT]], count: int) -> DraftFrame[OwnerT]:
    first = shares[0].write
    if len(shares) == 1:
        return DraftFrame(Kind.RECORDS, count, first.payload, shares, first.session, first.sequence)
    records: list[bytes | memoryview] = [array_head(count)]
    records += [_records(write) for write, _ in shares]
    if _is_one_run(shares):
        return DraftFrame(Kind.RECORDS, count, b"".join(records), shares, first.session, first.sequence)
    runs = pack([[write.session, write.sequence, write.count] for write, _ in shares])
    return DraftFrame(Kind.RUNS, count, b"".join([array_head(2), runs, *records]), shares)


def _records(write: Write[object]) -> bytes | memoryview:
    """The payload without its array head. A short one is copied: a view costs more, and loads the garbage collector."""
    if write.count < SHORT_ARRAY:
        return write.payload[1:]
    return memoryview(write.payload)[len(array_head(write.count)) :]


def _is_one_run(shares: Sequence[Share[object]]) -> bool:
    """Whether the frame header alone can hold the session and sequence of every record."""
    first = shares[0].write
    if first.session == 0:
        return all(write.session == 0 for write, _ in shares)
    return all(write.session == first.session and write.sequence == first.sequence + offset for write, offset in shares)
