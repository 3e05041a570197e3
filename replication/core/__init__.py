"""The replication protocol as a pure machine: events in, actions out.

No module below reads a clock, a socket, a file or a source of randomness; a test says so. Whoever drives the core
(the asyncio `Replica`, or a simulator) hands it `Event`s with the time and carries out the `Action`s in their order.

Reading order: `promise`, `members`, `messages`, `events`, `actions`, `state`, then the rules: `genesis` (0), `writer`
(2), `election` (1, 3, 4, 5), `opening` (8), `leading` (6, 7, 8, 11, 12), `following` (1, 8, 9), and `core`, which ties
them together.
"""

from . import actions, events
from .core import Core
from .members import MAX_MEMBERS, Member, Members, Role
from .promise import Promise
from .state import CoreOptions, Identity, LogView, State

__all__ = [
    "MAX_MEMBERS",
    "Core",
    "CoreOptions",
    "Identity",
    "LogView",
    "Member",
    "Members",
    "Promise",
    "Role",
    "State",
    "actions",
    "events",
]
