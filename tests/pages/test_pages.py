"""Every page's commands and snippets run as they stand, in order, in a bare shell; what is not run says why."""

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.pages.checkout import Checkout
from tests.pages.page import TOP, Block, Page, PageError, StandIn, is_run, read_page
from tests.pages.running import Run
from tests.tidy.tree import Tree

NOT_PAGES = frozenset({"CHANGELOG.md"})
PAGES = sorted(str(path) for path in Tree.of_checkout(TOP).paths if path.suffix == ".md" and str(path) not in NOT_PAGES)
MOST_NOT_RUN = 35
"""Blocks. Whoever adds one lowers no number: another way to run it is to be found first."""
REASONS = re.compile(r"\S+(?: \S+){2,}")
MAKE = re.compile(r"\bmake ([a-z-]+)")
MODULE = re.compile(r"\bpython -m ([\w.]+)")


@cache
def page_of(name: str) -> Page:
    return read_page(name)


def _running() -> Iterator[tuple[str, int]]:
    for name in PAGES:
        try:
            parts = page_of(name).parts
        except PageError:  # Another test says so.
            continue
        yield from ((name, number) for number, steps in enumerate(parts) if any(map(is_run, steps)))


RUNNING = list(_running())


def not_run() -> list[Block]:
    return [block for name in PAGES for block in page_of(name).blocks if block.not_run is not None]


@pytest.mark.full
@pytest.mark.alone
@pytest.mark.xdist_group("alone")
@pytest.mark.parametrize(("name", "part"), RUNNING)
def test_the_commands_and_snippets_of_a_page_run_as_they_stand(
    name: str, part: int, checkout: Checkout, tmp_path: Path
) -> None:
    with Run(checkout, page_of, tmp_path) as run:
        run.part(name, part)


@pytest.mark.parametrize("name", PAGES)
def test_every_block_of_a_page_is_of_a_known_kind(name: str) -> None:
    for block in page_of(name).blocks:
        block.commands()


def test_the_pages_with_commands_are_found() -> None:
    assert {"README.md", "CONTRIBUTING.md", "docs/kv.md", "docs/command-line.md", "deploy/runbook.md"} <= {
        name for name, _ in RUNNING
    }


def test_what_is_not_run_says_why_and_is_little() -> None:
    blocks = not_run()

    assert [f"{block.page}:{block.line}" for block in blocks if not REASONS.fullmatch(block.not_run or "")] == []
    assert len(blocks) <= MOST_NOT_RUN, "\n".join(f"{block.page}:{block.line}: {block.not_run}" for block in blocks)


def test_what_is_not_run_names_targets_and_modules_that_exist() -> None:
    for block in not_run():
        for target in MAKE.findall(block.text):
            run = subprocess.run(
                ["make", "-n", target, "OLD=main"], cwd=TOP, capture_output=True, text=True, check=False
            )
            assert run.returncode == 0, f"{block.page}:{block.line}: make {target}: {run.stderr}"
        for module in MODULE.findall(block.text):
            assert find_spec(module), f"{block.page}:{block.line}: there is no module {module}"


def test_a_stand_in_stands_for_something_that_its_page_says() -> None:
    for name in PAGES:
        blocks = page_of(name).blocks
        for step in page_of(name).steps:
            if isinstance(step, StandIn):
                later = [block for block in blocks if block.line > step.line and block.kind.is_run]
                assert any(step.shown in block.text for block in later), f"{name}:{step.line}: {step.shown}"
