"""The command line of `quire serve`. Invalid starts are tested in `test_bad_starts.py`."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from quire.cluster.config.serve import ServeConfig
from quire.cluster.config.settings import flag_of, unit_of
from tests.ports import HOST, free_port
from tests.processes.cluster import QUIRE, Clusters, environment, run_quire

USAGE = 2


@pytest.mark.full
def test_a_node_says_on_stdout_where_it_listens(clusters: Clusters) -> None:
    cluster = clusters.make(["n1"])
    cluster.start()
    node = cluster["n1"]

    assert f"quire: node n1 listens on {node.address}" in node.output.read_text().splitlines()


def test_a_cluster_of_one_works(clusters: Clusters) -> None:
    cluster = clusters.make(["n1"])
    cluster.start()

    assert cluster["n1"].apply(["add", 3], ["div", 5])["results"] == ["45", "9"]
    cluster.stop()


@pytest.mark.full
def test_every_configuration_error_is_a_sentence_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "quire.toml"
    file.write_text("heartbeat = 100\nelection_timeout_ms = 1\n")
    arguments = ["--node", "n1", "--listen", "127.0.0.1:7001", "--members", "n1=127.0.0.1:7001"]

    ended = run_quire("serve", *arguments, "--data-dir", str(tmp_path / "n1"), "--config", str(file))

    assert ended.code == USAGE
    assert sorted(line.split()[3] for line in ended.stderr.splitlines()) == ["election_timeout_ms", "heartbeat"]


@pytest.mark.full
@pytest.mark.parametrize("mode", [["--standalone"], ["--node", "n1", "--members", "n1=127.0.0.1:7001"]])
def test_one_line_of_the_journal_names_the_variables_of_a_service_named_quire(tmp_path: Path, mode: list[str]) -> None:
    given = {"QUIRE_SERVICE_HOST": "10.0.0.1", "QUIRE_PORT": "tcp://10.0.0.1:7001"}
    with socket.create_server((HOST, 0)) as taken:
        address = f"{HOST}:{taken.getsockname()[1]}"
        ended = run_quire("serve", *mode, "--listen", address, "--data-dir", str(tmp_path / "n1"), extra=given)

    said = [line for line in ended.stderr.splitlines() if "QUIRE_" in line]
    assert len(said) == 1
    assert all(name in said[0] for name in given)
    assert f"cannot listen on {address}" in ended.stderr.splitlines()[-1]  # So it went on, to the port.


@pytest.mark.full
def test_an_abbreviated_flag_is_a_usage_error() -> None:
    ended = run_quire("serve", "--nod", "n1")

    assert ended.code == USAGE
    assert "--nod" in ended.stderr


def test_help_names_every_field_with_its_unit_and_default() -> None:
    ended = run_quire("serve", "--help", extra={"COLUMNS": "200"})
    shown = " ".join(ended.stdout.split())

    assert ended.code == 0
    for name, field in ServeConfig.model_fields.items():
        unit = unit_of(name)
        value = unit.upper() or ("[VALUE]" if field.annotation is bool else "VALUE")
        assert f"{flag_of(name)} {value}" in shown
        if unit:
            assert f"Default: {field.default} {unit}." in shown


def test_serve_imports_no_simulation_neither_typer_nor_rich_and_needs_no_cryptography(tmp_path: Path) -> None:
    script = tmp_path / "imports.py"
    script.write_text(
        "import sys\n"
        "sys.modules['cryptography'] = None  # PySyncObj imports it where it is installed, for passwords.\n"
        "sys.argv = ['quire', 'serve', '--help']\n"
        "from quire.cluster.cli.main import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit:\n"
        "    pass\n"
        "assert 'structlog' in sys.modules and 'quire.cluster.node.node' in sys.modules\n"
        "apart = ('typer', 'rich', 'quire.cluster.simulator', 'quire.log.simulated')\n"
        "found = [name for name in sys.modules if name in apart]\n"
        "sys.exit(', '.join(sorted(found)) or 0)\n"
    )

    ended = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, env=environment(), timeout=60
    )

    assert ended.returncode == 0, ended.stderr


@pytest.mark.full
def test_a_machine_may_stand_in_the_current_directory(tmp_path: Path) -> None:
    (tmp_path / "here.py").write_text(
        "from quire.sm import LogMachine\n\n\nclass Here(LogMachine):\n    name = 'here'\n"
    )
    address = f"{HOST}:{free_port()}"
    flags = ["--node", "n1", "--listen", address, "--members", f"n1={address}", "--data-dir", "data"]
    with subprocess.Popen(
        [*QUIRE, "serve", *flags, "--machine", "here:Here"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        try:
            assert process.stdout is not None
            assert "listens" in process.stdout.readline()
        finally:
            process.terminate()
        assert process.wait(60) == 0
