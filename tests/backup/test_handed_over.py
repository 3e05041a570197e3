"""A backup that somebody hands over runs no code, and what is made from or for one is closed to other users."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quire.cluster.backup.store import FolderStore
from quire.cluster.cli.backup import app
from tests.backup.manifests import manifest, piece
from tests.processes.cluster import Cluster, Ended, environment

TOP = Path(__file__).resolve().parents[2]
NAME = "of_an_attacker:Machine"
MODULE = f"""
from pathlib import Path
from tests.processes.adder import Adder

Path(__file__).with_name("imported").touch()

class Machine(Adder):
    name = "{NAME}"
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One node of a machine whose name is that of its class, with some records and a snapshot."""
    code = tmp_path_factory.mktemp("code")
    (code / "of_an_attacker.py").write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(code), str(TOP), os.environ.get("PYTHONPATH", "")]))
        alone = Cluster(tmp_path_factory.mktemp("cluster"), ("n1",), flags=("--machine", NAME))
        alone.start()
    try:
        alone.leader.apply(["add", 1], ["add", 2])
        assert alone.leader.call("POST", "/admin/snapshot").status == 200
        alone.leader.apply(["add", 3])
        yield alone
    finally:
        alone.close()


def quire(folder: Path, *arguments: str, umask: int = 0o022) -> Ended:
    """A command in a folder; as installed, it does not find modules there by itself."""
    found = {"PYTHONPATH": os.pathsep.join([str(TOP), os.environ.get("PYTHONPATH", "")])}
    run = subprocess.run(
        [sys.executable, "-P", "-m", "quire.cluster.cli.main", *arguments],
        cwd=folder,
        env=environment(found),
        umask=umask,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return Ended(run.returncode, run.stdout, run.stderr)


def modes_below(folder: Path) -> dict[str, str]:
    """Each mode that folders, and that files have in a folder, and one path that has it."""
    found = dict[str, str]()
    for path in (folder, *folder.rglob("*")):
        found[f"{'folder' if path.is_dir() else 'file'} {stat.S_IMODE(path.stat().st_mode):o}"] = str(path)
    return found


def test_a_backup_that_names_code_beside_it_is_refused_with_the_flag_and_imports_nothing(
    cluster: Cluster, tmp_path: Path
) -> None:
    backup = tmp_path / "backup"
    assert quire(tmp_path, "backup", str(backup), "--server", cluster.servers).code == 0
    (backup / "of_an_attacker.py").write_text(MODULE)

    for folder, source in ((backup, "."), (tmp_path, "backup")):
        ended = quire(folder, "backup", "verify", source, "--replay")
        assert (ended.code, ended.stdout) == (1, "")
        assert ended.stderr == (
            f"quire: machine '{NAME}': this name is recorded, and is not built in; no recorded name is imported: give "
            "your own class, --machine package.module:Class\n"
        )
        assert quire(folder, "backup", "verify", source).code == 0
        assert quire(folder, "backup", "verify", source, "--replay", "--machine", "kv").code == 1
    assert not (backup / "imported").exists()

    ended = quire(backup, "backup", "verify", ".", "--replay", "--machine", NAME)
    assert ended.code == 0, ended.stderr
    assert "reported digests are right" in ended.stdout
    assert (backup / "imported").exists(), "the operator named it"


def test_the_machine_that_a_manifest_names_is_not_looked_for_in_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = manifest(1, 0, [piece(0, 10)])._replace(machine=(NAME, 1))
    FolderStore(tmp_path).put(made.key, made.encode())
    (tmp_path / "of_an_attacker.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    path = list(sys.path)

    ended = CliRunner().invoke(app, ["verify", ".", "--replay"])

    assert ended.exit_code == 1
    assert "--machine package.module:Class" in ended.stderr
    assert sys.path == path
    assert "of_an_attacker" not in sys.modules
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize("umask", [0o000, *(pytest.param(each, marks=pytest.mark.full) for each in (0o022, 0o077))])
def test_a_backup_and_what_is_restored_have_the_modes_of_a_data_directory_whatever_the_umask(
    cluster: Cluster, tmp_path: Path, umask: int
) -> None:
    ended = quire(tmp_path, "backup", "kept/backup", "--server", cluster.servers, umask=umask)
    assert ended.code == 0, ended.stderr
    ended = quire(tmp_path, "restore", "kept/backup", "--data-dir", "new/n1", "--fork", "drill", umask=umask)
    assert ended.code == 0, ended.stderr

    for folder in ("kept", "new"):
        assert set(modes_below(tmp_path / folder)) == {"folder 750", "file 640"}, modes_below(tmp_path / folder)


def test_a_folder_that_is_there_keeps_its_mode(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "backup").mkdir()
    (tmp_path / "backup").chmod(0o777)

    assert quire(tmp_path, "backup", "backup", "--server", cluster.servers).code == 0

    found = modes_below(tmp_path / "backup")
    assert found.pop("folder 777") == str(tmp_path / "backup")
    assert set(found) == {"folder 750", "file 640"}


def test_the_start_of_a_machine_that_is_not_built_in_is_printed_with_a_place_for_the_class(
    cluster: Cluster, tmp_path: Path
) -> None:
    assert quire(tmp_path, "backup", "backup", "--server", cluster.servers).code == 0

    restored = quire(tmp_path, "restore", "backup", "--data-dir", "n1", "--fork", "drill")
    recovered = quire(tmp_path, "recover", "--data-dir", "n1", "--cluster", "drill")

    for ended in (restored, recovered):
        assert ended.code == 0, ended.stderr
        [start] = [line for line in ended.stdout.splitlines() if line.startswith("    quire serve ")]
        assert start.endswith(" --data-dir n1 --machine MODULE:CLASS")
        assert f"'{NAME}', which is not built in: give its class for MODULE:CLASS" in ended.stdout


def test_a_machine_without_a_replay_is_a_usage_error(tmp_path: Path) -> None:
    ended = CliRunner().invoke(app, ["verify", str(tmp_path), "--machine", NAME])

    assert (ended.exit_code, ended.stdout) == (2, "")
    assert "--machine goes with --replay" in ended.stderr
