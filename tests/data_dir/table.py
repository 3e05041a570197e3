"""Damaged data directories: each part alone, of which docs/reliability.md has a table, and with each other part."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

from quire.log.simulated import Disk

from .damage import Damage, Damaged, damages_of, disk_of, parts_of
from .history import LIVES, History, Life, history
from .verdict import Kind, Verdict, verdict


class Cell(NamedTuple):
    """One directory that was damaged, and what the node did."""

    life: Life
    damages: tuple[Damaged, ...]
    verdict: Verdict

    def __str__(self) -> str:
        return f"{self.life}: {' + '.join(map(str, self.damages))} -> {self.verdict}"


def alone(lives: Iterable[Life] = LIVES, *, thorough: bool = False) -> Iterator[Cell]:
    """Each part, with each of its damages."""
    for life in lives:
        lived = history(life)
        for part in parts_of(lived.now):
            for damage in damages_of(part, lived, thorough=thorough):
                yield cell(life, lived, damage)


def pairs(lives: Iterable[Life] = LIVES) -> Iterator[Cell]:
    """Each part with each other part that is neither in it nor around it, with each of their damages."""
    for life in lives:
        lived = history(life)
        damages = [(part, list(damages_of(part, lived))) for part in parts_of(lived.now)]
        for (part, its), (other, others) in combinations(damages, 2):
            if not (part.holds(other.path) or other.holds(part.path)):
                yield from (cell(life, lived, one, two) for one in its for two in others)


def damaged(lived: History, *damages: Damaged) -> Disk:
    """n2's directory with this damage."""
    tree = dict(lived.now)
    for damage in damages:
        damage.apply(tree)
    disk = disk_of(tree)
    for damage in damages:
        if damage.unreadable_from is not None:
            disk.make_unreadable(damage.part.rotten, damage.unreadable_from)
    return disk


def cell(life: Life, lived: History, *damages: Damaged) -> Cell:
    """Damage n2's directory, and start it."""
    return Cell(life, damages, verdict(damaged(lived, *damages).directory(), lived))


def is_bad(cell: Cell) -> bool:
    """Whether something acknowledged is lost in silence."""
    return cell.verdict.kind is Kind.BAD


def alone_table(cells: Iterable[Cell]) -> str:
    """A row for the parts with which a node does the same."""
    found: defaultdict[str, defaultdict[Damage, list[Verdict]]] = defaultdict(lambda: defaultdict(list))
    for one in cells:
        (its,) = one.damages
        found[its.part.name][its.damage].append(one.verdict)
    head = "| part | " + " | ".join(damage.value for damage in Damage) + " |\n" + "|---" * (len(Damage) + 1) + "|\n"
    rows: defaultdict[str, list[str]] = defaultdict(list)
    for name, by in found.items():
        rows[" | ".join(_words(by[damage]) for damage in Damage)].append(f"`{name}`")
    return head + "".join(f"| {', '.join(names)} | {row} |\n" for row, names in rows.items())


def _words(verdicts: Sequence[Verdict]) -> str:
    """What was done, each once, the most frequent first; a dash if no such damage changes the part."""
    by_kind: defaultdict[Kind, list[str]] = defaultdict(list)
    for one in verdicts:
        if (text := _brief(one.text)) not in by_kind[one.kind]:
            by_kind[one.kind].append(text)
    said = [
        f"{kind.value}{': ' * any(by_kind[kind])}" + " / ".join(f"*{text}*" for text in sorted(by_kind[kind]) if text)
        for kind in Kind
        if kind in by_kind
    ]
    return "; ".join(said) or "-"


def _brief(text: str) -> str:
    """Without numbers, and without what exactly is wrong with a segment."""
    text = re.sub(r"\b\d+\b", "…", re.sub(r" at byte .*| \(.*", "", text) if ".store" in text or "(" in text else text)
    return text.replace("….store is rotten", "a segment is rotten").replace("….store is corrupt", "")
