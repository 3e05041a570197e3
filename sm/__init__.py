"""Deterministic state machines, and the applier that feeds committed frames to one of them."""

from .applier import Applied, Applier
from .arithmetic import ArithmeticMachine
from .checks import check_batch
from .digest import DIGEST_BYTES, EMPTY_DIGEST, next_digest
from .errors import (
    ApplyFailed,
    CheckFailed,
    FrameOutOfPlace,
    InitialInvalid,
    MachineError,
    MachineUnknown,
    PlaceFailed,
    SnapshotInvalid,
)
from .log import LogMachine
from .machine import Context, Contexts, Refused, StateMachine
from .registry import default_initial, load_machine
from .sessions import MAX_SESSIONS, SESSION_WINDOW, Sessions, SessionStatus

__all__ = [
    "DIGEST_BYTES",
    "EMPTY_DIGEST",
    "MAX_SESSIONS",
    "SESSION_WINDOW",
    "Applied",
    "Applier",
    "ApplyFailed",
    "ArithmeticMachine",
    "CheckFailed",
    "Context",
    "Contexts",
    "FrameOutOfPlace",
    "InitialInvalid",
    "LogMachine",
    "MachineError",
    "MachineUnknown",
    "PlaceFailed",
    "Refused",
    "SessionStatus",
    "Sessions",
    "SnapshotInvalid",
    "StateMachine",
    "check_batch",
    "default_initial",
    "load_machine",
    "next_digest",
]
