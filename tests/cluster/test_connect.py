"""`quire.connect` is there for whoever asks for it, and costs nobody else an import."""

import subprocess
import sys

import pytest

import quire
from quire.cluster import client


def test_quire_connect_is_the_client_s() -> None:
    assert quire.connect is client.connect
    assert quire.connect_sync is client.connect_sync


def test_quire_has_nothing_else_by_accident() -> None:
    with pytest.raises(AttributeError, match="disconnect"):
        getattr(quire, "disconnect")  # noqa: B009


def test_importing_quire_imports_no_client() -> None:
    script = "import sys, quire; sys.exit(any(name.startswith(('aiohttp', 'quire.')) for name in sys.modules))"

    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == 0
