"""Records and snapshots of cursors, byte for byte: with owners, and as they are without, which never change."""

from typing import cast

import pytest

from quire.log import decode_system
from quire.sm import Applier, ArithmeticMachine, Cursor, Sessions
from tests.golden.make_cursors import FOLDER, RECORDS, TOKEN, golden_applier, golden_files

CURSORS = {
    "without-owners": [("mail", Cursor(0, 1024, TOKEN)), ("report", Cursor(1, 0, b""))],
    "with-owners": [
        ("last", Cursor(0, 0, b"")),
        ("mail", Cursor(0, 1024, TOKEN)),
        ("mail/0-2", Cursor(2, 0, b"", "alice")),
        ("report", Cursor(1, 0, b"", "bob")),
    ],
}


def test_cursors_have_the_golden_bytes() -> None:
    assert golden_files() == {path.name: path.read_bytes() for path in FOLDER.iterdir()}


@pytest.mark.parametrize("form", list(RECORDS))
def test_the_golden_record_is_applied_and_the_golden_snapshot_restored(form: str) -> None:
    record = cast("dict[str, object]", decode_system((FOLDER / f"{form}.payload").read_bytes()))
    applier = golden_applier(record)
    assert applier.cursors.all() == CURSORS[form]
    content = (FOLDER / f"{form}.content").read_bytes()
    restored = Applier.restored([content], applier.boundary, ArithmeticMachine(), Sessions(), "a snapshot")
    assert restored.cursors.all() == CURSORS[form]
