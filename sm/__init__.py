"""Deterministic state machines, and the applier that feeds committed frames to one of them."""

from .applier import Applied, Applier
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
    SnapshotDamaged,
    SnapshotForeign,
    SnapshotInvalid,
    SnapshotTooEarly,
)
from .machine import Context, Contexts, Refused, StateMachine
from .machines.arithmetic import ArithmeticMachine
from .machines.kv import KvMachine
from .machines.log import LogMachine
from .machines.registry import default_initial, load_machine
from .sessions.table import MAX_SESSIONS, SESSION_BYTES, SESSION_WINDOW, SESSIONS_BYTES, Sessions, SessionStatus
from .snapshots.content import content_of, restore_content
from .snapshots.manifest import NO_GROUND, Ground, Manifest
from .snapshots.part import SnapshotPart
from .snapshots.restore import restore_newest
from .snapshots.store import (
    CHUNK_BYTES,
    KEPT_SNAPSHOTS,
    Owner,
    SnapshotStore,
    refuse_foreign,
    snapshot_name,
    write_file,
    write_snapshot,
)

__all__ = [
    "CHUNK_BYTES",
    "DIGEST_BYTES",
    "EMPTY_DIGEST",
    "KEPT_SNAPSHOTS",
    "MAX_SESSIONS",
    "NO_GROUND",
    "SESSIONS_BYTES",
    "SESSION_BYTES",
    "SESSION_WINDOW",
    "Applied",
    "Applier",
    "ApplyFailed",
    "ArithmeticMachine",
    "CheckFailed",
    "Context",
    "Contexts",
    "FrameOutOfPlace",
    "Ground",
    "InitialInvalid",
    "KvMachine",
    "LogMachine",
    "MachineError",
    "MachineUnknown",
    "Manifest",
    "Owner",
    "PlaceFailed",
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
    "check_batch",
    "content_of",
    "default_initial",
    "load_machine",
    "next_digest",
    "refuse_foreign",
    "restore_content",
    "restore_newest",
    "snapshot_name",
    "write_file",
    "write_snapshot",
]
