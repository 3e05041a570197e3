"""Packages whose names are imported when first used offer what a type checker believes, and cost what is used."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = ["quire", "quire.log", "quire.sm", "quire.replication"]


def typed_names(package: str) -> dict[str, str]:
    """The names that the package imports for a type checker, and their modules."""
    tree = ast.parse(Path(str(importlib.import_module(package).__file__)).read_text())
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: str(node.module) for node in imports for alias in node.names}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_offers_at_run_time_what_it_declares(package: str) -> None:
    module = importlib.import_module(package)
    declared = typed_names(package)

    assert declared
    for name, source in declared.items():
        where = source if source.startswith("quire.") else f"{package}.{source}"
        assert getattr(module, name) is getattr(importlib.import_module(where), name)
    with pytest.raises(AttributeError, match="has no attribute 'absent'"):
        _ = module.absent


def test_the_names_of_the_log_do_not_import_what_they_do_not_use() -> None:
    program = "import sys; from quire.log import pack, list_segments; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)

    assert not {"asyncio", "quire.log.log", "quire.log.flusher", "aiohttp"} & set(run.stdout.split())
