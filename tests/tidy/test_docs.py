"""What the documents name is there: tests, and pages that are linked; and the map has every folder of tests."""

import re
from pathlib import Path

from tests.tidy.tree import Tree

TOP = Path(__file__).parents[2]
NAMED_TEST = re.compile(r"`(test_[a-z0-9_]+)`")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")


def _pages() -> list[Path]:
    return [TOP / path for path in Tree.of_checkout(TOP).paths if path.suffix == ".md"]


def test_every_test_that_a_document_names_exists() -> None:
    known: set[str] = set()
    for path in (TOP / "tests").rglob("test_*.py"):
        known.add(path.stem)
        known.update(re.findall(r"def (test_[a-z0-9_]+)", path.read_text()))

    missing = [f"{page.name}: {name}" for page in _pages() for name in NAMED_TEST.findall(page.read_text())]

    assert [line for line in missing if line.split(": ")[1] not in known] == []


def test_every_page_that_a_document_links_exists() -> None:
    links = [(page, target) for page in _pages() for target in LINK.findall(page.read_text())]

    assert [f"{page.name}: {target}" for page, target in links if not (page.parent / target).exists()] == []


def test_the_map_has_every_folder_of_tests() -> None:
    paths = [path for path in Tree.of_checkout(TOP).paths if path.parts[0] == "tests" and len(path.parts) > 2]
    table = (TOP / "CONTRIBUTING.md").read_text()

    assert set(re.findall(r"`tests/([a-z_]+)`", table)) == {path.parts[1] for path in paths}
