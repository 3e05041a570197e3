"""Deterministic state machines, and the applier that feeds committed frames to one of them (sm/DESIGN.md)."""

from typing import TYPE_CHECKING

from quire import exports

if TYPE_CHECKING:
    from .applier import Applied as Applied
    from .applier import Applier as Applier
    from .applier import Execution as Execution
    from .applier import next_digest as next_digest
    from .boundary import DIGEST_BYTES as DIGEST_BYTES
    from .boundary import EMPTY_DIGEST as EMPTY_DIGEST
    from .boundary import LOG_START as LOG_START
    from .boundary import Boundary as Boundary
    from .cursors import CURSOR_NAME_BYTES as CURSOR_NAME_BYTES
    from .cursors import MAX_CURSOR_ROWS as MAX_CURSOR_ROWS
    from .cursors import MAX_CURSORS as MAX_CURSORS
    from .cursors import MAX_OWNED_CURSORS as MAX_OWNED_CURSORS
    from .cursors import TOKEN_BYTES as TOKEN_BYTES
    from .cursors import Cursor as Cursor
    from .cursors import CursorOutcome as CursorOutcome
    from .cursors import CursorRow as CursorRow
    from .cursors import Cursors as Cursors
    from .cursors import cursors_record as cursors_record
    from .cursors import share_of as share_of
    from .errors import ApplyFailed as ApplyFailed
    from .errors import CheckFailed as CheckFailed
    from .errors import CommandFailed as CommandFailed
    from .errors import FrameOutOfOrder as FrameOutOfOrder
    from .errors import InitialInvalid as InitialInvalid
    from .errors import MachineError as MachineError
    from .errors import MachineUnknown as MachineUnknown
    from .errors import SnapshotDamaged as SnapshotDamaged
    from .errors import SnapshotForeign as SnapshotForeign
    from .errors import SnapshotInvalid as SnapshotInvalid
    from .errors import SnapshotTooEarly as SnapshotTooEarly
    from .machine import STATE_BYTES as STATE_BYTES
    from .machine import Context as Context
    from .machine import Contexts as Contexts
    from .machine import OptionalMembers as OptionalMembers
    from .machine import Refused as Refused
    from .machine import StateMachine as StateMachine
    from .machine import StateRoom as StateRoom
    from .machine import check_batch as check_batch
    from .machine import is_quick as is_quick
    from .machine import limit_state as limit_state
    from .machine import state_room as state_room
    from .machines.arithmetic import ArithmeticMachine as ArithmeticMachine
    from .machines.fingerprint import fingerprint_of as fingerprint_of
    from .machines.kv import KvMachine as KvMachine
    from .machines.log import LogMachine as LogMachine
    from .machines.registry import default_initial as default_initial
    from .machines.registry import load_machine as load_machine
    from .sessions.executed import Assumed as Assumed
    from .sessions.executed import Executed as Executed
    from .sessions.table import MAX_SESSIONS as MAX_SESSIONS
    from .sessions.table import SESSION_BYTES as SESSION_BYTES
    from .sessions.table import SESSION_CODES as SESSION_CODES
    from .sessions.table import SESSION_LIMITS as SESSION_LIMITS
    from .sessions.table import SESSION_OWNED as SESSION_OWNED
    from .sessions.table import SESSION_TTL_S as SESSION_TTL_S
    from .sessions.table import SESSION_WINDOW as SESSION_WINDOW
    from .sessions.table import SESSIONS_BYTES as SESSIONS_BYTES
    from .sessions.table import Sessions as Sessions
    from .sessions.table import SessionStatus as SessionStatus
    from .sessions.table import owned_by_another as owned_by_another
    from .sessions.unexecuted import Unexecuted as Unexecuted
    from .snapshots.manifest import Manifest as Manifest
    from .snapshots.part import SnapshotPart as SnapshotPart
    from .snapshots.store import CHUNK_BYTES as CHUNK_BYTES
    from .snapshots.store import KEPT_SNAPSHOTS as KEPT_SNAPSHOTS
    from .snapshots.store import Owner as Owner
    from .snapshots.store import SnapshotStore as SnapshotStore
    from .snapshots.store import refuse_foreign as refuse_foreign
    from .snapshots.store import restore_newest as restore_newest
    from .snapshots.store import snapshot_name as snapshot_name
    from .snapshots.store import write_file as write_file
    from .snapshots.store import write_snapshot as write_snapshot

# Imported when first asked for: a machine's own module needs Context and Refused, and no applier.
_MODULES = {
    "applier": "Applied Applier Execution next_digest",
    "boundary": "DIGEST_BYTES EMPTY_DIGEST LOG_START Boundary",
    "cursors": (
        "CURSOR_NAME_BYTES MAX_CURSOR_ROWS MAX_CURSORS MAX_OWNED_CURSORS TOKEN_BYTES Cursor CursorOutcome CursorRow "
        "Cursors cursors_record share_of"
    ),
    "errors": (
        "ApplyFailed CheckFailed CommandFailed FrameOutOfOrder InitialInvalid MachineError MachineUnknown "
        "SnapshotDamaged SnapshotForeign SnapshotInvalid SnapshotTooEarly"
    ),
    "machine": (
        "STATE_BYTES Context Contexts OptionalMembers Refused StateMachine StateRoom check_batch is_quick limit_state "
        "state_room"
    ),
    "machines.arithmetic": "ArithmeticMachine",
    "machines.fingerprint": "fingerprint_of",
    "machines.kv": "KvMachine",
    "machines.log": "LogMachine",
    "machines.registry": "default_initial load_machine",
    "sessions.executed": "Assumed Executed",
    "sessions.table": (
        "MAX_SESSIONS SESSION_BYTES SESSION_CODES SESSION_LIMITS SESSION_OWNED SESSION_TTL_S SESSION_WINDOW "
        "SESSIONS_BYTES Sessions SessionStatus owned_by_another"
    ),
    "sessions.unexecuted": "Unexecuted",
    "snapshots.manifest": "Manifest",
    "snapshots.part": "SnapshotPart",
    "snapshots.store": (
        "CHUNK_BYTES KEPT_SNAPSHOTS Owner SnapshotStore refuse_foreign restore_newest snapshot_name write_file "
        "write_snapshot"
    ),
}
__getattr__ = exports(__name__, _MODULES)
