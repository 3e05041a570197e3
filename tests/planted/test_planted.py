"""Every planted mistake applies to the code, and those that are found soon are found. For all: `make soak-planted`."""

from collections.abc import Generator, Iterable
from difflib import unified_diff
from pathlib import Path

import pytest
from crc32c import crc32c

from tests.planted.finding import Finding, NotFound, find
from tests.planted.mistake import BY_SIMULATOR, TOP, Copy, Mistake, NotPlanted, copy_of_the_tree, mistakes, read
from tests.planted.page import PAGE, page_of, recorded

AT_LEAST = 25
SOON = 4
"""Mistakes that were found within so many histories are looked for here, as are those that a test finds."""
AT_ONCE = 1
"""Of those, `make test` looks for every third one that the first history finds, and every ninth that a test finds.

Those that need histories with an illness for good are looked for in `make test-all`: their rules have tests besides.
"""
LONG = frozenset({"cancelled-sender-is-no-end", "calls-wait-for-a-lost-leader", "silent-link-is-kept"})
"""Their tests find them by waiting in vain to a deadline of their own: not in `make test`."""
SEEDS = 40
"""How many histories to look in: another version of the core makes other histories of the same seeds."""

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
    """The mistakes that are looked for here."""
    found = recorded()
    those: list[object] = []
    for mistake in mistakes():
        after = found[mistake.name].after if mistake.name in found else 0
        if after <= SOON:
            quick = (
                _is_drawn(mistake, 3) and after == AT_ONCE and not mistake.illness if after else _is_drawn(mistake, 9)
            )
            those.append(pytest.param(mistake, id=mistake.name, marks=pytest.mark.slow if quick else pytest.mark.full))
    return those


def _is_drawn(mistake: Mistake, of: int) -> bool:
    """One of so many, by its name, so that another patch changes nothing for this one."""
    return mistake.name not in LONG and crc32c(mistake.name.encode()) % of == 0


def names(those: Iterable[Mistake]) -> list[str]:
    return [mistake.name for mistake in those]


def test_there_are_enough_of_them_and_each_was_found() -> None:
    assert len(mistakes()) >= AT_LEAST
    assert sorted(recorded()) == names(mistakes()), "python -m tests.planted --record"


def test_each_is_recorded_with_the_finder_that_it_names() -> None:
    found = recorded()
    wrong = [
        mistake.name
        for mistake in mistakes()
        if mistake.is_for_simulator != bool(found[mistake.name].after)
        or (not mistake.is_for_simulator and mistake.finder != found[mistake.name].found_by)
    ]
    assert wrong == []


def test_every_one_applies_to_the_code_as_it_is(copy: Copy) -> None:
    for mistake in mistakes():
        with copy.planted(mistake):
            for path in mistake.files:
                compile((copy.top / path).read_text(), path, "exec")


@pytest.mark.parametrize("mistake", sought())
def test_a_mistake_that_is_found_soon_is_found(mistake: Mistake, copy: Copy) -> None:
    find(mistake, copy, SEEDS)


def test_the_page_is_what_was_recorded() -> None:
    assert page_of(PAGE.read_text(), mistakes(), recorded()) == PAGE.read_text(), "python -m tests.planted --page"


def test_the_page_names_who_found_what_after_how_many_seeds() -> None:
    first, second, *_ = mistakes()
    found = {first.name: Finding("a rule", 12), second.name: Finding("tests/a.py::test_b[1]", 0)}
    page = page_of("before\n", [first, second], found)
    assert page.startswith("before\n")
    assert f"| {first.bug} | {first.rule} | the simulator: *a rule* | 12 |\n" in page
    assert f"| {second.bug} | {second.rule} | `test_b` | |\n" in page
    assert page_of(page, [first, second], found) == page


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
