"""The compose file as compose reads it, and the files that its set-up service makes."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from quire.cluster.config.serve import ServeConfig, load_config
from quire.cluster.serve.arguments import parse_serve

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
COMPOSE = DEPLOY / "compose.yaml"
NODES = ("n1", "n2", "n3", "n4")
ACCESS = "/access"  # Where the containers have the set-up's volume.
SETUP_TIMEOUT_S = 300.0

_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+):-([^}]*)\}")
# Who may give a file to a group is root; the others' test looks at what is given.
_CHGRP = '#!/bin/sh\nprintf "%s %s\\n" "$1" "$2" >>"$GROUPS_FILE"\n'


def environment_of(file: Path) -> dict[str, str]:
    """The variables of an environment file."""
    lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def composed(environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The document, with these variables and otherwise the defaults that it names."""
    given = environment or {}
    text = _VARIABLE.sub(lambda found: given.get(found[1]) or found[2], COMPOSE.read_text())
    assert "${" not in text, "a variable without a default would be empty where nobody sets it"
    document = yaml.safe_load(text)
    assert isinstance(document, dict)
    return document


@dataclass(frozen=True)
class Installed:
    """The folders that the set-up service writes, here, and the groups that it gives files to."""

    access: Path
    client: Path

    @property
    def groups(self) -> dict[str, int]:
        """The group of each file that a group may read."""
        lines = self._groups_file.read_text().splitlines()
        return {name: int(group) for group, name in map(str.split, lines)}

    @property
    def _groups_file(self) -> Path:
        return self.access.parent / "groups"

    def run(self) -> None:
        """Run the set-up script, as the service does."""
        programs = self.access.parent / "programs"
        for folder in (self.access, self.client, programs):
            folder.mkdir(exist_ok=True)
        (programs / "chgrp").write_text(_CHGRP)
        (programs / "chgrp").chmod(0o755)
        path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
        subprocess.run(
            ["sh", DEPLOY / "setup.sh", self.access, self.client],
            env={**os.environ, "PATH": path, "GROUPS_FILE": str(self._groups_file)},
            check=True,
            timeout=SETUP_TIMEOUT_S,
        )


def installed(folder: Path) -> Installed:
    """What the set-up script makes in this folder."""
    made = Installed(folder / "access", folder / "client")
    made.run()
    return made


def config_of(document: dict[str, Any], node_id: str, made: Installed) -> ServeConfig:
    """A node's configuration, from its flags and variables, with the set-up's files where its volume has them."""
    service = document["services"][node_id]
    program, *arguments = shlex.split(service["command"])
    assert program == "serve"
    flags, config_file = parse_serve(arguments)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in service["environment"].items():
            patch.setenv(name, value.replace(ACCESS, str(made.access)))
        return load_config(flags, config_file)
