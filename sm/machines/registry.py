"""Finds a machine: a built-in one by its name, or your own as `package.module:Class`.

An import runs code, so only a name that the operator or the program gives is imported. A name that a file, a peer or a
store gives may be an attacker's: it selects among the built-in machines alone.
"""

import os
import sys
from importlib import import_module
from typing import Any

from ..errors import MachineUnknown, reason_of
from ..machine import StateMachine
from .arithmetic import ArithmeticMachine
from .kv import KvMachine
from .log import LogMachine

BUILT_IN: dict[str, type[StateMachine]] = {
    ArithmeticMachine.name: ArithmeticMachine,
    KvMachine.name: KvMachine,
    LogMachine.name: LogMachine,
}

_METHODS = ("check", "apply", "query", "snapshot", "restore")


def load_machine(spec: str) -> type[StateMachine]:
    """The machine class that `spec` names: a built-in name or `package.module:Class`, which is imported.

    `spec` comes from the operator or the program. For a name from elsewhere, see `recorded_machine`.

    Raises:
        MachineUnknown: there is no such machine, its import fails, or the class lacks a part of StateMachine.
    """
    if spec in BUILT_IN:
        return BUILT_IN[spec]
    module_name, colon, class_name = spec.partition(":")
    if not (colon and module_name and class_name):
        names = ", ".join(sorted(BUILT_IN))
        raise MachineUnknown(spec=spec, reason=f"built in are {names}; name your own as package.module:Class")
    try:
        module = import_module(module_name)
    except Exception as error:  # The import runs the user's code, which may raise anything.
        raise MachineUnknown(spec=spec, reason=f"cannot import {module_name} ({reason_of(error)})") from error
    found = getattr(module, class_name, None)
    if found is None:
        raise MachineUnknown(spec=spec, reason=f"module {module_name} has no {class_name}")
    if not isinstance(found, type):
        raise MachineUnknown(spec=spec, reason=f"{class_name} is not a class")
    _require_machine(spec, found)
    return found


def recorded_machine(recorded: str, spec: str | None) -> type[StateMachine]:
    """The machine of a file or a peer: the class that the operator names with `spec`, or the built-in one as recorded.

    What is recorded is never imported. If `spec` is given, compare the class's name and version with what is recorded.

    Raises:
        MachineUnknown: no `spec` is given and `recorded` is not built in; or as `load_machine`.
    """
    if spec is not None:
        return load_machine(spec)
    if recorded not in BUILT_IN:
        reason = "this name is recorded, and is not built in; no recorded name is imported"
        raise MachineUnknown(spec=recorded, reason=f"{reason}: give your own class, --machine package.module:Class")
    return BUILT_IN[recorded]


def search_current_folder(spec: str) -> None:
    """Let `load_machine` also find the operator's `package.module:Class` in the current folder.

    It comes last, so that nothing there shadows an installed module. For a built-in name nothing there is imported.
    """
    if ":" in spec:
        sys.path.append(os.getcwd())


def default_initial(machine: type[StateMachine]) -> Any:
    """The initial value of a new cluster if the operator gives none: the class's `default_initial`, else None."""
    return getattr(machine, "default_initial", None)


def _require_machine(spec: str, found: type[object]) -> None:
    missing = [method for method in _METHODS if not callable(getattr(found, method, None))]
    if missing:
        raise MachineUnknown(spec=spec, reason=f"{found.__name__} lacks {', '.join(missing)}")
    name, version = getattr(found, "name", None), getattr(found, "version", None)
    if not isinstance(name, str) or not name:
        raise MachineUnknown(spec=spec, reason=f"{found.__name__}.name must be a non-empty string")
    if type(version) is not int or version < 0:
        raise MachineUnknown(spec=spec, reason=f"{found.__name__}.version must be an int, 0 or more")
