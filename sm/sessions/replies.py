"""The replies of one session: what its latest commands were answered, so that a retry executes nothing.

    sequence   1 ..    | block_starts[0] ..  .. | tail_start .. | recorded_end ..  .. next_sequence
               dropped | blocks, packed         | tail          | pending: in the frame being applied

Lists of Python objects cost some 300 bytes a command and work for the garbage collector, msgpack a tenth of that and
none; so all but a session's last few commands stand in blocks, which only a retry unpacks. A block is a stretch of a
sheet, and a sheet one of two:

    of a frame       msgpack [payload, [results, refused]]     shared by the sessions that had much of the frame
    of a session     msgpack [commands, [results, refused]]    what was its tail

refused: [[place in the sheet, code, text], ...]. The first is a frame's payload and its reply, both packed already: no
command is looked at again. A long command is kept as ext type 0 of a digest of its msgpack bytes, for it is only ever
compared. (No client's command is of ext types 0 to 15.)

A session holds at most `session_bytes` in blocks: beyond it the oldest go, as those do that lie outside of the window;
also the last one, where it is longer by itself. Of a shared sheet a session holds as much as it has of its commands.

Where blocks begin, and their sizes, follow from the log alone, and all of this is plain data, so it can stand in a
snapshot.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

from quire.log import Frame, PayloadInvalid, pack
from quire.log.packing import ExtType, unpack_trusted
from quire.log.payload import HEADERS_EXT_TYPE

from ..machine import Refused

TAIL_COMMANDS = 64  # A tail that reaches this becomes a block,
TAIL_BYTES = 64 << 10  # or this.
STRETCH_COMMANDS = 512  # So many at most join the tail at once, so that what one retry unpacks is short.
SHEET_COMMANDS = 16_384  # A longer frame is no sheet, for the same reason.
SHARED_COMMANDS = 16  # With fewer of a frame, a session packs its own.
SHARED_BYTES = 512  # A session may hold so many bytes of a shared sheet for each of its commands there.

COMMAND_DIGEST_BYTES = 16
_COMMAND_DIGEST_EXT_TYPE = 0
_ARRAY_OF_TWO = b"\x92"


class Recorded(NamedTuple):
    """A command that was answered, or its digest, with its result or its Refused."""

    command: Any
    reply: Any

    def is_of(self, command: Any) -> bool:
        """Whether `command` is the one that was answered."""
        known = self.command
        if type(known) is ExtType and known.code == _COMMAND_DIGEST_EXT_TYPE:
            return bool(known == command_digest(command))
        return same_command(known, command)


class Block(NamedTuple):
    """A stretch of a sheet, which begins at `place`."""

    sheet: bytes
    place: int
    of_runs: bool  # The sheet's first part is the payload of a frame of kind `runs`.
    size: int  # The session's share of the sheet, in bytes.


class Bounds(NamedTuple):
    """How much of it a session keeps: its latest commands, and bytes of blocks."""

    window: int
    bytes: int


class Replies:
    """One session's sequence and its latest replies. Changed by one thread."""

    __slots__ = (
        "block_starts",
        "blocks",
        "commands",
        "next_sequence",
        "pending",
        "pending_count",
        "refused",
        "results",
        "size",
        "tail_size",
        "tail_start",
    )

    def __init__(self) -> None:
        self.next_sequence = 1  # behind the pending ones, too
        self.pending: list[tuple[int, int]] = []  # (place, count) in the frame being applied: those have no result yet
        self.pending_count = 0
        self.block_starts: list[int] = []  # each block's first sequence
        self.blocks: list[Block] = []
        self.tail_start = 1
        self.commands: list[Any] = []  # the tail, in the three parts of a sheet
        self.results: list[Any] = []
        self.refused: list[list[Any]] = []
        self.tail_size = 0  # at least what the tail holds, as msgpack
        self.size = 0  # of blocks and tail

    @property
    def kept_from(self) -> int:
        """The first sequence whose reply is kept."""
        return self.block_starts[0] if self.block_starts else self.tail_start

    @property
    def recorded_end(self) -> int:
        """The sequence behind the last command whose reply is recorded."""
        return self.next_sequence - self.pending_count

    def reserve(self, place: int, count: int) -> None:
        """Give the next `count` sequences to the commands at `place` of the frame; a `record` brings their replies."""
        self.pending.append((place, count))
        self.pending_count += count
        self.next_sequence += count

    def pending_place(self, sequence: int) -> int:
        """The place in the frame being applied of a command that is pending."""
        at = sequence - self.recorded_end
        for place, count in self.pending:
            if at < count:
                return place + at
            at -= count
        raise IndexError(sequence)

    def record(
        self,
        commands: Sequence[Any],
        results: Sequence[Any],
        refused: dict[int, list[str]],
        bounds: Bounds,
        size_of: Callable[[int, int], int],
    ) -> None:
        """Keep the replies of what is pending.

        Commands and results are those of the whole frame, the refused by place in it; `size_of` tells what those of
        the places [start, end) hold, as msgpack.
        """
        for place, count in self.pending:
            if count == 1:
                if refused and place in refused:
                    self.refused.append([len(self.commands), *refused[place]])
                self.commands.append(commands[place])
                self.results.append(results[place])
                self._count_tail(size_of(place, place + 1))
            else:
                for start in range(place, place + count, STRETCH_COMMANDS):
                    end = min(start + STRETCH_COMMANDS, place + count)
                    self._extend_tail(start, end, commands, results, refused)
                    self._count_tail(size_of(start, end))
                    self._shorten_tail(bounds)
        self._shorten_tail(bounds)
        self.pending.clear()
        self.pending_count = 0

    def record_sheet(self, sheet: bytes, bounds: Bounds, *, of_runs: bool, commands: int) -> None:
        """Keep the replies of what is pending by the sheet of its frame, which has so many commands."""
        self._pack_tail(bounds)
        for place, count in self.pending:
            share = -(-len(sheet) * count // commands)
            self._append_block(Block(sheet, place, of_runs, share), count, bounds)
        self.pending.clear()
        self.pending_count = 0

    def forget(self) -> int:
        """Drop every reply, and no sequence; the bytes that they held. Nothing may be pending."""
        size, self.size, self.tail_size = self.size, 0, 0
        self.block_starts, self.blocks = [], []
        self.commands, self.results, self.refused = [], [], []
        self.tail_start = self.next_sequence
        return size

    def read(self, sequence: int, end: int) -> Iterator[Recorded]:
        """What was answered to [sequence, end), all of it recorded and none of it dropped."""
        while sequence < end:
            if sequence >= self.tail_start:
                place, stop = sequence - self.tail_start, end
                commands, results, refused = self.commands, self.results, self.refused
            else:
                number = bisect_right(self.block_starts, sequence) - 1
                block = self.blocks[number]
                place = block.place + sequence - self.block_starts[number]
                starts = self.block_starts
                stop = min(end, starts[number + 1] if number + 1 < len(starts) else self.tail_start)
                commands, results, refused = _sheet_of(block.sheet, block.of_runs)
            refusals = {at: Refused(code, text) for at, code, text in refused}
            for at in range(place, place + stop - sequence):
                yield Recorded(commands[at], refusals.get(at, results[at]))
            sequence = stop

    def to_row(self, number_of: Callable[[bytes], int]) -> list[Any]:
        """All of it as plain data, with a number for each sheet. Between two frames: nothing is pending."""
        blocks = [[number_of(block.sheet), block.place, block.of_runs, block.size] for block in self.blocks]
        tail = pack([self.commands, self.results, self.refused])
        return [self.next_sequence, self.tail_start, self.block_starts, blocks, self.tail_size, tail]

    @classmethod
    def from_row(cls, row: Sequence[Any], sheets: Sequence[bytes]) -> "Replies":
        """What `to_row` told.

        Raises:
            PayloadInvalid, ValueError, TypeError, IndexError: it is no such row.
        """
        replies = cls()
        replies.next_sequence, replies.tail_start, starts, blocks, replies.tail_size, tail = row
        replies.block_starts = list(starts)
        replies.blocks = [Block(sheets[number], place, of_runs, size) for number, place, of_runs, size in blocks]
        replies.size = replies.tail_size + sum(block.size for block in replies.blocks)
        try:
            replies.commands, replies.results, replies.refused = unpack_trusted(tail, ExtType)
        except PayloadInvalid:  # A map in a machine's result has an array as its key: as tuples, it is read back.
            parts = unpack_trusted(tail, ExtType, use_list=False)
            replies.commands, replies.results, replies.refused = map(list, parts)
        return replies

    def _extend_tail(
        self, start: int, end: int, commands: Sequence[Any], results: Sequence[Any], refused: dict[int, list[str]]
    ) -> None:
        if refused:
            shift = len(self.commands) - start
            self.refused += [[place + shift, *refused[place]] for place in range(start, end) if place in refused]
        self.commands += commands[start:end]
        self.results += results[start:end]

    def _count_tail(self, size: int) -> None:
        self.tail_size += size
        self.size += size

    def _shorten_tail(self, bounds: Bounds) -> None:
        if len(self.commands) >= TAIL_COMMANDS or self.tail_size >= TAIL_BYTES:
            self._pack_tail(bounds)

    def _pack_tail(self, bounds: Bounds) -> None:
        if self.commands:
            sheet = pack([self.commands, [self.results, self.refused]])
            count = len(self.commands)
            self.commands, self.results, self.refused = [], [], []
            self.size -= self.tail_size
            self.tail_size = 0
            self._append_block(Block(sheet, 0, False, len(sheet)), count, bounds)

    def _append_block(self, block: Block, count: int, bounds: Bounds) -> None:
        """Append a block, and drop those that lie wholly outside of the window, or hold too much."""
        starts, blocks = self.block_starts, self.blocks
        starts.append(self.tail_start)
        blocks.append(block)
        self.size += block.size
        self.tail_start += count
        while (len(starts) > 1 and starts[1] <= self.next_sequence - bounds.window) or (
            starts and self.size - self.tail_size > bounds.bytes
        ):
            self.size -= blocks[0].size
            del starts[0], blocks[0]


def sheet_of_frame(frame: Frame, packed_reply: bytes) -> bytes:
    """The sheet that sessions can share."""
    return b"".join((_ARRAY_OF_TWO, frame.payload, packed_reply))


def same_command(one: Any, other: Any) -> bool:
    """Whether two commands are one: equal msgpack bytes, so 1, 1.0 and true are three."""
    return pack(one) == pack(other)


def command_digest(command: Any) -> Any:
    """What is kept of a long command: equal for equal ones."""
    return ExtType(_COMMAND_DIGEST_EXT_TYPE, blake2b(pack(command), digest_size=COMMAND_DIGEST_BYTES).digest())


@lru_cache(maxsize=1)  # Who retries goes through a sheet from one end to the other.
def _sheet_of(sheet: bytes, of_runs: bool) -> tuple[list[Any], list[Any], list[list[Any]]]:
    """Commands, results and refused. Raises PayloadInvalid."""
    first, (results, refused) = unpack_trusted(sheet, _value_of_ext)
    return first[1] if of_runs else first, results, refused


def _value_of_ext(code: int, data: bytes) -> Any:
    """A record's value without its headers, which a frame's payload may hold; any other ext as it is."""
    return unpack_trusted(data, ExtType)[1] if code == HEADERS_EXT_TYPE else ExtType(code, data)
