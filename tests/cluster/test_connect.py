"""What `quire` exports, and that a name is imported only when it is used, with little else."""

import subprocess
import sys

import pytest

import quire
import quire.sm
from quire.cluster import client
from quire.cluster.client import errors
from tests.cluster.test_client import closed_port

# What a client may load of quire. A node's modules, and the log's, would double the time that a command takes to start.
OF_A_CLIENT = {
    "quire.cluster": {"client", "access", "errors", "majority", "outgoing", "request_id"},
    "quire.cluster.access": {"client_credentials", "files", "roles", "tls", "tokens"},
    "quire.log": {"errors", "packing"},
    "quire.replication": {"address", "names"},
}
NOT_OF_A_CLIENT = {
    "cachetools",
    "crc32c",
    "cryptography",
    "prometheus_client",
    "pydantic",
    "pydantic_settings",
    "pysyncobj",
    "rich",
    "sortedcontainers",
    "stamina",  # It and tenacity report retries to hooks that are the program's own.
    "structlog",
    "tenacity",
    "typer",
    "uvloop",
}
OF_A_MACHINE = ["StateMachine", "Context", "Refused", "InitialInvalid", "SnapshotInvalid", "pack", "unpack", "Value"]


def loaded_by(statement: str) -> set[str]:
    """The modules that a new interpreter has loaded after a statement, without those that it loads anyway."""
    script = f"import sys; before = set(sys.modules)\n{statement}\nprint(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", script], check=True, timeout=60, capture_output=True, text=True)
    return set(done.stdout.split())


def test_quire_exports_all_that_its_client_does() -> None:
    for name in client.__all__:
        assert getattr(quire, name) is getattr(client, name), name

    assert set(client.__all__) <= set(quire.__all__)


def test_quire_exports_every_error_that_a_caller_may_get() -> None:
    raised = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}

    assert raised - set(quire.__all__) == {"ClusterError"}  # The base class of both sides of a connection.
    assert "TokenRefused" in quire.__all__
    assert "PayloadInvalid" in quire.__all__


@pytest.mark.parametrize("name", OF_A_MACHINE)
def test_quire_exports_what_a_machine_needs(name: str) -> None:
    assert name in quire.__all__
    assert getattr(quire, name) is getattr(quire.sm if hasattr(quire.sm, name) else quire.log, name)


def test_every_exported_name_exists_and_is_listed_and_kept() -> None:
    listed = dir(quire)

    for name in quire.__all__:
        assert getattr(quire, name) is getattr(quire, name)
        assert name in listed
        assert name in vars(quire)
    assert sorted(quire.__all__) == sorted(set(quire.__all__))


def test_quire_has_no_other_lazy_attributes() -> None:
    with pytest.raises(AttributeError, match="disconnect"):
        getattr(quire, "disconnect")  # noqa: B009


def test_importing_quire_imports_nothing_of_ours() -> None:
    assert {name for name in loaded_by("import quire") if name.startswith(("aiohttp", "quire."))} == set()


@pytest.mark.parametrize("name", [*OF_A_MACHINE, "QuireError"])
def test_a_machine_s_names_are_imported_without_the_client_and_the_log(name: str) -> None:
    loaded = loaded_by(f"import quire; quire.{name}")

    allowed = {"quire", "quire.sm", "quire.sm.errors", "quire.sm.machine"}
    allowed |= {"quire.log", "quire.log.errors", "quire.log.packing"}
    assert {module for module in loaded if module.startswith("quire")} <= allowed
    assert not {"aiohttp", "asyncio", "ssl"} & loaded


def test_the_client_loads_nothing_of_a_node() -> None:
    loaded = loaded_by("import quire; quire.connect")

    assert not NOT_OF_A_CLIENT & {module.partition(".")[0] for module in loaded}
    for module in sorted(loaded):
        package, _, name = module.rpartition(".")
        if package in OF_A_CLIENT:
            assert name in OF_A_CLIENT[package], module
        elif package == "quire":
            assert name in {"cluster", "log", "replication"}, module
        elif module.startswith("quire."):
            assert package in {f"quire.cluster.client{of}" for of in ("", ".leader", ".records")}, module


RETRYING = """
import logging, sys
import quire

for level in sys.argv[2:]:
    logging.basicConfig(level=level, stream=sys.stdout, format="%(name)s %(message)s")
with quire.connect_sync(sys.argv[1], timeout_s=0.3) as cluster:
    for call in (lambda: cluster.append("x"), lambda: cluster.apply("x"), cluster.session):
        try:
            call()
        except quire.Unavailable:
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
