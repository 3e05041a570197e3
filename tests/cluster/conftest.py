"""What tests of callers share: a CA, and a token's file; and what tests of a machine's code do: putting it in place."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire.sm import fingerprint_of, load_machine
from quire.sm.machines.fingerprint import short
from tests.cluster.access.issued import CLUSTER, Authority
from tests.cluster.ledger import MACHINE, PACKAGE, SPEC, Deploy

TOKEN = "quire_" + "a" * 43


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority(CLUSTER)


@pytest.fixture
def ca(tmp_path: Path, authority: Authority) -> Path:
    return authority.write(tmp_path / "ca.crt")


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return path


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[Deploy]:
    """Put these rules in place for the nodes that start from now on; returns the code's short fingerprint."""
    folder = tmp_path / "path" / PACKAGE
    folder.mkdir(parents=True)
    (folder / "machine.py").write_text(MACHINE)
    (folder / "__init__.py").write_text("")
    sys.path.insert(0, str(folder.parent))

    def forget() -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
            del sys.modules[name]
        importlib.invalidate_caches()

    def put(rules: str) -> str:
        (folder / "rules.py").write_text(rules)
        for compiled in folder.rglob("*.pyc"):
            compiled.unlink()
        forget()
        return short(fingerprint_of(load_machine(SPEC)))

    yield put
    forget()
    sys.path.remove(str(folder.parent))
