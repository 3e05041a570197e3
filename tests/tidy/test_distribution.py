"""What is built from the checkout is whole: the links in src/quire must not cost a file."""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

import pytest

from tests.tidy.house import PACKAGES
from tests.tidy.tree import Tree

TOP = Path(__file__).resolve().parents[2]
BUILD_TIMEOUT_S = 120
IMPORT_TIMEOUT_S = 60


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist of what git tracks or would track, and the wheel built from that sdist."""
    copy = tmp_path_factory.mktemp("checkout")
    for path in Tree.of_checkout(TOP).paths:
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(TOP / path, copy / path, follow_symlinks=False)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(copy / "dist"), str(copy)]
    run = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return copy / "dist"


def expected_modules() -> set[str]:
    """Every module of ours, by its path in the distribution."""
    modules = {"quire/__init__.py", "pyspark_quire/__init__.py"}
    for path in Tree.of_checkout(TOP).paths:
        if path.parts[0] in PACKAGES and path.suffix == ".py":
            modules.add(str(PurePosixPath("quire") / path))
    return modules


@pytest.mark.slow
def test_the_wheel_holds_every_module_and_the_type_marker_and_nothing_else(dist: Path) -> None:
    [wheel] = dist.glob("*.whl")
    with ZipFile(wheel) as archive:
        names = set(archive.namelist())

    shipped = {name for name in names if ".dist-info/" not in name}

    assert shipped == expected_modules() | {"quire/py.typed"}
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.mark.slow
def test_the_sdist_holds_every_module(dist: Path) -> None:
    [sdist] = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {str(PurePosixPath(*PurePosixPath(name).parts[1:])) for name in archive.getnames()}

    assert expected_modules() <= {name.removeprefix("src/") for name in names}


@pytest.mark.slow
def test_every_package_can_be_imported_from_the_wheel_alone(dist: Path) -> None:
    [wheel] = dist.glob("*.whl")
    imports = "\n".join(f"import quire.{package}" for package in PACKAGES)
    program = f"import quire, pyspark_quire\n{imports}\nprint(quire.__file__)"

    command = [sys.executable, "-P", "-c", program]
    environment = {**os.environ, "PYTHONPATH": str(wheel)}
    run = subprocess.run(
        command, cwd=dist, env=environment, capture_output=True, text=True, timeout=IMPORT_TIMEOUT_S, check=False
    )

    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == f"{wheel}/quire/__init__.py"
