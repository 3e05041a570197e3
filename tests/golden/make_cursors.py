"""Write the golden bytes of cursors: `python -m tests.golden.make_cursors` from the repository's top.

For each form, with and without owners: the payload of a `cursors` record, and the content of a snapshot with its
cursors. A change that makes other bytes is a change of the format: it needs a new feature, not new golden files.
"""

from pathlib import Path

from quire.log import encode_system
from quire.sm import Applier, ArithmeticMachine, CursorRow, cursors_record
from tests.sm.frames import Frames

FOLDER = Path(__file__).parent / "cursors"
TOKEN = bytes(range(16))
FORMER = (CursorRow("mail", 0, hold_bytes=1024, token=TOKEN, take=True), CursorRow("report", 1, None, True))
OWNED = (*FORMER, CursorRow("mail/0-2", 2, owner="alice"), CursorRow("report", 1, owner="bob"), CursorRow("last", 0))
RECORDS = {
    "without-owners": cursors_record(FORMER, ["gone"]),
    "with-owners": cursors_record([*OWNED, CursorRow("last", 0, owner="")]),
}


def golden_applier(record: dict[str, object]) -> Applier:
    """An applier after this record."""
    frames, applier = Frames(epoch=1), Applier(ArithmeticMachine())
    applier.apply(frames.records([["add", 1]] * 3))
    applier.apply(frames.system(record))
    return applier


def golden_files() -> dict[str, bytes]:
    """The files by name."""
    payloads = {f"{form}.payload": encode_system(record) for form, record in RECORDS.items()}
    contents = {f"{form}.content": b"".join(golden_applier(record).content()) for form, record in RECORDS.items()}
    return payloads | contents


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, data in golden_files().items():
        (FOLDER / name).write_bytes(data)
