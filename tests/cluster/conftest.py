"""What tests of callers share: a CA, and a token's file."""

from pathlib import Path

import pytest

from tests.cluster.access.issued import CLUSTER, Authority

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
