"""The replies of sessions: the answers to the latest commands of each, so that retries do not execute again.

    sequence   1 ..    | block_starts[0] ..  .. | tail_start .. | recorded_end ..  .. next_sequence
               dropped | blocks, packed         | tail          | pending: in the frame being applied

Python objects take some 300 bytes per command and burden the garbage collector; msgpack takes a tenth of that and does
not. So all but the last few commands of a session are in blocks, which only a retry unpacks. A block is a part of a
sheet, and there are two kinds of sheet:

    of a frame       msgpack [payload, [results, refused]]     shared by the sessions with many commands in the frame
    of a session     msgpack [commands, [results, refused]]    a former tail

refused: [[position in the sheet, code, text], ...]. A frame's sheet consists of its payload and its reply, both already
packed, so no command is packed again. A long command is kept as ext type 0 with a digest of its msgpack bytes, because
it is only compared. (No client's command has an ext type of 0 to 15.)

The blocks of a session take at most `session_bytes`: above that the oldest are dropped, even the only one, as are those
entirely outside the window. A session's share of a shared sheet is proportional to its commands in it.

Block boundaries and sizes depend on the log alone, and everything is plain data, so a snapshot can hold it unchanged.
`AllReplies` counts the bytes of all sessions, and keeps them in the order of use.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

from quire.log import Frame, PayloadInvalid, check_containers, pack
from quire.log.packing import ExtType, unpack_trusted
from quire.log.payload import HEADERS_EXT_TYPE

from ..machine import RefusalRow, Refused
from ..numbers import number_of

TAIL_COMMANDS = 64  # A tail of this many commands becomes a block,
TAIL_BYTES = 64 << 10  # and so does one of this many bytes.
MAX_TAIL_CONTAINERS = 1 << 22  # In the packed tail of a snapshot: 64 bodies have half as many.
STRETCH_COMMANDS = 512  # At most this many join the tail at once; bounds what one retry unpacks.
SHEET_COMMANDS = 16_384  # A frame with more commands is not used as a sheet, for the same reason.
SHARED_COMMANDS = 16  # With fewer commands in a frame, a session packs a sheet of its own.
SHARED_BYTES = 512  # A session may keep a shared sheet alive with at most this many bytes a command.

COMMAND_DIGEST_BYTES = 16
_COMMAND_DIGEST_EXT_TYPE = 0
_ARRAY_OF_TWO = b"\x92"


class Recorded(NamedTuple):
    """An answered command, or its digest, with its result or Refused."""

    command: Any
    reply: object

    def is_of(self, command: object) -> bool:
        """Whether `command` equals the answered one."""
        known = self.command
        if type(known) is ExtType and known.code == _COMMAND_DIGEST_EXT_TYPE:
            return bool(known == command_digest(command))
        return same_command(known, command)


class Block(NamedTuple):
    """The part of a sheet that starts at `position`."""

    sheet: bytes
    position: int
    of_runs: bool  # The sheet is of a frame of kind `runs`.
    size: int  # The session's share of the sheet, in bytes.


class Bounds(NamedTuple):
    """How much a session keeps: the number of latest commands, and the bytes of its blocks."""

    window: int
    bytes: int


class Replies:
    """One session's sequence and its latest replies. One thread changes it."""

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
        "used_at",
    )

    def __init__(self) -> None:
        self.next_sequence = 1  # After the pending ones.
        self.pending: list[tuple[int, int]] = []  # (position, count) in the frame being applied; no results yet.
        self.pending_count = 0
        self.block_starts: list[int] = []  # Each block's first sequence.
        self.blocks: list[Block] = []
        self.tail_start = 1
        self.commands: list[object] = []  # The tail, in the three parts of a sheet.
        self.results: list[object] = []
        self.refused: list[RefusalRow] = []
        self.tail_size = 0  # An upper bound for the msgpack bytes of the tail.
        self.size = 0  # Of blocks and tail.
        self.used_at = 0  # The timestamp of the last frame that opened or used the session.

    @property
    def kept_from(self) -> int:
        """The first sequence whose reply is kept."""
        return self.block_starts[0] if self.block_starts else self.tail_start

    @property
    def recorded_end(self) -> int:
        """The sequence after the last recorded reply."""
        return self.next_sequence - self.pending_count

    def reserve(self, position: int, count: int) -> None:
        """Give the next `count` sequences to the commands from `position` on; `record` adds their replies."""
        self.pending.append((position, count))
        self.pending_count += count
        self.next_sequence += count

    def pending_position(self, sequence: int) -> int:
        """The position of a pending command in the frame being applied."""
        at = sequence - self.recorded_end
        for position, count in self.pending:
            if at < count:
                return position + at
            at -= count
        raise IndexError(sequence)

    def record(
        self,
        commands: Sequence[object],
        results: Sequence[object],
        refused: dict[int, list[str]],
        bounds: Bounds,
        size_of: Callable[[int, int], int],
    ) -> None:
        """Keep the replies of the pending commands.

        `commands` and `results` are those of the whole frame, `refused` is keyed by the position in it.
        `size_of(start, end)` gives the msgpack bytes of the positions [start, end).
        """
        for position, count in self.pending:
            if count == 1:
                if refused and position in refused:
                    self.refused.append([len(self.commands), *refused[position]])
                self.commands.append(commands[position])
                self.results.append(results[position])
                self._count_tail(size_of(position, position + 1))
            else:
                for start in range(position, position + count, STRETCH_COMMANDS):
                    end = min(start + STRETCH_COMMANDS, position + count)
                    self._extend_tail(start, end, commands, results, refused)
                    self._count_tail(size_of(start, end))
                    self._shorten_tail(bounds)
        self._shorten_tail(bounds)
        self.pending.clear()
        self.pending_count = 0

    def record_sheet(self, sheet: bytes, bounds: Bounds, *, of_runs: bool, commands: int) -> None:
        """Keep the replies of the pending commands as blocks of their frame's sheet; it has `commands` commands."""
        self._pack_tail(bounds)
        for position, count in self.pending:
            share = -(-len(sheet) * count // commands)
            self._append_block(Block(sheet, position, of_runs, share), count, bounds)
        self.pending.clear()
        self.pending_count = 0

    def forget(self) -> int:
        """Drop all replies but keep the sequence; return the freed bytes. Nothing may be pending."""
        size, self.size, self.tail_size = self.size, 0, 0
        self.block_starts, self.blocks = [], []
        self.commands, self.results, self.refused = [], [], []
        self.tail_start = self.next_sequence
        return size

    def read(self, sequence: int, end: int) -> Iterator[Recorded]:
        """The recorded replies of [sequence, end), none of which may be dropped."""
        while sequence < end:
            if sequence >= self.tail_start:
                position, stop = sequence - self.tail_start, end
                commands, results, refused = self.commands, self.results, self.refused
            else:
                number = bisect_right(self.block_starts, sequence) - 1
                block = self.blocks[number]
                position = block.position + sequence - self.block_starts[number]
                starts = self.block_starts
                stop = min(end, starts[number + 1] if number + 1 < len(starts) else self.tail_start)
                commands, results, refused = _sheet_of(block.sheet, block.of_runs)
            refusals = {at: Refused(code, text) for at, code, text in refused}
            for at in range(position, position + stop - sequence):
                yield Recorded(commands[at], refusals.get(at, results[at]))
            sequence = stop

    def to_row(self, number_of: Callable[[bytes], int]) -> list[object]:
        """Everything as plain data, with a number for each sheet. Nothing may be pending."""
        blocks = [[number_of(block.sheet), block.position, block.of_runs, block.size] for block in self.blocks]
        tail = pack([self.commands, self.results, self.refused])
        return [self.next_sequence, self.tail_start, self.block_starts, blocks, self.tail_size, tail]

    @classmethod
    def from_row(cls, row: Sequence[Any], sheets: Sequence[bytes]) -> "Replies":
        """The inverse of `to_row`.

        Raises:
            PayloadInvalid, ValueError, TypeError, IndexError: `to_row` did not write this row.
        """
        replies = cls()
        replies.next_sequence, replies.tail_start, starts, blocks, replies.tail_size, tail = row
        if type(starts) is not list or type(blocks) is not list or len(starts) != len(blocks):
            raise ValueError("a session has blocks without their first sequences")
        for number in (replies.next_sequence, replies.tail_start, replies.tail_size, *starts):
            number_of(number)
        if type(tail) is not bytes:
            raise ValueError("a session's tail is not packed")
        if len(tail) > MAX_TAIL_CONTAINERS:  # A shorter one cannot hold more.
            check_containers(tail, MAX_TAIL_CONTAINERS)
        replies.block_starts = starts
        replies.blocks = [_block_of(sheets, *block) for block in blocks]
        replies.size = replies.tail_size + sum(block.size for block in replies.blocks)
        try:
            parts: Any = unpack_trusted(tail, ExtType)
            replies.commands, replies.results, replies.refused = parts
        except PayloadInvalid:  # A map in a result has an array as a key: only tuples can be unpacked as keys.
            parts = unpack_trusted(tail, ExtType, use_list=False)
            replies.commands, replies.results, replies.refused = map(list, parts)
        sequences = [*starts, replies.tail_start]
        in_tail = replies.next_sequence - replies.tail_start
        if any(type(part) is not list for part in (replies.commands, replies.results, replies.refused)):
            raise ValueError("the parts of a session's tail are not arrays")
        if sequences != sorted(set(sequences)) or not len(replies.commands) == len(replies.results) == in_tail:
            raise ValueError("a session's replies are not those of its sequences")
        return replies

    def _extend_tail(
        self, start: int, end: int, commands: Sequence[object], results: Sequence[object], refused: dict[int, list[str]]
    ) -> None:
        if refused:
            shift = len(self.commands) - start
            self.refused += [
                [position + shift, *refused[position]] for position in range(start, end) if position in refused
            ]
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
        """Append a block; drop blocks entirely outside the window, and the oldest ones above the limit on bytes."""
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


class AllReplies(ABC):
    """The replies of all open sessions: in `replies` by session, the least recently used first. `size`: their bytes."""

    def __init__(self, sessions_bytes: int) -> None:
        """They take at most `sessions_bytes`."""
        self.sessions_bytes = sessions_bytes
        self.size = 0
        self.replies: OrderedDict[int, Replies] = OrderedDict()
        # The sessions without a name, in the same order.
        self._unnamed: OrderedDict[int, None] = OrderedDict()

    def used(self, session: int, timestamp: int) -> None:
        """The log has a record of this open session, in a frame with this timestamp."""
        self.replies.move_to_end(session)
        self.replies[session].used_at = timestamp
        if session in self._unnamed:
            self._unnamed.move_to_end(session)

    def grew(self, size: int) -> None:
        """Account for `size` more bytes of replies; make room if there are too many."""
        self.size += size
        if self.size > self.sessions_bytes:
            self._make_room()

    @abstractmethod
    def _make_room(self) -> None:
        """Drop replies until they take no more than `sessions_bytes`."""


def _block_of(sheets: Sequence[bytes], number: object, position: object, of_runs: object, size: object) -> Block:
    """A block of a snapshot. Raises ValueError, IndexError."""
    if type(of_runs) is not bool:
        raise ValueError(f"{of_runs!r:.40} does not say of which kind a sheet is")
    return Block(sheets[number_of(number)], number_of(position), of_runs, number_of(size))


def sheet_of_frame(frame: Frame, packed_reply: bytes) -> bytes:
    """The sheet of a frame, which sessions can share."""
    return b"".join((_ARRAY_OF_TWO, frame.payload, packed_reply))


def same_command(one: object, other: object) -> bool:
    """Whether two commands have equal msgpack bytes; so 1, 1.0 and true differ."""
    return pack(one) == pack(other)


def command_digest(command: object) -> object:
    """The digest that is kept instead of a long command."""
    return ExtType(_COMMAND_DIGEST_EXT_TYPE, blake2b(pack(command), digest_size=COMMAND_DIGEST_BYTES).digest())


@lru_cache(maxsize=1)  # A client that retries goes through a sheet from end to end.
def _sheet_of(sheet: bytes, of_runs: bool) -> tuple[list[object], list[object], list[RefusalRow]]:
    """Commands, results and refused. Raises PayloadInvalid."""
    parts: Any = unpack_trusted(sheet, _value_of_ext)
    first, (results, refused) = parts
    return first[1] if of_runs else first, results, refused


def _value_of_ext(code: int, data: bytes) -> object:
    """The value of a record with headers; any other ext type unchanged."""
    if code != HEADERS_EXT_TYPE:
        return ExtType(code, data)
    headed: Any = unpack_trusted(data, ExtType)
    return headed[1]
