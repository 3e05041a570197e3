"""mypy accepts every use in this folder, and refuses every wrong use, each with the error that its comment names."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
FOLDER = TOP / "tests" / "typing"
EXPECTED = re.compile(r"  # type: ignore\[([a-z-]+)\]$")
FOUND = re.compile(r"^[^:]+:(\d+): error: .*\[([a-z-]+)\]$", re.MULTILINE)
TIMEOUT_S = 280

pytestmark = pytest.mark.slow  # Without mypy's cache, a minute.


def mypy(*arguments: str) -> str:
    """What mypy prints, with the project's settings."""
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context", *arguments]
    environment = {**os.environ, "MYPY_FORCE_COLOR": "0", "TERM": "dumb"}
    return subprocess.run(
        command, cwd=TOP, capture_output=True, text=True, check=False, timeout=TIMEOUT_S, env=environment
    ).stdout


def test_the_public_calls_have_the_types_that_this_folder_asserts() -> None:
    assert mypy(str(FOLDER.relative_to(TOP))) == ""


def test_each_wrong_use_is_refused_with_its_error(tmp_path: Path) -> None:
    lines = (FOLDER / "wrong_uses.py").read_text().splitlines()
    expected = {(number, match[1]) for number, line in enumerate(lines, 1) if (match := EXPECTED.search(line))}
    bare = tmp_path / "bare_uses.py"
    bare.write_text("\n".join(EXPECTED.sub("", line) for line in lines) + "\n")

    found = {(int(number), code) for number, code in FOUND.findall(mypy(str(bare)))}

    assert len(expected) > 15
    assert found == expected
