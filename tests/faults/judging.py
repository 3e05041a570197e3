"""The verdict on every scenario, from what clients were told and what every node's log holds.

It knows the log's frames and the arithmetic of adding, and nothing of the machine, the sessions or the protocol: a
replay of its own decides what must have been executed, and once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from quire.log import Frame, Kind, unpack, walk_frames
from tests.faults.adder import BALLAST
from tests.faults.traffic import Traffic, Written
from tests.faults.wrong import Wrong
from tests.linear.checker import check_linearizable, step_sum

HEALED_WITHIN_S = 3.0
COMMITS_WITHIN_TIMEOUTS = 10.0
MEMORY_GROWTH_BYTES = 24 << 20  # A window of 1 MiB for each follower, and what waits for the writer.
INSTALL_GROWTH_BYTES = MEMORY_GROWTH_BYTES + 3 * len(
    BALLAST
)  # Besides: two states, and the chunks of one as it is read.


@dataclass
class Replay:
    """What a stretch of the log comes to, record by record."""

    state: int
    commands: dict[int, Any] = field(default_factory=dict)
    results: dict[int, str] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    retries: int = 0
    _executed: dict[tuple[int, int], tuple[Any, str]] = field(default_factory=dict)

    def take(self, frame: Frame) -> None:
        """Execute a frame's commands, but those that their session executed before. Raises Wrong."""
        header = frame.header
        if header.kind == Kind.SYSTEM:
            return
        payload = unpack(frame.payload)
        runs, values = (
            payload if header.kind == Kind.RUNS else ([[header.session, header.sequence, header.count]], payload)
        )
        named = [(session, sequence + place) for session, sequence, run in runs for place in range(run)]
        if len(named) != len(values):
            raise Wrong(f"the frame at {header.index} has {len(values)} records and runs for {len(named)}")
        for place, (name, command) in enumerate(zip(named, values, strict=True)):
            index = header.index + place
            self.commands[index], self.epochs[index] = command, header.epoch
            self.results[index] = self._execute(index, name, command)

    def _execute(self, index: int, name: tuple[int, int], command: Any) -> str:
        if name[0] and name in self._executed:
            before, result = self._executed[name]
            if before != command:
                raise Wrong(f"index {index} repeats {name} with {command[:2]}, which was {before[:2]}")
            self.retries += 1
            return result
        operation, operand, *_ = command
        if operation != "add":
            raise Wrong(f"nobody asked for {operation} at index {index}")
        self.state += operand
        if name[0]:
            self._executed[name] = (command, str(self.state))
        return str(self.state)


def replay_of(raw: bytes, state: int) -> Replay:
    """What stands in a stretch of the log, executed from this state on. Raises Wrong."""
    replay = Replay(state)
    for frame in walk_frames(raw):
        replay.take(frame)
    return replay


def judge_logs(
    logs: Mapping[str, bytes],
    traffic: Traffic,
    before: int,
    states: Mapping[str, str],
    *,
    may_lack: Collection[str] = (),
) -> Replay:
    """One order everywhere, and in it everything that was acknowledged, once. `before`: the sum where the logs begin.

    `may_lack`: the logs of these nodes, not the first, may lack their beginning.

    Raises Wrong.
    """
    (first, raw), *others = logs.items()
    for node_id, other in others:
        if other != raw and not (node_id in may_lack and other and raw.endswith(other)):
            raise Wrong(f"the logs of {first} ({len(raw)} bytes) and {node_id} ({len(other)} bytes) differ")
    replay = replay_of(raw, before)
    for told in traffic.told:
        _judge_told(replay, told)
    for node_id, state in states.items():
        if int(state) != replay.state:
            raise Wrong(f"{node_id} answers {state}, and what stands in the log, each once, comes to {replay.state}")
    return replay


def _judge_told(replay: Replay, told: Written) -> None:
    if told.index is None:
        _judge_repeated(replay, told)
        return
    indices = range(told.index, told.index + len(told.commands))
    if any(index not in replay.commands for index in indices):
        raise Wrong(f"acknowledged and lost: {told.commands[0][:2]}, told to stand at {told.index}")
    if [replay.commands[index] for index in indices] != told.commands:
        stands = replay.commands[told.index][:2]
        raise Wrong(f"at {told.index} stands {stands}, where {told.commands[0][:2]} was acknowledged")
    if replay.epochs[told.index] != told.epoch:
        raise Wrong(f"{told.index} is of epoch {replay.epochs[told.index]}, acknowledged as of {told.epoch}")
    for index, result in zip(indices, told.results, strict=False):
        if result != replay.results[index]:
            raise Wrong(f"index {index} was answered {result}, and comes to {replay.results[index]}")


def _judge_repeated(replay: Replay, told: Written) -> None:
    """A client that sent commands again and was not told where they are: they are somewhere, with these results."""
    for first, command in replay.commands.items():
        indices = range(first, first + len(told.commands))
        if (
            command == told.commands[0]
            and [replay.commands.get(index) for index in indices] == told.commands
            and all(replay.results[index] == result for index, result in zip(indices, told.results, strict=False))
        ):
            return
    raise Wrong(f"acknowledged and lost: {told.commands[0][:2]}, whose answer was repeated")


def judge_history(traffic: Traffic, before: int) -> None:
    """What clients asked and were answered has an order. Raises NotLinearizable."""
    check_linearizable(traffic.history, before, step_sum)


def judge_recovery(seconds: float) -> None:
    """Raises Wrong where the first acknowledgement came too late after healing."""
    if seconds > HEALED_WITHIN_S:
        raise Wrong(f"the first acknowledgement came {seconds:.2f} s after healing, more than {HEALED_WITHIN_S:g}")


def longest_without(ends: Iterable[float], began: float, ended: float) -> float:
    """The longest time between two acknowledgements of which one at least came between these times."""
    times = sorted(ends)
    before = max((at for at in times if at <= began), default=began)
    after = min((at for at in times if at >= ended), default=ended)
    between = [before, *(at for at in times if before < at < after), after]
    return max((later - earlier for earlier, later in pairwise(between)), default=0.0)


def judge_commits(timeouts: float) -> None:
    """Raises Wrong where a healthy majority committed nothing for so many election timeouts."""
    if timeouts > COMMITS_WITHIN_TIMEOUTS:
        raise Wrong(
            f"nothing was committed for {timeouts:.1f} election timeouts, more than {COMMITS_WITHIN_TIMEOUTS:g}, "
            "while a majority was healthy"
        )


def judge_memory(growth: Mapping[str, int], bound: int = MEMORY_GROWTH_BYTES) -> None:
    """Raises Wrong where a node's memory grew by more than its bound."""
    for node_id, size in growth.items():
        if size > bound:
            raise Wrong(f"the memory of {node_id} grew by {size:,} bytes, more than {bound:,}")


@dataclass(frozen=True)
class Seen:
    """What a node said of itself at one time."""

    node_id: str
    pid: int
    epoch: int
    serving: bool
    commit_index: int
    applied_index: int


def judge_progress(seen: Sequence[Seen]) -> None:
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
