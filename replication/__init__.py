"""Replication: the protocol core without I/O (`core`), and the aiohttp links and streams around it."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .core import NODE_ID, Member, Members, Promise, Reason, Role
    from .disk import Disk, Placed, Write
    from .durations import Durations
    from .ports import Ports
    from .promises import PromiseFile, PromiseLost
    from .replica import Replica, ReplicaOptions, next_tick
    from .witnesses import Witnesses, WitnessForeign

__all__ = [
    "NODE_ID",
    "Disk",
    "Durations",
    "Member",
    "Members",
    "Placed",
    "Ports",
    "Promise",
    "PromiseFile",
    "PromiseLost",
    "Reason",
    "Replica",
    "ReplicaOptions",
    "Role",
    "WitnessForeign",
    "Witnesses",
    "Write",
    "next_tick",
]

_MODULES = {
    "core": ("NODE_ID", "Member", "Members", "Promise", "Reason", "Role"),
    "disk": ("Disk", "Placed", "Write"),
    "durations": ("Durations",),
    "ports": ("Ports",),
    "promises": ("PromiseFile", "PromiseLost"),
    "replica": ("Replica", "ReplicaOptions", "next_tick"),
    "witnesses": ("Witnesses", "WitnessForeign"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    # Lazily: a command or a standalone log needs only the address parser, and the rest takes 150 ms to import.
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
