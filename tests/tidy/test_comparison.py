"""`docs/comparison.md` says of each system what it does better, what quire does instead, and when to choose it."""

import re
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
SYSTEMS = ("etcd", "NATS JetStream", "Kafka", "rqlite", "PySyncObj", "Temporal")
PAGE = TOP / "docs" / "comparison.md"
RATE = re.compile(r"\d[\d,]* (?:commands|values|writes)/s|\d x\b")


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_system_has_a_row_and_a_section_with_its_sources_and_is_named_better_first(system: str) -> None:
    page = PAGE.read_text()
    section = page.split(f"\n## {system}\n", 1)[1].split("\n## ")[0]
    better, instead, choose = (section.index(word) for word in ("*Better:*", "*Quire instead:*", "*Choose "))

    assert f"| **{system}** |" in page
    assert better < instead < choose
    assert "](https://" in section


def test_measurements_are_linked_and_not_copied() -> None:
    page = PAGE.read_text()

    assert "](benchmarks.md)" in page
    assert RATE.findall(page) == []
