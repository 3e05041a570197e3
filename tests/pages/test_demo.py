"""What `quire demo` prints to try next works in another terminal, though `quire` is not on its PATH."""

import re
from pathlib import Path

import pytest

from tests.pages.checkout import Checkout
from tests.pages.shell import Shell

pytestmark = [pytest.mark.full, pytest.mark.alone, pytest.mark.xdist_group("alone")]
SUGGESTED = re.compile(r"^  (\S.*?)(?:   .*)?$", re.MULTILINE)


def test_the_commands_that_the_demo_suggests_work_in_another_terminal(checkout: Checkout, tmp_path: Path) -> None:
    checkout.reset()
    for name in ("demo", "other"):
        (tmp_path / name).mkdir()
    demo = Shell(checkout.path, checkout.environment(), tmp_path / "demo")
    other = Shell(Path("/"), checkout.environment(), tmp_path / "other")
    try:
        demo.run(".venv/bin/quire demo >output 2>&1 &")
        demo.run("until grep --quiet 'read --from' output; do sleep 0.2; done")
        said = (checkout.path / "output").read_text()
        commands = SUGGESTED.findall(said.partition("another terminal:")[2])

        ended = [(command, other.run(command)) for command in commands]

        assert len(commands) == 6, said
        assert [(command, end.output) for command, end in ended if end.code] == []
        # A terminal that finds it needs no path to it.
        demo.run("kill %1; wait %1 || true; export PATH=$PWD/.venv/bin:$PATH; quire demo >output 2>&1 &")
        demo.run("until grep --quiet 'read --from' output; do sleep 0.2; done")
        assert "export PATH" not in (checkout.path / "output").read_text()
    finally:
        demo.end()
        other.end()
