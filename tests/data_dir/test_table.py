"""No damage of a data directory, nor two, loses in silence what its node acknowledged; the page says what happens."""

import pytest

from .damage import damages_of, disk_of, parts_of
from .history import LIVES, Life, history
from .page import PAGE, table_of
from .table import alone, alone_table, damaged, is_bad, pairs
from .verdict import Kind, verdict
from .voters import content


@pytest.mark.parametrize("life", LIVES, ids=str)
def test_an_undamaged_directory_starts_whole(life: Life) -> None:
    lived = history(life)

    assert verdict(disk_of(lived.now).directory(), lived).kind is Kind.WHOLE


def test_no_damage_of_one_part_of_a_directory_loses_in_silence_and_the_page_says_what_happens() -> None:
    cells = list(alone())

    bad = [cell for cell in cells if is_bad(cell)]
    assert not bad, "\n".join(map(str, bad))
    assert table_of(PAGE.read_text()) == alone_table(cells), "run python -m tests.data_dir --page"


@pytest.mark.parametrize("life", LIVES, ids=str)
def test_a_refused_start_changes_nothing_that_a_repair_needs(life: Life) -> None:
    lived = history(life)
    for part in parts_of(lived.now):
        for damage in damages_of(part, lived):
            disk = damaged(lived, damage)
            if verdict(disk.directory(), lived).kind is Kind.REFUSES:
                left = {path: data for path, data in content(disk).items() if not part.holds(path)}
                repaired = disk_of(left | part.of(lived.now))
                assert verdict(repaired.directory(), lived).kind is Kind.WHOLE, damage


@pytest.mark.full
def test_no_damage_of_two_parts_loses_in_silence_and_the_page_says_how_many_were_tried() -> None:
    cells = list(pairs())

    bad = [cell for cell in cells if is_bad(cell)]
    assert not bad, "\n".join(map(str, bad))
    assert f"({len(cells):,} directories)" in PAGE.read_text()


@pytest.mark.full
def test_no_byte_of_a_part_may_be_cut_or_flipped_without_a_word() -> None:
    bad = [cell for cell in alone(thorough=True) if is_bad(cell)]

    assert not bad, "\n".join(map(str, bad))


@pytest.mark.full
@pytest.mark.parametrize("life", LIVES, ids=str)
def test_no_part_nor_log_with_mark_may_be_a_copy_of_any_age_without_a_word(life: Life) -> None:
    """The mark is synced after each frame of this history. What was written since its last sync is not witnessed."""
    lived = history(life)
    parts = [*parts_of(lived.now)]
    choices = [(part,) for part in parts] + [tuple(part for part in parts if part.name in ("log/", "mark"))]
    for age, copy in enumerate(reversed(lived.copies), start=1):
        for chosen in choices:
            tree = {path: data for path, data in lived.now.items() if not any(part.holds(path) for part in chosen)}
            for part in chosen:
                tree |= part.of(copy)

            result = verdict(disk_of(tree).directory(), lived)

            assert result.kind is not Kind.BAD, f"{[part.name for part in chosen]} of {age} frames ago: {result}"
