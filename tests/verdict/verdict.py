"""The verdict on a run: the clients' answers must agree with the nodes' logs and with every node's state.

Nothing acknowledged is lost, nothing is executed twice, nothing is in the log that nobody sent, and all nodes agree.
The verdict knows the log's frames and has a model of the machine; it knows nothing of the product's sessions or of the
protocol: a replay of its own decides what must have been executed, and once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from quire.log import Frame, Kind, decode_system, stored_records, walk_frames
from tests.verdict.linearizable import Operation

Command = Any


class Wrong(AssertionError):
    """What must never be; the text says what, with its values."""


# What clients were told


@dataclass(frozen=True, slots=True)
class Answered:
    """An acknowledged batch, with the answer that its client got."""

    commands: list[Command]
    results: list[Any]
    """Empty: the client was not told, or did not keep them."""
    index: int | None = None
    """Of the first command; None: the answer did not say, since it repeated an earlier one."""
    epoch: int | None = None
    client: int | None = None
    """Who sent one batch after the other; None: in no order."""
    session: int | None = None
    """With `sequence`, the name of the first command, if the client knows it."""
    sequence: int = 0
    ended: float = 0.0

    @property
    def described(self) -> str:
        """Its first command and its client, in short."""
        return f"{str(self.commands[0])[:80]} of client {self.client}"


@dataclass
class History:
    """What was answered and what was not. A batch that is in neither list was provably not executed."""

    answered: list[Answered] = field(default_factory=list)
    unknown: list[list[Command]] = field(default_factory=list)
    """Batches that may have been executed, once at most."""
    operations: list[Operation] = field(default_factory=list)
    """Writes and linearizable reads with their times."""

    @property
    def acknowledged(self) -> int:
        """How many commands were."""
        return sum(len(batch.commands) for batch in self.answered)


# Models of machines


class Model(Protocol):
    """A machine, written from its rules and not from the product's code."""

    @property
    def state(self) -> Any:
        """What a node answers that is asked for its state."""

    def apply(self, command: Command) -> Any:
        """Execute it; the result. Raises Wrong: nobody asked for that."""


class Sum:
    """`["add", n]`, with or without padding, answers the new sum as a string."""

    def __init__(self, initial: int) -> None:
        self._sum = initial

    @property
    def state(self) -> str:
        """The sum."""
        return str(self._sum)

    def apply(self, command: Command) -> str:
        """The new sum."""
        operation, operand, *_ = command
        if operation != "add":
            raise Wrong(f"nobody asked for {operation}")
        self._sum += operand
        return self.state


class Values:
    """The commands of kv that tests send: `["incr", key]` answers the new count, `["put", key, value]` if it is new."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}

    def apply(self, command: Command) -> Any:
        """The count, or whether the key is new."""
        match command:
            case ["incr", key]:
                self.state[key] = self.state.get(key, 0) + 1
                return self.state[key]
            case ["put", key, value]:
                is_new = key not in self.state
                self.state[key] = value
                return is_new
            case _:
                raise Wrong(f"nobody asked for {command}")


# The log


@dataclass(frozen=True, slots=True)
class Executed:
    """A record of the log, and what it comes to."""

    index: int
    epoch: int
    command: Command
    result: Any
    first_index: int
    """Where it was executed: its own index, but for a retry."""


@dataclass
class Replay:
    """What a stretch of the log comes to, record by record."""

    model: Model
    records: dict[int, Executed] = field(default_factory=dict)
    """By index, in their order."""
    named: dict[tuple[int, int], Executed] = field(default_factory=dict)
    """By session and sequence: the one that was executed."""

    @property
    def retries(self) -> int:
        """How many records were executed before."""
        return sum(record.index != record.first_index for record in self.records.values())

    def take(self, frames: Iterable[Frame]) -> Replay:
        """Execute their commands, but those that their session executed before. Raises Wrong."""
        for frame in frames:
            if frame.header.kind != Kind.SYSTEM:
                for record in stored_records(frame):
                    name = (record.session, record.sequence)
                    self._take(record.index, record.epoch, name, record.value)
        return self

    def _take(self, index: int, epoch: int, name: tuple[int, int], command: Command) -> None:
        before = self.named.get(name) if name[0] else None
        if before is None:
            record = Executed(index, epoch, command, self.model.apply(command), index)
            if name[0]:
                self.named[name] = record
        else:
            if before.command != command:
                raise Wrong(f"index {index} repeats {name} with {command[:2]}, which was {before.command[:2]}")
            record = Executed(index, epoch, command, before.result, before.index)
        self.records[index] = record


def system_records(raw: bytes, type_: str) -> list[tuple[int, dict[str, Any]]]:
    """(epoch, record) of every system record of one type."""
    frames = [frame for frame in walk_frames(raw) if frame.header.kind == Kind.SYSTEM]
    decoded = ((frame.header.epoch, decode_system(frame.payload)) for frame in frames)
    return [(epoch, record) for epoch, record in decoded if record["type"] == type_]


# The verdict


def check_logs(
    logs: Mapping[str, bytes],
    history: History,
    model: Model,
    states: Mapping[str, Any],
    *,
    late: Sequence[list[Command]] = (),
    may_lack: Collection[str] = (),
) -> Replay:
    """One order everywhere, in it all that was acknowledged, once, and nothing else; and every node answers so.

    `model`: in the state that it had where the logs begin. `late`: batches of unknown outcome from before the history.
    `may_lack`: the logs of these nodes, not the first, may lack their beginning.

    Raises Wrong.
    """
    (first, raw), *others = logs.items()
    for node_id, other in others:
        if other != raw and not (node_id in may_lack and other and raw.endswith(other)):
            raise Wrong(f"the logs of {first} ({len(raw)} bytes) and {node_id} ({len(other)} bytes) differ")
    replay = Replay(model).take(walk_frames(raw))
    check_history(replay, history, late)
    check_states(states, model.state)
    return replay


def check_states(states: Mapping[str, Any], expected: Any) -> None:
    """Every node answers what it must. Raises Wrong."""
    for node_id, state in states.items():
        if state != expected:
            raise Wrong(f"{node_id} answers {state}, and what is in the log, each once, comes to {expected}")


def check_history(replay: Replay, history: History, late: Sequence[list[Command]] = ()) -> None:
    """The log has what clients were answered, in each client's order, and nothing else. Raises Wrong."""
    covered: set[int] = set()
    last_index: dict[int, int] = {}
    # Those of which least is known come last, and take what the others left.
    for answered in sorted(history.answered, key=lambda each: each.index is None and each.session is None):
        records = _found(replay, answered, covered)
        _check_answered(records, answered)
        indices = {record.first_index for record in records}
        if not covered.isdisjoint(indices):
            raise Wrong(f"two batches were told index {min(covered & indices)}: {answered.described}")
        covered |= indices
        if answered.client is not None and answered.index is not None:
            if answered.index <= last_index.get(answered.client, -1):
                raise Wrong(f"client {answered.client} was reordered at index {answered.index}")
            last_index[answered.client] = answered.index
    _check_others(
        [it.command for it in replay.records.values() if it.index == it.first_index and it.index not in covered],
        [*history.unknown, *late],
    )


def _found(replay: Replay, answered: Answered, covered: set[int]) -> list[Executed]:
    """The records of a batch. Raises Wrong: they are not there."""
    count = len(answered.commands)
    if answered.index is not None:
        found = [replay.records.get(index) for index in range(answered.index, answered.index + count)]
        said = f"told index {answered.index}"
    elif answered.session is not None:
        found = [replay.named.get((answered.session, answered.sequence + offset)) for offset in range(count)]
        said = f"session {answered.session}, sequence {answered.sequence}"
    else:
        found = next(_matching(replay, answered, covered), [None])
        said = "whose answer was repeated"
    records = [record for record in found if record is not None]
    if len(records) < count:
        raise Wrong(f"acknowledged and lost: {answered.described}, {said}, {count - len(records)} of {count}")
    return records


def _matching(replay: Replay, answered: Answered, covered: set[int]) -> Iterator[list[Executed | None]]:
    """Batches with these commands and results, which no other client had acknowledged."""
    commands = answered.commands
    for first, record in replay.records.items():
        if record.command == commands[0]:
            found = [replay.records.get(index) for index in range(first, first + len(commands))]
            records = [each for each in found if each is not None and each.first_index not in covered]
            if [each.command for each in records] == commands and _results_fit(records, answered):
                yield found


def _results_fit(records: Sequence[Executed], answered: Answered) -> bool:
    return not answered.results or [record.result for record in records] == answered.results


def _check_answered(records: Sequence[Executed], answered: Answered) -> None:
    first = records[0]
    if [record.command for record in records] != answered.commands:
        raise Wrong(f"other commands are at index {first.index}, where {answered.described} was acknowledged")
    epochs = {record.epoch for record in records}
    if answered.epoch is not None and answered.index is not None and epochs != {answered.epoch}:
        raise Wrong(f"index {first.index} is of epoch {first.epoch}, acknowledged as of {answered.epoch}")
    if not _results_fit(records, answered):
        expected = [record.result for record in records]
        raise Wrong(f"index {first.index} was answered {answered.results}, and comes to {expected}")


def _check_others(commands: list[Command], unknown: Sequence[list[Command]]) -> None:
    """Whole batches of unknown outcome, each at most once, and nothing else. Raises Wrong."""
    left = list(unknown)
    position = 0
    while position < len(commands):
        batch = next((batch for batch in left if batch == commands[position : position + len(batch)]), None)
        if batch is None:
            raise Wrong(f"nobody sent this so, or it was executed twice: {str(commands[position])[:80]}")
        left.remove(batch)
        position += len(batch)


# Where no log is whole


def check_counted(answers: Sequence[int], unknown: int, counted: int) -> None:
    """A counter that was counted up by one: each answer was given once, none is lost, and nothing else was counted.

    Raises Wrong.
    """
    known = f"{len(answers)} acknowledged, {unknown} unknown"
    if not len(answers) <= counted <= len(answers) + unknown:
        raise Wrong(f"{known}, and {counted} were counted")
    if len(set(answers)) < len(answers) or not all(0 < answer <= counted for answer in answers):
        raise Wrong(f"{known}, {counted} counted: an answer was given twice, or is not of this count")


# What nodes say while they run


@dataclass(frozen=True)
class Seen:
    """What a node said of itself at one time."""

    node_id: str
    pid: int
    epoch: int
    serving: bool
    commit_index: int
    applied_index: int


def check_progress(seen: Sequence[Seen]) -> None:
    """No process takes back what was committed or applied, and no epoch has two leaders. Raises Wrong."""
    last: dict[tuple[str, int], Seen] = {}
    leaders: dict[int, str] = {}
    for now in seen:
        before = last.get((now.node_id, now.pid), now)
        for name in ("epoch", "commit_index", "applied_index"):
            if getattr(now, name) < getattr(before, name):
                raise Wrong(f"{now.node_id}: {name} went from {getattr(before, name)} back to {getattr(now, name)}")
        last[now.node_id, now.pid] = now
        if now.serving and leaders.setdefault(now.epoch, now.node_id) != now.node_id:
            raise Wrong(f"{leaders[now.epoch]} and {now.node_id} both led epoch {now.epoch}")
