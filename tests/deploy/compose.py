"""The compose file as compose reads it: variables filled in, anchors merged."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
COMPOSE = DEPLOY / "compose.yaml"
NODES = ("n1", "n2", "n3", "n4")
SECRET = "/run/secrets/peer-secret"

_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+):-([^}]*)\}")


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


def command_line(document: dict[str, Any], service: str, secret: Path) -> list[str]:
    """A service's command as arguments, with a file that is there for the secret that compose mounts."""
    command = shlex.split(document["services"][service]["command"])
    return [str(secret) if argument == SECRET else argument for argument in command]
