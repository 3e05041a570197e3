"""How long commands take on this node, and in which part of the write path: for metrics, `/status` and the journal.

    check       until the machine has checked a request's commands
    queue       from there until they are appended to the log
    flush       until they are durable here
    majority    until a majority has them, too
    behind      until the frames before theirs are applied
    apply       until theirs is applied

A part is slow while it takes longer than the setting `slow_command_ms` again and again; what is `behind` waits for
another frame's `apply`. A follower has only flushes, of which the driver keeps the times, and `apply`.

A command only notes its times; the histograms take many at once, at least at each look (`count`).
"""

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Generic, NamedTuple

import structlog

from quire.log import LogError
from quire.log.packing import Skimmer
from quire.replication import Durations, Placed, Write
from quire.replication.disk import OwnerT, Share

from ..terminal import escaped

LOOK_S = 1.0
LOOKS = 10
"""A part is slow no more after so many looks at which it was not; rates and percentiles are of as many."""
COUNTED_FRAMES = 64
SLOW_LOOKS = 2
"""At so many looks a part was slow before that is a problem: one stall is none."""
NAME_BYTES = 32
FINE_BOUNDS_S = tuple(0.0001 * 1.1**power for power in range(148))  # Up to two minutes, each a tenth above the last.

ADVICE = {
    "check": "the machine's check computes or waits for long: `slow command` in the journal names the commands",
    "queue": "the leader gets more than it can append: write less, or in larger batches",
    "flush": "find out what else uses the volume of {data_dir}, or replace the disk",
    "majority": "look at the disks of the other voters, and at the network between the nodes",
    "apply": "the machine's apply computes or waits for long: `slow command` in the journal names the commands",
}

journal = structlog.get_logger(__name__)


class Step(NamedTuple):
    """A step of a frame in the machine: its seconds, and the position of its first record."""

    took_s: float
    position: int


NO_STEP = Step(0.0, 0)


class TimedFrame(Generic[OwnerT]):
    """A frame of writes from its append to its answer; times are seconds of the monotonic clock."""

    __slots__ = ("committed_at", "flushed_at", "placed", "placed_at")

    def __init__(self, placed: Placed[OwnerT], placed_at: float) -> None:
        self.placed = placed
        self.placed_at = self.flushed_at = self.committed_at = placed_at


@dataclass(slots=True)
class _Slow:
    since: float
    seen: float = 0.0
    longest_s: float = 0.0
    looks: int = 0


class CommandTimes:
    """The times of one node's commands. One event loop, except that a machine's thread may make the steps."""

    def __init__(self, slow_s: float = 0.0, *, names: bool = True) -> None:
        """What takes `slow_s` is slow, 0: nothing is. `names`: whether the journal names commands."""
        self.check, self.queue, self.majority, self.apply = Durations(), Durations(), Durations(), Durations()
        self.frame = Durations()
        """From a frame's append until it was applied here."""
        self._whole = Durations(FINE_BOUNDS_S)
        self.checks: list[float] = []
        """How long the checks took that `check` does not have yet."""
        self._applies: list[float] = []
        self._answered: list[tuple[float, float, float, float, int]] = []
        self._slow_s = slow_s
        self._names = names
        self._applied = NO_STEP
        self._apply_s = 0.0
        self._slow: dict[str, _Slow] = {}
        self._looks = deque([(time.monotonic(), list(self._whole.counts))], LOOKS + 1)

    def executed(self, seconds: float, slowest: Step) -> None:
        """The machine has executed a frame; `slowest` is its slowest step."""
        self._apply_s, self._applied = seconds, slowest
        self._applies.append(seconds)
        if len(self._applies) >= COUNTED_FRAMES:
            self.count()

    def answered(self, frame: TimedFrame[OwnerT]) -> None:
        """The frame that was executed last is about to be answered, here where its commands came from."""
        placed, placed_at, now = frame.placed, frame.placed_at, time.monotonic()
        first, count = placed.shares[0].write, placed.next_index - placed.index
        proposed_at, majority_s = first.proposed_at, frame.committed_at - frame.flushed_at
        took_s = first.check_s + now - proposed_at
        self._answered.append((placed_at - proposed_at, majority_s, now - placed_at, took_s, count))
        if 0 < self._slow_s <= took_s:
            self._log(frame, took_s, now)

    def count(self) -> None:
        """Have the histograms take what was noted."""
        self.check.observe_all(self.checks)
        self.apply.observe_all(self._applies)
        if self._answered:
            queue, majority, frame, whole, counts = zip(*self._answered, strict=True)
            self.queue.observe_all(queue)
            self.majority.observe_all(majority)
            self.frame.observe_all(frame)
            for seconds, count in zip(whole, counts, strict=True):
                self._whole.observe(seconds, count)
        self.checks.clear()
        self._applies.clear()
        self._answered.clear()

    def _log(self, frame: TimedFrame[OwnerT], took_s: float, now: float) -> None:
        share, position = self._slowest(frame)
        write = share.write
        times = {
            "check": write.check_s,
            "queue": frame.placed_at - write.proposed_at,
            "flush": frame.flushed_at - frame.placed_at,
            "majority": frame.committed_at - frame.flushed_at,
            "behind": max(0.0, now - frame.committed_at - self._apply_s),
            "apply": self._apply_s,
        }
        # Those that wait for it must not take its share of the journal's lines.
        event = "slow command" if took_s - times["behind"] >= self._slow_s else "a command waited for a slow one"
        fields: dict[str, object] = {"index": frame.placed.index + position, "session": write.session}
        name = _name_of(write, position - share.offset) if self._names and write.are_commands else ""
        if name:
            fields["command"] = name
        shown = {f"{part}_ms": round(1000 * seconds) for part, seconds in {"took": took_s, **times}.items()}
        context = Context() if write.context is None else write.context
        context.run(partial(journal.warning, event, **fields, **shown))

    def _slowest(self, frame: TimedFrame[OwnerT]) -> tuple[Share[OwnerT], int]:
        """The write that took longest, and the position of its first record or of the one that took longest."""
        shares = frame.placed.shares
        if self._applied.took_s >= self._apply_s / 2 > 0:
            position = self._applied.position
            return shares[bisect_left(shares, position + 1, key=lambda share: share.offset) - 1], position
        slowest = max(shares, key=lambda share: share.write.check_s)
        return slowest, slowest.offset

    def look(self, longest_s: Mapping[str, float]) -> None:
        """Look, every LOOK_S: `longest_s` has the parts that this does not time, and what has not ended yet."""
        self.count()
        now = time.monotonic()
        self._looks.append((now, list(self._whole.counts)))
        parts = {"check": self.check, "queue": self.queue, "majority": self.majority, "apply": self.apply}
        for part in ADVICE:
            took_s = max(longest_s.get(part, 0.0), parts[part].take_longest() if part in parts else 0.0)
            if 0 < self._slow_s <= took_s:
                slow = self._slow.setdefault(part, _Slow(now - took_s))
                slow.seen, slow.longest_s, slow.looks = now, max(slow.longest_s, took_s), slow.looks + 1
            elif part in self._slow and now - self._slow[part].seen >= LOOKS * LOOK_S:
                del self._slow[part]

    def alarms(self, data_dir: object) -> list[str]:
        """What makes commands slow, a sentence for each part."""
        now, found = time.monotonic(), list[str]()
        for part, slow in self._slow.items():
            if slow.looks >= SLOW_LOOKS:
                took = f"{part} took up to {1000 * slow.longest_s:,.0f} ms in the last {now - slow.since:,.0f} s"
                found.append(f"commands are slow: {took}; {ADVICE[part].format(data_dir=data_dir)}")
        return found

    def document(self) -> dict[str, float]:
        """Of the last seconds, for `/status`: commands a second, and how long they took. 0 if there were none."""
        self.count()
        began, before = self._looks[0]
        counts = [now - then for then, now in zip(before, self._whole.counts, strict=True)]
        total = sum(counts)
        return {
            "per_second": round(total / (time.monotonic() - began), 1) if total else 0.0,
            "p50_ms": _percentile_ms(counts, 0.5 * total),
            "p99_ms": _percentile_ms(counts, 0.99 * total),
        }


def _percentile_ms(counts: Sequence[int], rank: float) -> float:
    if not rank:
        return 0.0
    bucket = bisect_left(list(accumulate(counts)), rank)
    return round(1000 * FINE_BOUNDS_S[min(bucket, len(FINE_BOUNDS_S) - 1)], 2)


def _name_of(commands: Write[object], position: int) -> str:
    """At most NAME_BYTES of the first element of the command at a position; empty if that is no text."""
    skimmer = Skimmer(size=len(commands.payload))
    try:
        skimmer.feed(commands.payload)
        skimmer.array()
        skimmer.ends(position)
        first = skimmer.value() if skimmer.array() else None
    except LogError:
        return ""
    if not isinstance(first, str):
        return ""
    return escaped(first.encode(errors="replace")[:NAME_BYTES].decode(errors="ignore"))
