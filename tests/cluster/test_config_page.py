"""`docs/configuration.md` is what the model says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quire.cluster.config.page import HEAD, config_page
from quire.cluster.config.serve import ServeConfig, load_config
from tests.pages.page import parse

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_is_up_to_date() -> None:
    made = subprocess.run(
        [sys.executable, "-m", "quire.cluster.config.page"], capture_output=True, text=True, timeout=60, check=True
    )

    assert PAGE.read_text() == made.stdout == config_page(), "run python -m quire.cluster.config.page > docs/..."


@pytest.mark.parametrize("name", ServeConfig.model_fields)
def test_every_field_has_a_section_with_its_flag_and_variable(name: str) -> None:
    section = config_page().split(f"\n## {name}\n", 1)[1].split("\n## ")[0]

    assert f"`--{name.replace('_', '-')}`" in section
    assert f"`QUIRE_{name.upper()}`" in section
    assert str(ServeConfig.model_fields[name].description) in section


def test_the_limits_and_units_of_a_field_are_shown() -> None:
    section = config_page().split("\n## election_timeout_ms\n", 1)[1].split("\n## ")[0]

    assert "in ms, at least 100, at most 600,000, default `1000`" in section


def test_the_page_s_example_is_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [name for name in os.environ if name.upper().startswith("QUIRE_")]:
        monkeypatch.delenv(variable)
    [example] = [block for block in parse("docs/configuration.md", HEAD).blocks if block.file]
    (tmp_path / "quire.toml").write_text(example.text)

    config = load_config({"node": "n1", "listen": "127.0.0.1:7001"}, tmp_path / "quire.toml")

    assert (config.node, config.heartbeat_ms, len(config.members)) == ("n1", 100, 3)
