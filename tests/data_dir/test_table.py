"""No damage of a data directory, nor two, loses in silence what its node acknowledged; the page says what happens."""

import pytest

from .damage import Damage, damages_of, disk_of, parts_of
from .history import LIVES, Life, history
from .page import PAGE, part_of
from .table import alone, alone_table, damaged, is_bad, pairs, pairs_table
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
    assert part_of(PAGE.read_text(), "alone") == alone_table(cells), "run python -m tests.data_dir --page"


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
def test_no_damage_of_two_parts_loses_in_silence_and_the_page_says_what_happens() -> None:
    cells = list(pairs())

    bad = [cell for cell in cells if is_bad(cell)]
    assert not bad, "\n".join(map(str, bad))
    assert part_of(PAGE.read_text(), "in pairs") == pairs_table(cells), "run python -m tests.data_dir --page"


@pytest.mark.full
def test_no_byte_of_a_part_may_be_cut_or_flipped_without_a_word() -> None:
    bad = [cell for cell in alone(thorough=True) if is_bad(cell)]

    known = {("log/", Damage.FLIPPED), ("log/ its write segment", Damage.FLIPPED)}
    assert {(cell.damages[0].part.name, cell.damages[0].damage) for cell in bad} <= known, "\n".join(map(str, bad))
