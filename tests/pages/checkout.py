"""A copy of the checkout, as a newcomer has it after cloning: no .venv, no .cache, nothing that git ignores.

Every page gets the same folder, since a virtual environment cannot be moved; `reset` makes it new again.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.pages.page import TOP
from tests.tidy.tree import Tree

SYSTEM = ("/usr/local/bin", "/usr/bin", "/bin")
KEPT = ("PIP_", "SSL_CERT_", "REQUESTS_CA_")
"""What a machine says about its way to the package index."""
KEPT_NAMES = frozenset({"JAVA_HOME", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"})
ABSENT = ("python", "pip", "pip3", "pytest", "quire")
"""Programs that a bare machine lacks, whatever this one has. Debian has no `python`."""
GIT = ("git", "-c", "user.name=tests", "-c", "user.email=tests@localhost", "-c", "commit.gpgsign=false")
FIRST_COMMAND = "make demo"
MAKING_TIMEOUT_S = 300.0


class Checkout:
    """The copy, in `folder`/checkout, with a home and programs beside it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "checkout"
        self._home, self._programs, self._venv = folder / "home", folder / "bin", folder / "venv"
        self._copy()
        self._programs.mkdir()
        (self._programs / "python3").symlink_to(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
        for name in ABSENT:
            program = self._programs / name
            program.write_text(f'#!/bin/sh\necho "{name}: command not found on a bare machine" >&2\nexit 127\n')
            program.chmod(0o755)

    @property
    def python(self) -> Path:
        """The interpreter that the page's own commands made."""
        return self.path / ".venv" / "bin" / "python"

    def environment(self) -> dict[str, str]:
        """The variables of a login on a bare machine."""
        kept = {name: value for name, value in os.environ.items() if name.startswith(KEPT) or name in KEPT_NAMES}
        cache = os.environ.get("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip"))
        path = os.pathsep.join((str(self._programs), *SYSTEM))
        return kept | {"HOME": str(self._home), "PATH": path, "LANG": "C.UTF-8", "PIP_CACHE_DIR": cache}

    def install(self) -> None:
        """Make .venv as the README's first command does, and keep it for the pages that come."""
        run = subprocess.run(
            ["bash", "-c", FIRST_COMMAND],
            cwd=self.path,
            env=self._new_home(),
            capture_output=True,
            text=True,
            check=False,
            timeout=MAKING_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
        if run.returncode:
            raise AssertionError(f"{FIRST_COMMAND} in a bare shell:\n{run.stdout}{run.stderr}")
        self._link(self.path / ".venv", self._venv)

    def reset(self) -> None:
        """Make it as it was after `install`."""
        self._git("reset", "--quiet", "--hard")
        self._git("clean", "--quiet", "-ffdx", "--exclude=.venv")
        shutil.rmtree(self.path / ".venv", ignore_errors=True)
        self._link(self._venv, self.path / ".venv")
        self._new_home()

    def _new_home(self) -> Mapping[str, str]:
        shutil.rmtree(self._home, ignore_errors=True)
        self._home.mkdir()
        return self.environment()

    def _copy(self) -> None:
        for name in Tree.of_checkout(TOP).paths:
            copy = self.path / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(TOP / name, copy, follow_symlinks=False)
        self._git("init", "--quiet")
        self._git("add", "--all")
        self._git("commit", "--quiet", "--no-verify", "--message=The checkout")

    def _git(self, *arguments: str) -> None:
        subprocess.run([*GIT, *arguments], cwd=self.path, check=True, capture_output=True)

    @staticmethod
    def _link(there: Path, here: Path) -> None:
        """Hard links: pip replaces files, and never writes into them."""
        shutil.copytree(there, here, symlinks=True, copy_function=os.link)
