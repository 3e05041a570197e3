"""Deterministic state machines, and the applier that feeds committed frames to one of them (sm/DESIGN.md)."""

from .applier import Applied, Applier, Execution, next_digest
from .boundary import DIGEST_BYTES, EMPTY_DIGEST, LOG_START, Boundary
from .errors import (
    ApplyFailed,
    CheckFailed,
    CommandFailed,
    FrameOutOfOrder,
    InitialInvalid,
    MachineError,
    MachineUnknown,
    SnapshotDamaged,
    SnapshotForeign,
    SnapshotInvalid,
    SnapshotTooEarly,
)
from .machine import (
    STATE_BYTES,
    Context,
    Contexts,
    Refused,
    StateMachine,
    StateRoom,
    check_batch,
    is_quick,
    limit_state,
    state_room,
)
from .machines.arithmetic import ArithmeticMachine
from .machines.fingerprint import fingerprint_of
from .machines.kv import KvMachine
from .machines.log import LogMachine
from .machines.registry import default_initial, load_machine
from .sessions.executed import Assumed, Executed
from .sessions.table import (
    MAX_SESSIONS,
    SESSION_BYTES,
    SESSION_CODES,
    SESSION_LIMITS,
    SESSION_OWNED,
    SESSION_TTL_S,
    SESSION_WINDOW,
    SESSIONS_BYTES,
    Sessions,
    SessionStatus,
    owned_by_another,
)
from .sessions.unexecuted import Unexecuted
from .snapshots.content import content_of, restore_content
from .snapshots.manifest import Manifest
from .snapshots.part import SnapshotPart
from .snapshots.store import (
    CHUNK_BYTES,
    KEPT_SNAPSHOTS,
    Owner,
    SnapshotStore,
    refuse_foreign,
    restore_newest,
    snapshot_name,
    write_file,
    write_snapshot,
)

__all__ = [
    "CHUNK_BYTES",
    "DIGEST_BYTES",
    "EMPTY_DIGEST",
    "KEPT_SNAPSHOTS",
    "LOG_START",
    "MAX_SESSIONS",
    "SESSIONS_BYTES",
    "SESSION_BYTES",
    "SESSION_CODES",
    "SESSION_LIMITS",
    "SESSION_OWNED",
    "SESSION_TTL_S",
    "SESSION_WINDOW",
    "STATE_BYTES",
    "Applied",
    "Applier",
    "ApplyFailed",
    "ArithmeticMachine",
    "Assumed",
    "Boundary",
    "CheckFailed",
    "CommandFailed",
    "Context",
    "Contexts",
    "Executed",
    "Execution",
    "FrameOutOfOrder",
    "InitialInvalid",
    "KvMachine",
    "LogMachine",
    "MachineError",
    "MachineUnknown",
    "Manifest",
    "Owner",
    "Refused",
    "SessionStatus",
    "Sessions",
    "SnapshotDamaged",
    "SnapshotForeign",
    "SnapshotInvalid",
    "SnapshotPart",
    "SnapshotStore",
    "SnapshotTooEarly",
    "StateMachine",
    "StateRoom",
    "Unexecuted",
    "check_batch",
    "content_of",
    "default_initial",
    "fingerprint_of",
    "is_quick",
    "limit_state",
    "load_machine",
    "next_digest",
    "owned_by_another",
    "refuse_foreign",
    "restore_content",
    "restore_newest",
    "snapshot_name",
    "state_room",
    "write_file",
    "write_snapshot",
]
