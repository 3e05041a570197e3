"""The replication protocol as a pure state machine: events in, actions out.

No module below reads a clock, a socket, a file or a source of randomness; a test checks this. The driver of the core
(the asyncio `Replica`, or a simulator) passes it `Event`s with the time and carries out the `Action`s in their order.

The rules are numbered; `docs/protocol.md` has each in words, with its reasons, and each module opens with those it
holds. Reading order: the words (`members`, `messages`, `events`, `actions`, `state`); `core` down to its events, which
shows what calls what; the rules (`writer`, `election`, `leading`, `downstreams`, `membership`, `following`); the rest
of `core`; `status`, which is all that others may know; and `invariants`, which hold after each step.
"""

from . import actions, events
from .core import Core
from .events import Reason
from .members import MAX_MEMBERS, NEW_NODE_ID, NODE_ID, NODE_ID_FORM, Identity, Member, Members, Role
from .messages import Promise
from .state import CoreOptions, LogView, State
from .status import NodeRole, Status

__all__ = [
    "MAX_MEMBERS",
    "NEW_NODE_ID",
    "NODE_ID",
    "NODE_ID_FORM",
    "Core",
    "CoreOptions",
    "Identity",
    "LogView",
    "Member",
    "Members",
    "NodeRole",
    "Promise",
    "Reason",
    "Role",
    "State",
    "Status",
    "actions",
    "events",
]
