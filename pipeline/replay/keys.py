"""A stretch of the log of machine `kv`, replayed in parts by key: each task executes the commands on some of the keys.

A command of `kv` reads and changes one key. So keys are independent of each other, and even one long stretch without a
snapshot inside can be replayed in parallel. Every task reads all frames, since sessions depend on everything that was
sent, but executes only its own part. The result is compared with the snapshot at the end by values, not by digest.

The limits on the state, in bytes and in keys, depend on all keys. So the parts execute without limits, and each notes
its maximum growth. If the sum fits the limits, no command was refused because of them, and the parts are correct.
Otherwise the outcome is unknown (`is_crowded`), and the stretch has to be replayed as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard
from zlib import crc32

from quire.log import pack
from quire.log.json_text import to_json
from quire.sm import Applier, Context, KvMachine, Refused, StateMachine

from .stretch import ReplayPiece, begun, frames_of_piece, restored

MAX_DIFFERENCES = 100
"""The most differences that one part reports."""

_UNLIMITED = 1 << 63


class KeyDifference(NamedTuple):
    """A key whose value differs from a snapshot's."""

    key: str
    boundary: int
    """The snapshot's index."""
    found: str | None
    """The replay's value as JSON; None if it has none."""
    expected: str | None
    last_index: int | None
    """The index of the last command on the key in the stretch; None if there is none."""

    def sentence(self) -> str:
        """The difference as one line of text."""
        found, expected = ("no value" if value is None else value for value in (self.found, self.expected))
        last = "no command of the stretch" if self.last_index is None else f"index {self.last_index}"
        return f"key {self.key!r} is {expected} in the snapshot {self.boundary}, {found} in the replay; last: {last}"


class KeyPiece(NamedTuple):
    """One part of the keys of a stretch that ends at a snapshot."""

    stretch: ReplayPiece
    part: int
    parts: int


class Extent(NamedTuple):
    """The size of a state: the current, the allowed or the largest one."""

    keys: int
    size: int
    """The size in bytes, as the machine counts it."""


class ReplayedKeys(NamedTuple):
    """The result of one part."""

    from_index: int
    to_index: int
    part: int
    executed: int
    keys: int
    differences: list[KeyDifference]
    room: Extent
    """How much the whole state may grow from the beginning of the stretch."""
    grown: Extent
    """The maximum growth of this part of it."""


def is_crowded(parts: Sequence[ReplayedKeys]) -> bool:
    """Whether a limit on the state may have refused commands of the stretch whose parts these are."""
    room = parts[0].room
    return sum(part.grown.keys for part in parts) > room.keys or sum(part.grown.size for part in parts) > room.size


class _KeyPartMachine:
    """The `kv` machine, which executes only the commands on its part of the keys; the result of others is null."""

    def __init__(self, initial: tuple[KvMachine, int, int]) -> None:
        """`initial`: the machine, the part of the keys to execute, and the number of parts."""
        machine, part, parts = initial
        self._before = Extent(machine.keys, machine.state_size)
        self.room = Extent(machine.keys_limit - self._before.keys, _limit_of(machine) - self._before.size)
        self.grown = Extent(0, 0)
        machine.limit_state(0)
        machine.keys_limit = _UNLIMITED
        self.name, self.version = machine.name, machine.version
        self.executed = 0
        self.last: dict[str, int] = {}
        self._machine, self._part, self._parts = machine, part, parts

    def has(self, key: str) -> bool:
        """Whether the key is in this part."""
        return crc32(key.encode("utf-8", "surrogatepass")) % self._parts == self._part

    def apply_batch(self, commands: Sequence[Any], contexts: Sequence[Context]) -> list[Any]:
        """Execute the commands on this part's keys, as the applier calls it."""
        results: list[Any] = [None] * len(commands)
        for position, (command, context) in enumerate(zip(commands, contexts, strict=True)):
            if self.has(command[1]):
                results[position] = self.apply(command, context)
        return results

    def apply(self, command: Any, context: Context) -> Any:
        self.last[command[1]] = context.index
        self.executed += 1
        try:
            result = self._machine.apply(command, context)
        except Refused as refusal:
            return refusal
        keys, size = self._machine.keys - self._before.keys, self._machine.state_size - self._before.size
        if keys > self.grown.keys or size > self.grown.size:
            self.grown = Extent(max(self.grown.keys, keys), max(self.grown.size, size))
        return result

    def check(self, command: object) -> None:
        self._machine.check(command)

    def query(self, request: object) -> Any:
        return self._machine.query(request)

    def snapshot(self) -> Iterator[bytes]:
        return self._machine.snapshot()

    def restore(self, chunks: Iterable[bytes]) -> None:
        self._machine.restore(chunks)


def _limit_of(machine: KvMachine) -> int:
    """The limit on the size of a machine's state, in bytes."""
    match machine.query(["size"]):
        case {"limit": int(limit)} if limit:
            return limit
        case _:
            return _UNLIMITED


def replay_keys(piece: KeyPiece) -> ReplayedKeys:
    """Replay one part of the keys of a stretch and compare it with the snapshot at its end.

    Raises as `replay_stretch`.
    """
    stretch = piece.stretch
    whole = begun(stretch)
    machine = whole.machine
    if not is_by_key(machine):
        raise ValueError(f"machine {machine.name!r} does not have independent keys")
    own = _KeyPartMachine((machine, piece.part, piece.parts))
    applier = Applier(own, boundary=whole.boundary, sessions=whole.sessions, cursors=whole.cursors)
    for frame in frames_of_piece(stretch):
        applier.apply(frame)
    if stretch.end is None:
        raise ValueError("the stretch has no snapshot at its end")
    recorded = restored(stretch, stretch.end).machine
    found, expected = ({key: value for key, value in _pairs(each) if own.has(key)} for each in (machine, recorded))
    differing = sorted(key for key in {*found, *expected} if not _is_one(found, expected, key))
    differences = [
        KeyDifference(key, stretch.to_index, _shown(found, key), _shown(expected, key), own.last.get(key))
        for key in differing[:MAX_DIFFERENCES]
    ]
    keys = len({*found, *expected})
    of_part = stretch.from_index, stretch.to_index, piece.part
    return ReplayedKeys(*of_part, own.executed, keys, differences, own.room, own.grown)


def _pairs(machine: StateMachine) -> Iterator[tuple[str, object]]:
    """Every key with its value, page by page."""
    page = machine.query(["scan", ""])
    while True:
        yield from page["values"]
        if page["next"] is None:
            return
        page = machine.query(["scan", "", page["next"]])


def _is_one(found: Mapping[str, object], expected: Mapping[str, object], key: str) -> bool:
    """Compare as the machine does: by msgpack bytes."""
    return key in found and key in expected and pack(found[key]) == pack(expected[key])


def _shown(values: Mapping[str, object], key: str) -> str | None:
    return to_json(values[key]).decode() if key in values else None


def is_by_key(machine: StateMachine) -> TypeGuard[KvMachine]:
    """Whether each command of a machine is on one key."""
    return isinstance(machine, KvMachine)
