"""The dialogue of a cluster, recorded: each script of `transcripts/` gives the same lines again.

After a change that is meant, record them anew and read the difference:

    QUIRE_RECORD=1 pytest tests/replication/test_transcripts.py
"""

import os
from pathlib import Path

import pytest

from tests.replication.transcript import FOLDER, rerun

SCRIPTS = sorted(FOLDER.glob("*.txt"))
SUBJECTS = {
    "first_election",
    "write_committed",
    "leader_lost",
    "divergence_truncated",
    "member_replaced",
    "snapshot_installed",
    "leadership_transferred",
    "unfit_leader",
}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_gives_the_dialogue_that_is_recorded(path: Path) -> None:
    recorded = path.read_text()
    now = rerun(recorded)
    if os.environ.get("QUIRE_RECORD"):
        path.write_text(now)
        return
    assert now == recorded


def test_each_subject_has_a_transcript() -> None:
    assert {path.stem for path in SCRIPTS} >= SUBJECTS
