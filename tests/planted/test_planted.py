"""Every planted mistake applies to the code, and is found."""

from collections.abc import Generator
from difflib import unified_diff
from pathlib import Path

import pytest
from crc32c import crc32c

from tests.planted.finding import NotFound, find
from tests.planted.mistake import (
    BY_SIMULATOR,
    PAGE,
    TOP,
    Copy,
    Mistake,
    NotPlanted,
    copy_of_the_tree,
    mistakes,
    page_of,
    read,
)

AT_LEAST = 60
SEEDS = 240
"""How many histories to look in: the rarest mistake shows in one of 40, and each change of the core makes others."""
AT_ONCE = 6
"""`make test` looks for every sixth one, `make test-all` for all."""

CHANGED = "replication/core/messages.py"


def patch_of(folder: Path, finder: str, *, added: str = '"""More."""', after: str = "") -> Path:
    """A patch that adds a line at the end of a module, which holds `after` or, by default, what it does hold."""
    before = (after or (TOP / CHANGED).read_text()).splitlines(keepends=True)
    lines = unified_diff(before, [*before, f"{added}\n"], f"a/{CHANGED}", f"b/{CHANGED}")
    path = folder / "some-mistake.patch"
    path.write_text(f"Bug: nothing is wrong\nRule: none\nFinder: {finder}\n\n{''.join(lines)}")
    return path


@pytest.fixture(scope="module")
def copy() -> Generator[Copy]:
    with copy_of_the_tree() as made:
        yield made


def sought() -> list[object]:
    """All mistakes; those of `make test` by their names, so that another patch changes nothing for these."""
    quick = {mistake.name for mistake in mistakes() if crc32c(mistake.name.encode()) % AT_ONCE == 0}
    return [
        pytest.param(mistake, id=mistake.name, marks=pytest.mark.slow if mistake.name in quick else pytest.mark.full)
        for mistake in mistakes()
    ]


def test_there_are_enough_of_them() -> None:
    assert len(mistakes()) >= AT_LEAST


def test_every_one_applies_to_the_code_as_it_is(copy: Copy) -> None:
    for mistake in mistakes():
        with copy.planted(mistake):
            for path in mistake.files:
                compile((copy.top / path).read_text(), path, "exec")


@pytest.mark.parametrize("mistake", sought())
def test_a_planted_mistake_is_found(mistake: Mistake, copy: Copy) -> None:
    find(mistake, copy, SEEDS)


def test_the_page_has_every_mistake() -> None:
    assert page_of(PAGE.read_text(), mistakes()) == PAGE.read_text(), "python -m tests.planted --page"


def test_a_patch_that_does_not_apply_any_more_is_an_error(tmp_path: Path, copy: Copy) -> None:
    mistake = read(patch_of(tmp_path, BY_SIMULATOR, after="what stood there before\n"))
    with pytest.raises(NotPlanted, match="some-mistake does not apply any more"), copy.planted(mistake):
        raise AssertionError("it was planted")


def test_a_patch_that_does_not_say_who_finds_it_is_an_error(tmp_path: Path) -> None:
    patch = tmp_path / "some-mistake.patch"
    patch.write_text("--- a/some\n+++ b/some\n")
    with pytest.raises(NotPlanted, match="Bug, Rule and Finder"):
        read(patch)


def test_what_breaks_nothing_is_not_found_by_the_simulator(tmp_path: Path, copy: Copy) -> None:
    with pytest.raises(NotFound, match="no rule broke in 1 seeds"):
        find(read(patch_of(tmp_path, BY_SIMULATOR)), copy, seeds=1)


def test_what_breaks_nothing_is_not_found_by_a_test(tmp_path: Path, copy: Copy) -> None:
    finder = "tests/replication/test_commit.py::test_a_write_commits_on_all_nodes"
    with pytest.raises(NotFound, match="ended with 0"):
        find(read(patch_of(tmp_path, finder)), copy, seeds=1)


def test_a_finder_that_is_no_test_finds_nothing(tmp_path: Path, copy: Copy) -> None:
    finder = "tests/replication/test_commit.py::test_that_is_not_there"
    with pytest.raises(NotFound, match="ended with 4"):
        find(read(patch_of(tmp_path, finder)), copy, seeds=1)


def test_a_program_that_is_merely_broken_is_no_finding(tmp_path: Path, copy: Copy) -> None:
    with pytest.raises(NotFound, match="the simulator did not run"):
        find(read(patch_of(tmp_path, BY_SIMULATOR, added="no_such_name")), copy, seeds=1)
