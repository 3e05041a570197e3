"""The record of the campaign is whole, says enough, and is what the page says."""

from dataclasses import replace

import pytest

from tests.mutants.campaign import RINGS
from tests.mutants.mistake import BY_HAND, BY_TOOL, Mistake, recorded, with_mistake
from tests.mutants.page import PAGE, page_of, share_found
from tests.planted.mistake import TOP, NotPlanted

AT_LEAST = 150
FOUND_AT_LEAST = 0.92
"""Of those that change behaviour. What was not looked for to the end, and has no test, counts as not found."""

MISTAKE = Mistake("log/some.py", 2, "second", "changed", BY_TOOL, "AddNot", ring=RINGS[0], found_by="a", seconds=2.0)


def test_enough_mistakes_were_drawn_by_the_tool_and_by_hand_and_none_twice() -> None:
    commit, mistakes = recorded()
    assert commit
    assert len(mistakes) >= AT_LEAST
    assert {mistake.by for mistake in mistakes} == {BY_TOOL, BY_HAND}
    assert all(mistake.ring in (*RINGS, "", None) for mistake in mistakes)
    assert len({(mistake.file, mistake.line, mistake.new) for mistake in mistakes}) == len(mistakes)


def test_most_of_those_that_change_behaviour_are_found() -> None:
    _, mistakes = recorded()
    assert share_found(mistakes) >= FOUND_AT_LEAST


def test_each_survivor_is_explained_or_its_test_is_there() -> None:
    _, mistakes = recorded()
    for mistake in mistakes:
        assert not (mistake.ring and (mistake.same or mistake.test))
        if mistake.test:
            path, _, name = mistake.test.partition("::")
            assert f"def {name.partition('[')[0]}(" in (TOP / path).read_text(), mistake.test


def test_the_page_is_what_was_recorded() -> None:
    assert page_of(PAGE.read_text(), *recorded()) == PAGE.read_text(), "python -m tests.mutants --page"


def test_what_behaves_the_same_does_not_count_and_what_a_new_test_finds_does() -> None:
    survivor = replace(MISTAKE, ring="", found_by="")
    assert share_found([MISTAKE, survivor]) == 0.5
    assert share_found([MISTAKE, replace(survivor, same="no one reads it")]) == 1
    assert share_found([MISTAKE, replace(survivor, test="tests/a.py::test_b")]) == 1
    assert share_found([MISTAKE, replace(survivor, test="tests/a.py::test_b")], first=True) == 0.5


def test_a_mistake_stands_in_the_place_of_its_lines_nearest_to_where_they_were() -> None:
    assert with_mistake("first\nsecond\nthird\nfourth\nsecond\n", MISTAKE) == "first\nchanged\nthird\nfourth\nsecond\n"


def test_a_mistake_whose_lines_have_changed_is_an_error() -> None:
    with pytest.raises(NotPlanted, match=r"log/some\.py:2 has changed"):
        with_mistake("first\nanother\n", MISTAKE)


def test_nothing_is_drawn_where_no_mistake_can_matter() -> None:
    from tests.mutants.drawing import places

    typing_alone = "if TYPE_CHECKING:\n    x = 1\n"
    annotated = "def f(a: int | None = 1) -> int | str:\n    journal.info('a', b=2)\n    return f'{a + 1}'\n"
    assert places(typing_alone) == {}
    assert {line: len(those) for line, those in places(annotated).items()} == {1: 2}  # The default, up and down.
