"""The replication protocol as a pure machine: events in, actions out.

No module below reads a clock, a socket, a file or a source of randomness; a test says so. Whoever drives the core
(the asyncio `Replica`, or a simulator) hands it `Event`s with the time and carries out the `Action`s in their order.

The rules are numbered; DESIGN.md beside this folder says each in words, and each module opens with those it holds.
Reading order: the words (`promise`, `members`, `messages`, `events`, `actions`, `state`), `core` down to its events,
which shows what calls what, then the rules (`writer`, `election`, `opening`, `leading`, `changing`, `following`), the
rest of `core`, and `invariants`, which says what holds after each step. `genesis` stands alone: it ends before a core
begins.
"""

from . import actions, events
from .core import Core
from .members import MAX_MEMBERS, Member, Members, Role
from .promise import NODE_ID, Promise
from .state import CoreOptions, Identity, LogView, State

__all__ = [
    "MAX_MEMBERS",
    "NODE_ID",
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
