"""What a command printed, against what the page says.

White space counts as one space, and a drawn line has any length. `...` in the page stands for anything. Beyond that
only what no page can know may differ: times, temporary folders, ports above 9999, and hashes; and, if the page says
so, indices, nodes, their roles and why they lead, or any number.
"""

import difflib
import re
from collections.abc import Set as AbstractSet

NUMBER = r"(?<!\w)-?\d[\d,]*(?:\.\d+)?"
ALWAYS = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)?"), "<moment>"),
    (re.compile(rf"{NUMBER}(?= ?(?:s|ms|µs|/s)\b)"), "<time>"),
    (re.compile("─+"), "<line>"),
    (re.compile(r"/tmp/[\w./-]+"), "<folder>"),
    (re.compile(r"(?<=:)\d{5}\b"), "<port>"),
    (re.compile(r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{14,}\b"), "<hash>"),
)
IF_SAID = {
    "indices": ((re.compile(r'(?<="index":)\d+|(?<="index": )\d+|(?<="epoch":)\d+'), "<index>"),),
    "numbers": ((re.compile(rf"\b[0-9a-f]{{14,}}\b|{NUMBER}"), "<number>"),),
    "nodes": (
        (re.compile(r"(?<=\bepoch )(\S+) \([^)]*\)"), r"\1 <reason>"),
        (re.compile(r"\bn\d\b"), "<node>"),
        (re.compile(r"\b(?:leader|follower)\b"), "<role>"),
    ),
}
ANYTHING = "..."


def difference(shown: str, printed: str, varies: AbstractSet[str] = frozenset()) -> str:
    """How what a command printed differs from what the page shows; empty if it does not."""
    wanted, had = _plain(shown, varies), _plain(printed, varies)
    pattern = ".*".join(re.escape(part.strip()) for part in wanted.split(ANYTHING))
    if re.fullmatch(pattern, had, re.DOTALL):
        return ""
    lines = difflib.ndiff(_lines(shown), _lines(printed))
    return "".join(f"{line}\n" for line in lines if not line.startswith("?"))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").split("\n")]


def _plain(text: str, varies: AbstractSet[str]) -> str:
    replaced = list(ALWAYS)
    for name in sorted(varies):
        replaced += IF_SAID[name]
    for pattern, stands_for in replaced:
        text = pattern.sub(stands_for, text)
    return " ".join(text.split())
