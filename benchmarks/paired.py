"""Two sides under the same load, in alternating slices of one run: medians of the slices' ratios.

A virtual machine's speed changes by half from minute to minute. Slices of a second that alternate see the same changes,
and the median of their ratios tells 5% apart.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from rich.box import SIMPLE_HEAD
from rich.table import Table

LOADS = {"alone": (1, 1, 1), "64": (64, 1, 1), "500": (500, 1, 1), "batch": (8, 100, 16)}
"""The callers, the commands of each message, and each caller's messages in flight."""
NAMES = {"alone": "one client alone", "64": "64 clients", "500": "500 clients", "batch": "batches of 100, 8 streams"}


class Pair(NamedTuple):
    """A figure of both sides, and the median of right / left."""

    load: str
    what: str
    left: float
    right: float
    ratio: float


class Side(Protocol):
    """One of the two."""

    async def measure(self, load: str) -> Mapping[str, float]:
        """The figures of a slice, by their names."""
        ...


async def alternate(left: Side, right: Side, load: str, slices: int) -> list[Pair]:
    """The figures of a load, after `slices` of each side."""
    taken: dict[Side, list[Mapping[str, float]]] = {left: [], right: []}
    for number in range(slices):
        for side in (left, right) if number % 2 == 0 else (right, left):
            taken[side].append(await side.measure(load))
    pairs: list[Pair] = []
    for what in taken[left][0]:
        of_left, of_right = ([figures[what] for figures in taken[side]] for side in (left, right))
        ratios = [b / a for a, b in zip(of_left, of_right, strict=True) if a]
        medians = (statistics.median(values or [0.0]) for values in (of_left, of_right, ratios))
        pairs.append(Pair(NAMES.get(load, load), what, *medians))
    return pairs


def table(pairs: Sequence[Pair], left: str, right: str) -> Table:
    """The figures as a table whose sides have these names."""
    found = Table("", "", left, right, f"{right} / {left}", box=SIMPLE_HEAD)
    for column in found.columns[2:]:
        column.justify = "right"
    for pair in pairs:
        found.add_row(pair.load, pair.what, _shown(pair.left), _shown(pair.right), f"{pair.ratio:.3f}")
    return found


def _shown(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"
