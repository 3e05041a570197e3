"""`docs/standalone.md` is what the model says."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.cluster.standalone.config import StandaloneConfig
from quire.cluster.standalone.page import standalone_page

PAGE = Path(__file__).parents[2] / "docs" / "standalone.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == standalone_page(), "run python -m quire.cluster.standalone.page > docs/standalone.md"


@pytest.mark.parametrize("name", StandaloneConfig.model_fields)
def test_every_field_has_a_section_with_its_flag(name: str) -> None:
    section = standalone_page().split(f"\n## {name}\n", 1)[1].split("\n## ")[0]
    assert f"`--{name.replace('_', '-')}`" in section
