"""`quire.connect` is imported only when it is used."""

import subprocess
import sys

import pytest

import quire
from quire.cluster import client


def test_quire_exports_connect_and_connect_sync() -> None:
    assert quire.connect is client.connect
    assert quire.connect_sync is client.connect_sync


def test_quire_has_no_other_lazy_attributes() -> None:
    with pytest.raises(AttributeError, match="disconnect"):
        getattr(quire, "disconnect")  # noqa: B009


def test_importing_quire_does_not_import_the_client() -> None:
    script = "import sys, quire; sys.exit(any(name.startswith(('aiohttp', 'quire.')) for name in sys.modules))"

    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == 0
