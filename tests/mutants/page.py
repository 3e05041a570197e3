"""The campaign's tables in `docs/reliability.md`."""

from collections.abc import Sequence
from statistics import median

from tests.mutants.campaign import RINGS
from tests.mutants.mistake import BY_HAND, BY_TOOL, Mistake
from tests.planted.mistake import TOP

PAGE = TOP / "docs" / "reliability.md"
BEGIN = "<!-- drawn mistakes: made by `python -m tests.mutants --page` -->\n"
END = "<!-- end of drawn mistakes -->\n"
AREAS = ("replication/core", "replication", "log", "sm", "cluster/node")
"""A mistake belongs to the first of these that its file is in."""


def area_of(mistake: Mistake) -> str:
    """The area that a mistake is in."""
    return next(area for area in AREAS if mistake.file.startswith(f"{area}/"))


def share_found(mistakes: Sequence[Mistake], *, first: bool = False) -> float:
    """The share of what changes behaviour that is found now, or by the first run."""
    changing = [mistake for mistake in mistakes if not mistake.same]
    return sum(bool(mistake.ring) if first else mistake.is_found for mistake in changing) / max(1, len(changing))


def page_of(page: str, commit: str, mistakes: Sequence[Mistake]) -> str:
    """The page with new tables; the text around them stays."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{tables(commit, mistakes)}\n{END}{after}"


def tables(commit: str, mistakes: Sequence[Mistake]) -> str:
    """What was drawn and found, in which ring, after how long; and what the first run did not find."""
    rows = [(area, [mistake for mistake in mistakes if area_of(mistake) == area]) for area in AREAS]
    rows += [(f"drawn by {by}", [each for each in mistakes if each.by == by]) for by in (BY_TOOL, BY_HAND)]
    rows.append(("all", list(mistakes)))
    heads = (
        "",
        "drawn",
        "not looked for to the end",
        "same behaviour",
        "found at first",
        *(f"by {ring}" for ring in RINGS),
    )
    heads += ("ran out of time", "tests written since", "not found", "found now, at least", "seconds, median / longest")
    lines = [f"Drawn from commit {commit}.", "", _line(heads), "|---" * len(heads) + "|"]
    lines += [_line(_row(name, those)) for name, those in rows if those]
    lines += ["", "What the first run did not find:", "", "| where | mistake | verdict |", "|---|---|---|"]
    lines += [_line((_where(each), _shown(each), _verdict(each))) for each in mistakes if not each.ring]
    return "\n".join(lines) + "\n"


def _row(name: str, mistakes: Sequence[Mistake]) -> tuple[str, ...]:
    same = [mistake for mistake in mistakes if mistake.same]
    found = [mistake for mistake in mistakes if mistake.ring]
    by_ring = [sum(mistake.ring == ring for mistake in found) for ring in RINGS]
    ran_out = sum(mistake.ran_out for mistake in mistakes)
    written = sum(bool(mistake.test) for mistake in mistakes)
    missing = sum(not mistake.is_found and not mistake.same for mistake in mistakes)
    unseen = sum(mistake.ring is None for mistake in mistakes)
    seconds = [mistake.seconds for mistake in found]
    times = f"{median(seconds):.1f} / {max(seconds):.1f}" if seconds else ""
    first, now = share_found(mistakes, first=True), share_found(mistakes)
    numbers = (
        len(mistakes),
        unseen,
        len(same),
        f"{len(found)} ({first:.1%})",
        *by_ring,
        ran_out,
        written,
        missing,
        f"{now:.1%}",
    )
    return (name, *map(str, numbers), times)


def _where(mistake: Mistake) -> str:
    return f"`{mistake.file}`:{mistake.line}"


def _shown(mistake: Mistake) -> str:
    if mistake.by == BY_HAND:
        return mistake.operator
    changed = zip(mistake.old.split("\n"), mistake.new.split("\n"), strict=False)
    old, new = next((old.strip(), new.strip()) for old, new in changed if old != new)
    return f"`{old}` -> `{new}`".replace("|", "\\|")


def _verdict(mistake: Mistake) -> str:
    if mistake.same:
        return f"same behaviour: {mistake.same}"
    return f"found now by `{mistake.test.rpartition('::')[2]}`" if mistake.test else "not found"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
