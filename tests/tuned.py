"""Constants of a configuration, as a test wants them: in this process by `tuned`, in a node's process by `--tuned`.

    python -m tests.tuned serve --tuned check_invariants=1 --node n1 ...

runs `quire` with the constants that are named; each is a class variable or property of `ServeConfig` or
`StandaloneConfig`.
"""

import sys
from pathlib import Path
from typing import Any, ClassVar, NoReturn, TypeVar

from quire.cluster.config.serve import ServeConfig
from quire.cluster.config.settings import Settings
from quire.cluster.data_dir import file_system
from quire.cluster.standalone.config import StandaloneConfig

FLAG = "--tuned"

Model = TypeVar("Model", bound=Settings)


def tuned(model: type[Model], **values: Any) -> Model:
    """A configuration with these settings and constants."""
    constants = {name: values.pop(name) for name in values.keys() - model.model_fields.keys()}
    for name in constants:
        getattr(model, name)  # Raises AttributeError: there is no such constant.
    space = {"__annotations__": dict.fromkeys(constants, ClassVar[Any]), "__module__": model.__module__, **constants}
    kind: Any = type(model)
    made = kind(model.__name__, (model,), space)(**values) if constants else model(**values)
    assert isinstance(made, model)
    return made


def no_mount(path: str | Path) -> file_system.Mount | None:
    """What stands for `mount_of`: where a test has its folders, in memory perhaps, is no alarm."""
    del path
    return None


def flags(**constants: int) -> tuple[str, ...]:
    """The flags of a node's process with these constants."""
    return tuple(part for name, value in constants.items() for part in (FLAG, f"{name}={int(value)}"))


def main() -> NoReturn:
    """Run `quire` with the constants that its flags name."""
    kept, arguments = [sys.argv[0]], iter(sys.argv[1:])
    for argument in arguments:
        if argument != FLAG:
            kept.append(argument)
            continue
        name, _, value = next(arguments).partition("=")
        models = [model for model in (ServeConfig, StandaloneConfig) if hasattr(model, name)]
        if not models:
            raise SystemExit(f"there is no constant {name}")
        for model in models:
            setattr(model, name, int(value))
    sys.argv = kept
    file_system.mount_of = no_mount
    from quire.cluster.cli.main import main as quire

    quire()


if __name__ == "__main__":
    main()
