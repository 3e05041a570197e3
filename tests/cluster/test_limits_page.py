"""`docs/limits.md` agrees with the code, and has every limit of the HTTP interface."""

import re
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from quire.cluster import http as api
from quire.cluster.config.serve import FRAME_OVERHEAD_BYTES, ServeConfig
from quire.cluster.standalone.config import StandaloneConfig
from quire.sm.machines import kv

PAGE = Path(__file__).parents[2] / "docs" / "limits.md"
UNITS = {"": 1, "bytes": 1, "characters": 1, "s": 1, "ms": 1, "us": 1, "KiB": 1 << 10, "MiB": 1 << 20}
VALUE = re.compile(r"([0-9][0-9,]*)(?: (bytes|characters|s|ms|us|KiB|MiB))?")
IS_LIMIT = re.compile(
    r"LIMIT|_CHARACTERS$|_RESERVE$|AT_ONCE$|STALL_TIMEOUT_S$|HELD_BYTES|WINDOW_BYTES|RANGE_|BODY_BYTES"
)
LIMITING_FIELD = re.compile(r"max_|_limit_")
CONFIGURATIONS: dict[str, Any] = {"ServeConfig": ServeConfig, "StandaloneConfig": StandaloneConfig}
NO_LIMITS = {"check_invariants", "model_config"}


class Row(NamedTuple):
    what: str
    limit: str
    set_by: str
    past_it: str
    tested_by: str


def rows() -> list[Row]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    found = [Row(*(cell.strip() for cell in line.strip("|").split("|"))) for line in lines]
    return [row for row in found if row.what != "what"]


def value_of(name: str) -> float:
    """The value of a setting's default, of a constant of a configuration or a module, or of a field's default."""
    if name in ServeConfig.model_fields:
        return float(ServeConfig.model_fields[name].default)
    owner, _, last = name.partition(".")
    if owner in CONFIGURATIONS:
        return float(getattr(CONFIGURATIONS[owner], last))
    path, _, last = name.rpartition(".")
    if path.rpartition(".")[2][0].isupper():
        path, _, owner = path.rpartition(".")
        return float(getattr(getattr(import_module(path), owner)(), last))
    return float(getattr(import_module(path), last))


@pytest.mark.parametrize("row", rows(), ids=lambda row: str(row.what))
def test_a_limit_is_what_the_code_says(row: Row) -> None:
    assert row.past_it
    assert re.fullmatch("`test_[a-z0-9_]+`", row.tested_by)
    if row.set_by == "aiohttp":
        return
    names = re.findall("`([^`]+)`", row.set_by)
    amounts = [int(number.replace(",", "")) * UNITS[unit] for number, unit in VALUE.findall(row.limit)]

    assert amounts == [value_of(name) for name in names]


def test_every_limit_of_the_interface_is_on_the_page() -> None:
    said = PAGE.read_text()
    folder = Path(next(iter(api.__path__)))
    constants = [
        ".".join(["quire.cluster.http", *path.relative_to(folder).with_suffix("").parts, name])
        for path in sorted(folder.rglob("*.py"))
        for name in re.findall(r"^([A-Z][A-Z0-9_]*)(?:: [^=]+)? = ", path.read_text(), re.MULTILINE)
        if IS_LIMIT.search(name)
    ]
    fields = [name for name in ServeConfig.model_fields if LIMITING_FIELD.search(name)]
    fields += [
        f"{owner}.{name}" for owner, model in CONFIGURATIONS.items() for name in model.__class_vars__ - NO_LIMITS
    ]

    assert len(constants) > 10
    assert [name for name in constants + fields if f"`{name}`" not in said] == []


def test_every_limit_of_the_kv_machine_is_on_the_page() -> None:
    said = PAGE.read_text()
    names = [name for name in vars(kv) if name.endswith(("_BYTES", "_KEYS", "_LIMIT")) and not name.startswith("_")]

    assert len(names) > 5
    assert [name for name in names if f"`quire.sm.machines.kv.{name}`" not in said] == []


def test_a_frame_s_overhead_is_what_the_page_subtracts() -> None:
    assert UNITS["KiB"] == FRAME_OVERHEAD_BYTES
