"""Replication: the protocol core without I/O (`core`), and the aiohttp links and streams around it."""

from typing import TYPE_CHECKING

from quire import exports

if TYPE_CHECKING:
    from .core import NEW_NODE_ID as NEW_NODE_ID
    from .core import NODE_ID as NODE_ID
    from .core import NODE_ID_FORM as NODE_ID_FORM
    from .core import Member as Member
    from .core import Members as Members
    from .core import Promise as Promise
    from .core import Reason as Reason
    from .core import Role as Role
    from .disk import Disk as Disk
    from .disk import Placed as Placed
    from .disk import Write as Write
    from .durations import Durations as Durations
    from .ports import Ports as Ports
    from .promises import PromiseFile as PromiseFile
    from .promises import PromiseLost as PromiseLost
    from .replica import Replica as Replica
    from .replica import ReplicaOptions as ReplicaOptions
    from .replica import next_tick as next_tick
    from .witnesses import Witnesses as Witnesses
    from .witnesses import WitnessForeign as WitnessForeign

# Imported when first asked for: a command or a standalone log needs only the address parser; the rest takes 150 ms.
_MODULES = {
    "core": "NEW_NODE_ID NODE_ID NODE_ID_FORM Member Members Promise Reason Role",
    "disk": "Disk Placed Write",
    "durations": "Durations",
    "ports": "Ports",
    "promises": "PromiseFile PromiseLost",
    "replica": "Replica ReplicaOptions next_tick",
    "witnesses": "Witnesses WitnessForeign",
}
__getattr__ = exports(__name__, _MODULES)
