"""The settings of a process: a frozen model, filled from flags, the environment and a TOML file.

Flags override `QUIRE_...` variables, which override the file. An unknown key in the file, an unknown `QUIRE_...`
variable, a missing file and an invalid value are errors. (pydantic-settings by itself
ignores unknown variables and missing files.)

Only the variables that Kubernetes and Docker set in a container for a service named `quire` or `quire-...` are ignored:
they are not meant for quire. They look like `QUIRE_SERVICE_HOST` and `QUIRE_PORT_7001_TCP_ADDR`. `QUIRE_PORT` is one of
them only with a value such as `tcp://10.0.0.1:7001`: a user who sets `QUIRE_PORT=7001` expects it to have an effect.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, Field, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from quire.replication.address import host_and_port

from ..errors import ClusterError

ENVIRONMENT_PREFIX = "QUIRE_"
# Read by the command line, not by the model. A machine may have those of a client set for all its programs.
OTHER_VARIABLES = frozenset({"QUIRE_SERVER", "QUIRE_TOKEN_FILE", "QUIRE_CA", "QUIRE_CONFIG"})

# https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables. Docker sets the same for a
# link to another container, with a start and an end for a range of ports, its name, and that container's own variables.
_OF_SERVICE = re.compile(
    r"QUIRE_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?"
    r"|PORT_[0-9]+_(TCP|UDP|SCTP)(_PROTO|_ADDR|_PORT|_START|_END|_PORT_START|_PORT_END)?)"
)
_WITH_VALUE = re.compile(r"QUIRE_(\w+_)?(PORT=(tcp|udp|sctp)://.*|NAME=/[^/]+/[^/]+)")
_LINK_NAME = "NAME"
_LINK_VARIABLE = "ENV_"  # Of a linked container's own variables.


class ConfigInvalid(ClusterError):
    """The configuration is invalid. Each of `problems` is a sentence with the field, the value and the next step."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def _checked_address(address: str) -> str:
    host_and_port(address)
    return address


Address = Annotated[str, AfterValidator(_checked_address)]
LogFormat = Annotated[
    Literal["console", "json"],
    Field(description="Format of log messages on stderr: plain lines, or JSON objects."),
]

Model = TypeVar("Model", bound="Settings")


class Settings(BaseSettings):
    """The base of a process's settings. Each field states its unit, its default and its purpose."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_prefix=ENVIRONMENT_PREFIX)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only the constructor's arguments: `load_settings` reads the other sources, to name the one that is wrong."""
        return (init_settings,)


def unit_of(field: str) -> str:
    """The unit that a field's name ends in: ms, s, bytes, records or commands; empty if it has none."""
    for suffix in ("ms", "s", "bytes", "records", "commands"):
        if field.endswith("_" + suffix):
            return suffix
    return ""


def load_settings(model: type[Model], flags: Mapping[str, object], config_file: Path | None = None) -> Model:
    """Read the settings from `flags` (the given ones, by field name), the environment and a TOML file.

    Raises:
        ConfigInvalid: with a sentence for each problem.
    """
    known = {(ENVIRONMENT_PREFIX + name).upper() for name in model.model_fields} | OTHER_VARIABLES
    named = {name for name in os.environ if name.upper().startswith(ENVIRONMENT_PREFIX) and name.upper() not in known}
    unknown = sorted(named.difference(service_variables()))
    if unknown:
        raise ConfigInvalid(
            [f"environment variable {name} is not known; unset it or correct its name" for name in unknown]
        )
    from_file = _read_file(model, config_file) if config_file is not None else {}
    from_environment = EnvSettingsSource(model)()
    sources = {name: f"key {name} of {config_file}" for name in from_file}
    sources |= {name: f"variable {ENVIRONMENT_PREFIX}{name.upper()}" for name in from_environment}
    sources |= {name: f"flag {flag_of(name)}" for name in flags}
    try:
        return model(**{**from_file, **from_environment, **flags})
    except ValidationError as error:
        raise ConfigInvalid([_sentence(problem, sources) for problem in error.errors() if _is_own(problem)]) from None


def service_variables() -> list[str]:
    """The variables of this process that Kubernetes or Docker set for a service named `quire` or `quire-...`."""
    set_here = [name for name in os.environ if name.startswith(ENVIRONMENT_PREFIX)]
    with_value = [name for name in set_here if _WITH_VALUE.fullmatch(f"{name}={os.environ[name]}")]
    linked = tuple(
        name.removesuffix(_LINK_NAME) + _LINK_VARIABLE for name in with_value if name.endswith(f"_{_LINK_NAME}")
    )
    of_service = [name for name in set_here if _OF_SERVICE.fullmatch(name) or name.startswith(linked)]
    return sorted({*with_value, *of_service})


def flag_of(field: str) -> str:
    """The command line flag of a field."""
    return "--" + field.replace("_", "-")


def _read_file(model: type[BaseSettings], path: Path) -> dict[str, object]:
    if not path.is_file():
        raise ConfigInvalid([f"configuration file {path} does not exist; correct --config or QUIRE_CONFIG"])
    try:
        return dict(TomlConfigSettingsSource(model, toml_file=path)())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigInvalid([f"configuration file {path} is not TOML: {error}; correct it"]) from None
    except OSError as error:
        raise ConfigInvalid([f"configuration file {path} cannot be read: {error.strerror}"]) from None


def _is_own(problem: ErrorDetails) -> bool:
    """Whether this is a problem of its own, and not a default that is missing because another field is wrong."""
    return problem["type"] != "default_factory_not_called"


def _sentence(problem: ErrorDetails, sources: Mapping[str, str]) -> str:
    text = problem["msg"].removeprefix("Value error, ")
    if not problem["loc"]:
        return text
    field = str(problem["loc"][0])
    if problem["type"] == "missing":
        variable = ENVIRONMENT_PREFIX + field.upper()
        return f"{field} is missing; give {flag_of(field)}, {variable} or the key {field} in a file"
    source = sources.get(field, field)
    if problem["type"] == "extra_forbidden":
        return f"{source} is not known; remove it or correct its name"
    if problem["type"] == "value_error":
        return f"{source}: {text}"
    return f"{source}: {text.replace('Input should', 'it must')}, not {problem['input']!r}"
