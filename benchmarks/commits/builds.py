"""Virtual environments with commits of this repository installed, kept below .cache/bench."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

BUILDS = Path(".cache/bench")
INTERPRETER = "bin/python"
SHORT = 12


class BuildFailed(Exception):
    """A commit cannot be installed; the text has what the command said."""


def commit_of(name: str) -> str:
    """The full hash of a commit. An empty name is the checkout: its files as they are, if git tracks them."""
    return _said("git", "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}") if name else _checkout()


def installed(commit: str) -> Path:
    """The interpreter that has this commit, in a wheel, with the versions of packages that this environment has."""
    folder = (BUILDS / commit[:SHORT]).absolute()
    if (folder / INTERPRETER).exists():
        return folder / INTERPRETER
    try:
        with tempfile.TemporaryDirectory() as work:
            _install(commit, folder, Path(work))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder / INTERPRETER


def _install(commit: str, folder: Path, work: Path) -> None:
    sources, archive, wheels, versions = (work / name for name in ("sources", "a.tar", "wheels", "versions.txt"))
    _said("git", "archive", "--output", str(archive), commit)
    shutil.unpack_archive(archive, sources, filter="data")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    versions.write_text(_said(*pip, "freeze", "--exclude-editable"))
    _said(*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(sources))
    _said(sys.executable, "-m", "venv", str(folder))
    wheel = next(wheels.glob("*.whl"))
    pip = (str(folder / INTERPRETER), "-m", "pip", "--disable-pip-version-check")
    _said(*pip, "install", "--quiet", "--constraint", str(versions), str(wheel))


def _checkout() -> str:
    # A commit on no branch, with the changes to what git tracks; nothing if there are none.
    return _said("git", "stash", "create") or _said("git", "rev-parse", "HEAD")


def _said(*command: str) -> str:
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise BuildFailed(f"{' '.join(command)} failed: {run.stderr.strip()}")
    return run.stdout.strip()
