"""Replication: the protocol core without I/O (`core`), and the aiohttp links and streams around it."""

from .coalesce import Write
from .core import NODE_ID, Member, Members, Promise, Reason, Role
from .disk import Disk, Placed
from .driver import Durations
from .owner import Owner
from .promises import PromiseFile, PromiseLost
from .replica import Replica, ReplicaOptions
from .witnesses import Witnesses, WitnessForeign

__all__ = [
    "NODE_ID",
    "Disk",
    "Durations",
    "Member",
    "Members",
    "Owner",
    "Placed",
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
]
