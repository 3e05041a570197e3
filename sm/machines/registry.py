"""Finds a machine: a built-in one by its name, or your own as `package.module:Class`."""

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
    """The machine class that `spec` names: a built-in name or `package.module:Class`.

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
