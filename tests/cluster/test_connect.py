"""`quire.connect` is imported only when it is used."""

import subprocess
import sys

import pytest

import quire
from quire.cluster import client
from tests.cluster.test_client import closed_port


def test_quire_exports_connect_and_connect_sync() -> None:
    assert quire.connect is client.connect
    assert quire.connect_sync is client.connect_sync


def test_quire_has_no_other_lazy_attributes() -> None:
    with pytest.raises(AttributeError, match="disconnect"):
        getattr(quire, "disconnect")  # noqa: B009


def test_importing_quire_does_not_import_the_client() -> None:
    script = "import sys, quire; sys.exit(any(name.startswith(('aiohttp', 'quire.')) for name in sys.modules))"

    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == 0


RETRYING = """
import logging, sys
import quire
from quire.cluster.client import Unavailable

for level in sys.argv[2:]:
    logging.basicConfig(level=level, stream=sys.stdout, format="%(name)s %(message)s")
with quire.connect_sync(sys.argv[1], timeout_s=0.3) as cluster:
    for call in (lambda: cluster.append("x"), lambda: cluster.apply("x"), cluster.session):
        try:
            call()
        except Unavailable:
            pass
"""


def retried(*arguments: str) -> str:
    script = [sys.executable, "-c", RETRYING, closed_port(), *arguments]
    done = subprocess.run(script, check=True, timeout=60, capture_output=True, text=True)
    return done.stdout + done.stderr


@pytest.mark.slow
def test_a_client_that_retries_prints_nothing() -> None:
    assert retried() == ""


@pytest.mark.slow
def test_the_logger_of_the_client_says_why_each_attempt_failed_and_of_what_call() -> None:
    lines = [line for line in retried("DEBUG").splitlines() if line.startswith("quire.client ")]

    for what in ("POST /records", "stream", "session"):
        assert any(f"{what}: attempt 1 failed: " in line and "refuses connections" in line for line in lines), lines


def test_a_client_changes_no_library_that_its_program_may_use_too() -> None:
    """Retries by a library that reports them, such as stamina, would report them to the program's own hooks."""
    script = "import sys, quire; quire.connect; print(*({'stamina', 'tenacity', 'structlog'} & set(sys.modules)))"

    done = subprocess.run([sys.executable, "-c", script], check=True, timeout=60, capture_output=True, text=True)

    assert done.stdout.split() == []
