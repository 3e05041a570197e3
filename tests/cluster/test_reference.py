"""The reference sections of docs/client.md and docs/machines.md are what the docstrings say, and are complete.

tests/pages runs the pages' examples, the client's against a real cluster.
"""

import ast
import doctest
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import quire
from quire.cluster import client
from quire.cluster.reference import SECTION, page_with_reference
from quire.sm import OptionalMembers, StateMachine
from quire.sm.testing import check_machine
from tests.tidy.tree import Tree

TOP = Path(__file__).resolve().parents[2]
CLIENT, MACHINES = TOP / "docs" / "client.md", TOP / "docs" / "machines.md"
ALIASES = {"Consistency", "Problem", "Refusal"}
CODE = re.compile(r"^```python[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def described(page: Path) -> set[str]:
    """The names that the reference sections of a page describe, without their modules."""
    return {name.rpartition(":")[2] for section in SECTION.finditer(page.read_text()) for name in section[3].split()}


def programs(page: Path) -> list[str]:
    """The code blocks of a page before its reference."""
    return CODE.findall(page.read_text().partition("## Reference")[0])


@pytest.mark.parametrize("page", [CLIENT, MACHINES], ids=lambda page: page.name)
def test_the_page_is_up_to_date(page: Path, tmp_path: Path) -> None:
    copy = tmp_path / page.name
    copy.write_text(SECTION.sub(r"\1\4", page.read_text()))

    subprocess.run([sys.executable, "-m", "quire.cluster.reference", copy], timeout=60, check=True)

    assert copy.read_text() == page.read_text(), f"run python -m quire.cluster.reference docs/{page.name}"
    assert page_with_reference(page.read_text()) == page.read_text()


def test_every_class_and_function_of_the_client_is_described() -> None:
    assert set(client.__all__) - ALIASES <= described(CLIENT)


def test_every_class_that_a_machine_s_author_meets_is_described() -> None:
    assert {"StateMachine", "OptionalMembers", "Context", "Refused"} <= described(MACHINES)
    for name in quire.__all__:
        assert name in described(CLIENT) | described(MACHINES) | ALIASES | {"Value", "__version__", "pack", "unpack"}


@pytest.mark.parametrize("kind", [client.Client, client.Admin, StateMachine, OptionalMembers])
def test_every_method_and_field_has_a_section_or_line_with_a_description(kind: type) -> None:
    page = (CLIENT if kind.__module__.startswith("quire.cluster") else MACHINES).read_text()
    for name, method in vars(kind).items():
        if inspect.isfunction(method) and not name.startswith("_"):
            section = page.split(f"\n#### {kind.__name__}.{name}\n", 1)[1].split("\n###")[0]
            assert str(inspect.getdoc(method)).splitlines()[0] in section
    for name in getattr(kind, "__annotations__", {}):
        assert re.search(rf"^- `{name}: \w+`: .", page, re.MULTILINE), name


def test_what_a_call_raises_and_takes_is_a_list() -> None:
    page = CLIENT.read_text()

    assert "- `NotFound`: the log does not have the record yet, or no longer has it.\n" in page
    assert "- `servers`: the nodes to try, in this order.\n" in page
    assert "    timeout_s: float = 30.0,\n" in page


def modules_with_examples() -> Iterator[str]:
    for path in Tree.of_checkout(TOP).paths:
        if path.suffix == ".py" and path.parts[0] in ("sm", "cluster", "log") and "simulator" not in path.parts:
            if ">>> " in "".join(_docstrings(TOP / path)):
                yield ".".join(["quire", *path.with_suffix("").parts])


def _docstrings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def test_the_examples_in_docstrings_do_what_they_say() -> None:
    examples = [doctest.testmod(import_module(name)) for name in modules_with_examples()]

    assert sum(result.attempted for result in examples) >= 1
    assert sum(result.failed for result in examples) == 0


def test_the_page_s_machine_with_a_large_state_passes_the_test_kit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, noted = programs(MACHINES)
    (tmp_path / "noted.py").write_text(noted)
    (tmp_path / "counters.py").write_text(code.replace("BLOCK_PAIRS = 1000", "BLOCK_PAIRS = 2"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")

    check_machine(
        "counters:Counters",
        commands=[["count", name] for name in "abcab"],
        refused=[["count"], ["reset", "a"], 1],
        queries=["a", "z"],
    )
    check_machine(
        "noted:Counters",
        commands=[["count", "a"], ["note", "a", "first"], ["count", "b"], ["note", "a", "second"]],
        refused=[["note", "a"], ["reset", "a"], 1],
        queries=["a", "z"],
    )
    before = import_module("counters").Counters(None)
    before.counts = {"a": 1}
    after = import_module("noted").Counters(None)
    after.restore(before.snapshot())
    assert (after.counts, after.notes) == ({"a": 1}, {})


def test_the_page_s_machine_restores_and_writes_its_state_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _ = programs(MACHINES)
    (tmp_path / "counting.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    machine = import_module("counting").Counters(None)
    machine.counts = {f"{number:0100}": number for number in range(50_000)}
    size = sum(map(len, machine.snapshot()))
    restored = import_module("counting").Counters(None)
    longest = max(map(len, machine.snapshot()))

    restored.restore(machine.snapshot())

    assert restored.counts == machine.counts
    assert longest * 40 < size
    with pytest.raises(quire.SnapshotInvalid):
        restored.restore(list(machine.snapshot())[:-1])
