"""How long healthy majorities were unavailable: medians, 99th percentiles and worst cases, in total and by kind."""

from collections import defaultdict

from .prober import Unavailability


class Distribution:
    """The unavailability of many histories."""

    def __init__(self) -> None:
        self._samples: list[Unavailability] = []

    def add(self, unavailability: Unavailability | None) -> None:
        """Add one history; one without permanent faults does not count."""
        if unavailability is not None:
            self._samples.append(unavailability)

    def lines(self) -> list[str]:
        """A line for all histories and one for each kind of fault, in election timeouts."""
        if not self._samples:
            return []
        by_kind: dict[str, list[Unavailability]] = defaultdict(list)
        for unavailability in self._samples:
            for kind in unavailability.kinds:
                by_kind[kind].append(unavailability)
        return [_line(kind, by_kind[kind]) for kind in sorted(by_kind)] + [_line("all", self._samples)]


def _line(name: str, samples: list[Unavailability]) -> str:
    first, longest, reads = ([getattr(each, what) for each in samples] for what in ("first", "longest", "reads"))
    elections = max((each.elections for each in samples), default=0)
    return (
        f"{name:15} {len(samples):6,} histories; to the first write {_spread(first)}; "
        f"longest without one {_spread(longest)}; without a read {_spread(reads)}; at most {elections} elections"
    )


def _spread(values: list[float]) -> str:
    ordered = sorted(values) or [0.0]
    median, rare = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
    return f"{median:.1f} / {rare:.1f} / {ordered[-1]:.1f}"
