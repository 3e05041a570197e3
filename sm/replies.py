"""The replies of one session: what its latest commands were answered, so that a retry executes nothing.

    sequence   1 ..    | block_starts[0] ..  .. | tail_start .. | recorded_end ..  .. next_sequence
               dropped | blocks, packed         | tail          | pending: in the frame being applied

Lists of Python objects cost some 300 bytes a command and work for the garbage collector, msgpack a tenth of that and
none; so all but a session's last few commands stand in blocks, which only a retry unpacks:

    block      msgpack [commands, [results, refused]]     refused: [[place in the block, code, text], ...]

This is a `records` frame's payload and its reply, both packed already: a frame of one session becomes a block without
another look at its commands. A long command is kept as ext type 0 of a digest of its msgpack bytes, for it is only ever
compared. (No client's command is of ext types 0 to 15.)

Where blocks begin follows from the log alone, and all of this is plain data, so it can stand in a snapshot.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from operator import itemgetter
from typing import Any, NamedTuple

from quire.log import pack
from quire.log.packing import ExtType, unpack_trusted
from quire.log.payload import HEADERS_EXT_TYPE

from .machine import Refused

TAIL_COMMANDS = 64  # A tail that reaches this becomes a block.
BLOCK_COMMANDS = range(16, 513)  # So many of one session in one frame are a block at once; more are several.

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


class Replies:
    """One session's sequence and its latest replies. Changed by one thread."""

    __slots__ = ("block_starts", "blocks", "commands", "next_sequence", "pending", "refused", "results", "tail_start")

    def __init__(self) -> None:
        self.next_sequence = 1  # behind the pending ones, too
        self.pending: list[int] = []  # places, in the frame being applied, of commands that have no result yet
        self.block_starts: list[int] = []  # each block's first sequence
        self.blocks: list[bytes] = []
        self.tail_start = 1
        self.commands: list[Any] = []  # the tail, in the three parts of a block
        self.results: list[Any] = []
        self.refused: list[list[Any]] = []

    @property
    def recorded_end(self) -> int:
        """The sequence behind the last command whose reply is recorded."""
        return self.next_sequence - len(self.pending)

    def reserve(self, place: int, count: int) -> None:
        """Give the next `count` sequences to the commands at `place` of the frame; a `record` brings their replies."""
        if count == 1:
            self.pending.append(place)
        else:
            self.pending.extend(range(place, place + count))
        self.next_sequence += count

    def record(
        self, commands: Sequence[Any], results: Sequence[Any], refused: dict[int, list[str]], window: int
    ) -> None:
        """Keep the replies of what is pending: commands and results of the whole frame, the refused by place in it."""
        pending = self.pending
        if len(pending) < BLOCK_COMMANDS.start:
            self._extend_tail(pending, commands, results, refused)
        else:
            self._pack_tail(window)
            for start in range(0, len(pending), BLOCK_COMMANDS[-1]):
                self._extend_tail(pending[start : start + BLOCK_COMMANDS[-1]], commands, results, refused)
                self._pack_tail(window)
        if len(self.commands) >= TAIL_COMMANDS:
            self._pack_tail(window)
        pending.clear()

    def record_frame(self, payload: bytes, packed_reply: bytes, window: int) -> None:
        """Keep the replies of what is pending, all of a `records` frame: its payload, its packed results and refused.

        As many commands as a block may have.
        """
        self._pack_tail(window)
        self._append_block(_ARRAY_OF_TWO + payload + packed_reply, len(self.pending), window)
        self.pending.clear()

    def read(self, sequence: int, end: int) -> Iterator[Recorded]:
        """What was answered to [sequence, end), all of it recorded and none of it dropped."""
        while sequence < end:
            if sequence >= self.tail_start:
                first, commands, results, refused = self.tail_start, self.commands, self.results, self.refused
            else:
                number = bisect_right(self.block_starts, sequence) - 1
                first = self.block_starts[number]
                commands, (results, refused) = unpack_trusted(self.blocks[number], _value_of_ext)
            refusals = {place: Refused(code, text) for place, code, text in refused}
            places = range(sequence - first, min(end - first, len(commands)))
            for place in places:
                yield Recorded(commands[place], refusals.get(place, results[place]))
            sequence = first + places.stop

    def _extend_tail(
        self, places: list[int], commands: Sequence[Any], results: Sequence[Any], refused: dict[int, list[str]]
    ) -> None:
        if refused:
            first = len(self.commands)
            self.refused += [[at, *refused[place]] for at, place in enumerate(places, first) if place in refused]
        if len(places) == 1:
            self.commands.append(commands[places[0]])
            self.results.append(results[places[0]])
        else:
            of_places = itemgetter(*places)
            self.commands += of_places(commands)
            self.results += of_places(results)

    def _pack_tail(self, window: int) -> None:
        if self.commands:
            block = pack([self.commands, [self.results, self.refused]])
            self._append_block(block, len(self.commands), window)
            self.commands, self.results, self.refused = [], [], []

    def _append_block(self, block: bytes, count: int, window: int) -> None:
        """Append a block, and drop those that lie wholly outside of the window."""
        starts, blocks = self.block_starts, self.blocks
        starts.append(self.tail_start)
        blocks.append(block)
        self.tail_start += count
        while len(starts) > 1 and starts[1] <= self.next_sequence - window:
            del starts[0], blocks[0]


def same_command(one: Any, other: Any) -> bool:
    """Whether two commands are one: equal msgpack bytes, so 1, 1.0 and true are three."""
    return pack(one) == pack(other)


def command_digest(command: Any) -> Any:
    """What is kept of a long command: equal for equal ones."""
    return ExtType(_COMMAND_DIGEST_EXT_TYPE, blake2b(pack(command), digest_size=COMMAND_DIGEST_BYTES).digest())


def _value_of_ext(code: int, data: bytes) -> Any:
    """A record's value without its headers, which a frame's payload may hold; any other ext as it is."""
    return unpack_trusted(data, ExtType)[1] if code == HEADERS_EXT_TYPE else ExtType(code, data)
