"""The verdict on a run's figures: how soon it recovered, how much memory it took, how well it served."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from tests.verdict.verdict import Wrong

HEALED_WITHIN_S = 3.0
COMMITS_WITHIN_TIMEOUTS = 10.0
SUCCESS_SHARE = 0.99


def failures(*checks: Callable[[], object]) -> list[str]:
    """What these checks find wrong."""
    found: list[str] = []
    for check in checks:
        try:
            check()
        except AssertionError as error:
            found.append(str(error))
    return found


def check_recovery(seconds: float) -> None:
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


def check_commits(timeouts: float) -> None:
    """Raises Wrong where a healthy majority committed nothing for so many election timeouts."""
    if timeouts > COMMITS_WITHIN_TIMEOUTS:
        raise Wrong(
            f"nothing was committed for {timeouts:.1f} election timeouts, more than {COMMITS_WITHIN_TIMEOUTS:g}, "
            "while a majority was healthy"
        )


def check_memory(sizes: Mapping[str, int], bound: int) -> None:
    """Raises Wrong where a node's memory, or the growth of it, is larger than that."""
    for node_id, size in sizes.items():
        if size > bound:
            raise Wrong(f"the memory of {node_id}: {size:,} bytes, more than {bound:,}")


def check_level_memory(resident: Sequence[int], growth: int) -> None:
    """Memory in the second half of the time is what it was in the first: queues fill up in seconds. Raises Wrong."""
    first, second = max(resident[: (len(resident) + 1) // 2]), max(resident[len(resident) // 2 :])
    if second - first > growth:
        raise Wrong(f"the leader's memory: at most {first:,} bytes in the first half, {second:,} in the second")


def check_leaders(before: Mapping[str, Sequence[Any]], after: Mapping[str, Sequence[Any]]) -> None:
    """Raises Wrong where a node saw another leader, or the same with another epoch."""
    changed = {node_id: after[node_id][-1] for node_id in before if after[node_id][-1] != before[node_id][-1]}
    if changed:
        raise Wrong(f"the leader changed: {changed}")


def check_served(succeeded: int, failed: int) -> None:
    """Raises Wrong where not over 99% of the commands of well-behaved clients succeed, or there are none."""
    if succeeded <= SUCCESS_SHARE * (succeeded + failed):
        raise Wrong(f"{succeeded} of {succeeded + failed} commands of well-behaved clients succeeded")


def check_goodput(peak: float, pressed: float, share: float) -> None:
    """Overloaded, a node accepts nearly as much for each second of its processor time as at its peak. Raises Wrong."""
    if peak <= 0 or pressed < share * peak:
        raise Wrong(f"accepted requests per second of processor time: {pressed:.0f}, {peak:.0f} at the peak")


def check_waits(p99_s: Sequence[float], bound_s: float) -> None:
    """In no slice of time does an accepted request wait longer, but for one in a hundred. Raises Wrong."""
    longest = max(p99_s, default=0)
    if not 0 < longest <= bound_s:
        raise Wrong(f"p99 of accepted requests: at most {longest:.2f} s")
