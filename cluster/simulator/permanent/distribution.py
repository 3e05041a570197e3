"""How long healthy majorities took to go on: medians, 99th percentiles and worst cases, for all and for each kind."""

from collections import defaultdict

from .prober import Endured


class Distribution:
    """What the ordeals of many histories cost."""

    def __init__(self) -> None:
        self._endured: list[Endured] = []

    def add(self, endured: Endured | None) -> None:
        """Add one history; one without an ordeal says nothing."""
        if endured is not None:
            self._endured.append(endured)

    def lines(self) -> list[str]:
        """A line for all ordeals and one for each kind of illness, in election timeouts."""
        if not self._endured:
            return []
        by_kind: dict[str, list[Endured]] = defaultdict(list)
        for endured in self._endured:
            for kind in endured.kinds:
                by_kind[kind].append(endured)
        return [_line(kind, by_kind[kind]) for kind in sorted(by_kind)] + [_line("all", self._endured)]


def _line(name: str, endured: list[Endured]) -> str:
    first, longest, reads = ([getattr(each, what) for each in endured] for what in ("first", "longest", "reads"))
    elections = max((each.elections for each in endured), default=0)
    return (
        f"{name:15} {len(endured):6,} ordeals; to the first write {_spread(first)}; "
        f"longest without one {_spread(longest)}; without a read {_spread(reads)}; at most {elections} elections"
    )


def _spread(values: list[float]) -> str:
    ordered = sorted(values) or [0.0]
    median, rare = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
    return f"{median:.1f} / {rare:.1f} / {ordered[-1]:.1f}"
