"""The verdicts on a run under hostile or excessive load. Each is a sentence, and whether it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SUCCESS_SHARE = 0.99


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether something holds, and what was seen."""

    holds: bool
    seen: str


@dataclass
class MemoryOf:
    """A node's memory: what it had at each sample, and the most that it ever had."""

    resident_bytes: list[int] = field(default_factory=list)
    peak_bytes: int = 0


def served_well(succeeded: int, failed: int) -> Verdict:
    """More than 99% of the commands of well-behaved clients succeed, and there are some."""
    total = succeeded + failed
    holds = total > 0 and succeeded / total > SUCCESS_SHARE
    return Verdict(holds, f"{succeeded} of {total} commands of well-behaved clients succeeded")


def leader_changes(before: Mapping[str, Sequence[Any]], after: Mapping[str, Sequence[Any]]) -> Verdict:
    """No node saw another leader, or the same with another epoch."""
    changed = {node_id: after[node_id][-1] for node_id in before if after[node_id][-1] != before[node_id][-1]}
    return Verdict(not changed, f"changes of leader: {changed or 'none'}")


def within_memory(peaks: Mapping[str, int], bound: int) -> Verdict:
    """No node ever had more memory than that."""
    seen = ", ".join(f"{node_id} {peak >> 20} MiB" for node_id, peak in peaks.items())
    return Verdict(max(peaks.values()) <= bound, f"peak memory, of at most {bound >> 20} MiB: {seen}")


def kept_goodput(peak: float, pressed: float, share: float) -> Verdict:
    """Overloaded, a node accepts nearly as much for each second of its processor time as at its peak."""
    seen = f"accepted requests per second of the leader's processor time: {pressed:.0f}, {peak:.0f} at the peak"
    return Verdict(peak > 0 and pressed >= share * peak, f"{seen} ({100 * pressed / max(peak, 1e-9):.0f}%)")


def quick_answers(p99_s: Sequence[float], bound_s: float) -> Verdict:
    """In no stretch of time does an accepted request wait for longer, but for one in a hundred."""
    return Verdict(
        0 < max(p99_s, default=0) <= bound_s, f"p99 of accepted requests: at most {max(p99_s, default=0):.2f} s"
    )


def flat_memory(resident: Sequence[int], growth: int) -> Verdict:
    """The leader's memory in the second half of the time is what it was in the first: queues fill up in seconds."""
    first, second = max(resident[: (len(resident) + 1) // 2]), max(resident[len(resident) // 2 :])
    seen = f"the leader's memory: at most {first >> 20} MiB in the first half, {second >> 20} MiB in the second"
    return Verdict(second - first <= growth, seen)
