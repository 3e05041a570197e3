"""The segmented log: frames, payloads, segments on disk, and what a crash leaves of them (log/DESIGN.md)."""

from typing import TYPE_CHECKING

from quire import exports

if TYPE_CHECKING:
    from .change.ages import Ages as Ages
    from .change.expiry import Expirable as Expirable
    from .change.reset import remove_log as remove_log
    from .change.spool import Spool as Spool
    from .change.truncation import Walk as Walk
    from .errors import ChainBroken as ChainBroken
    from .errors import DiskFull as DiskFull
    from .errors import FileFailed as FileFailed
    from .errors import FileUnlinked as FileUnlinked
    from .errors import ForeignStore as ForeignStore
    from .errors import FrameCorrupt as FrameCorrupt
    from .errors import FrameInvalid as FrameInvalid
    from .errors import IndexExpired as IndexExpired
    from .errors import IndexOutOfBounds as IndexOutOfBounds
    from .errors import LogClosed as LogClosed
    from .errors import LogError as LogError
    from .errors import LogLocked as LogLocked
    from .errors import LogReadOnly as LogReadOnly
    from .errors import LogRotten as LogRotten
    from .errors import NoRoom as NoRoom
    from .errors import NotFrameBoundary as NotFrameBoundary
    from .errors import NotRegularFile as NotRegularFile
    from .errors import NotYetFlushed as NotYetFlushed
    from .errors import PayloadInvalid as PayloadInvalid
    from .errors import RecordsTruncated as RecordsTruncated
    from .errors import RecordTooLarge as RecordTooLarge
    from .errors import ResourcesExhausted as ResourcesExhausted
    from .errors import UnexpectedIndex as UnexpectedIndex
    from .errors import UnknownVersion as UnknownVersion
    from .errors import Unreadable as Unreadable
    from .errors import sentence_of as sentence_of
    from .features import CONSUMERS as CONSUMERS
    from .features import CURSOR_OWNERS as CURSOR_OWNERS
    from .features import FEATURES as FEATURES
    from .features import FITNESS as FITNESS
    from .features import HISTORY as HISTORY
    from .features import MAX_FEATURE_LENGTH as MAX_FEATURE_LENGTH
    from .features import MAX_FEATURES as MAX_FEATURES
    from .features import MEMBERSHIP as MEMBERSHIP
    from .features import SESSION_OWNERS as SESSION_OWNERS
    from .features import SESSION_TTL as SESSION_TTL
    from .features import STATE_QUOTA as STATE_QUOTA
    from .files import FileDirectory as FileDirectory
    from .files import FileStorage as FileStorage
    from .files import ReadOnlyDirectory as ReadOnlyDirectory
    from .files import Sync as Sync
    from .files import is_exhaustion as is_exhaustion
    from .files import open_regular as open_regular
    from .flusher import GroupFlusher as GroupFlusher
    from .frames import HEADER_BYTES as HEADER_BYTES
    from .frames import Frame as Frame
    from .frames import FrameHeader as FrameHeader
    from .frames import Kind as Kind
    from .frames import Tail as Tail
    from .frames import cut_frames as cut_frames
    from .frames import decode_header as decode_header
    from .frames import encode_frame as encode_frame
    from .frames import follow as follow
    from .frames import walk_frames as walk_frames
    from .frames import walk_headers as walk_headers
    from .log import Log as Log
    from .memory import MemoryDirectory as MemoryDirectory
    from .memory import MemoryStorage as MemoryStorage
    from .offline.inspection import SegmentFacts as SegmentFacts
    from .offline.inspection import frames_of as frames_of
    from .offline.inspection import is_mark_damaged as is_mark_damaged
    from .offline.inspection import list_segments as list_segments
    from .offline.inspection import log_bytes as log_bytes
    from .offline.inspection import store_bases as store_bases
    from .offline.inspection import stored_cluster_id as stored_cluster_id
    from .offline.inspection import stored_mark as stored_mark
    from .offline.repair import NothingToKeep as NothingToKeep
    from .offline.repair import Plan as Plan
    from .offline.repair import Repaired as Repaired
    from .offline.repair import Side as Side
    from .offline.repair import plan_repair as plan_repair
    from .offline.repair import repair as repair
    from .offline.segment_file import SegmentFile as SegmentFile
    from .offline.verification import CheckedSegment as CheckedSegment
    from .offline.verification import Fault as Fault
    from .offline.verification import Verdict as Verdict
    from .offline.verification import verify as verify
    from .options import FLUSH_ALWAYS as FLUSH_ALWAYS
    from .options import FLUSH_NEVER as FLUSH_NEVER
    from .options import LARGEST_STORE_BYTES as LARGEST_STORE_BYTES
    from .options import STORE_HEADER_BYTES as STORE_HEADER_BYTES
    from .options import FlushPolicy as FlushPolicy
    from .options import IndexCachePolicy as IndexCachePolicy
    from .options import LogOptions as LogOptions
    from .options import open_segments_of as open_segments_of
    from .options import overflow_of as overflow_of
    from .options import time_since_boot as time_since_boot
    from .options import wall_clock as wall_clock
    from .packing import Value as Value
    from .packing import check_containers as check_containers
    from .packing import check_value as check_value
    from .packing import pack as pack
    from .packing import unpack as unpack
    from .payload import Record as Record
    from .payload import Run as Run
    from .payload import StoredRecord as StoredRecord
    from .payload import blob_head as blob_head
    from .payload import check_frame as check_frame
    from .payload import decode_blob as decode_blob
    from .payload import decode_records as decode_records
    from .payload import decode_runs as decode_runs
    from .payload import decode_system as decode_system
    from .payload import decode_values as decode_values
    from .payload import each_stored_record as each_stored_record
    from .payload import encode_blob as encode_blob
    from .payload import encode_records as encode_records
    from .payload import encode_runs as encode_runs
    from .payload import encode_system as encode_system
    from .payload import frame_values as frame_values
    from .payload import stored_records as stored_records
    from .segment.mark import MARK_NAME as MARK_NAME
    from .segment.mark import SLOT_BYTES as SLOT_BYTES
    from .segment.mark import SLOT_POSITIONS as SLOT_POSITIONS
    from .segment.mark import Mark as Mark
    from .segment.mark import SlotFile as SlotFile
    from .segment.removal import Expiry as Expiry
    from .segment.store import SEGMENTS_FOLDER as SEGMENTS_FOLDER
    from .segment.survey import Torn as Torn
    from .segment.value_stream import ValueStream as ValueStream
    from .segment.write_segment import Flush as Flush
    from .state import Bounds as Bounds
    from .storage import Directory as Directory
    from .storage import Storage as Storage

# Imported when first asked for: a client needs the packing alone, and a command the files without asyncio.
_MODULES = {
    "change.ages": "Ages",
    "change.expiry": "Expirable",
    "change.reset": "remove_log",
    "change.spool": "Spool",
    "change.truncation": "Walk",
    "errors": (
        "ChainBroken DiskFull FileFailed FileUnlinked ForeignStore FrameCorrupt FrameInvalid IndexExpired "
        "IndexOutOfBounds LogClosed LogError LogLocked LogReadOnly LogRotten NoRoom NotFrameBoundary NotRegularFile "
        "NotYetFlushed PayloadInvalid RecordsTruncated RecordTooLarge ResourcesExhausted UnexpectedIndex "
        "UnknownVersion Unreadable sentence_of"
    ),
    "features": (
        "CONSUMERS CURSOR_OWNERS FEATURES FITNESS HISTORY MAX_FEATURE_LENGTH MAX_FEATURES MEMBERSHIP SESSION_OWNERS "
        "SESSION_TTL STATE_QUOTA"
    ),
    "files": "FileDirectory FileStorage ReadOnlyDirectory Sync is_exhaustion open_regular",
    "flusher": "GroupFlusher",
    "frames": (
        "HEADER_BYTES Frame FrameHeader Kind Tail cut_frames decode_header encode_frame follow walk_frames walk_headers"
    ),
    "log": "Log",
    "memory": "MemoryDirectory MemoryStorage",
    "offline.inspection": (
        "SegmentFacts frames_of is_mark_damaged list_segments log_bytes store_bases stored_cluster_id stored_mark"
    ),
    "offline.repair": "NothingToKeep Plan Repaired Side plan_repair repair",
    "offline.segment_file": "SegmentFile",
    "offline.verification": "CheckedSegment Fault Verdict verify",
    "options": (
        "FLUSH_ALWAYS FLUSH_NEVER LARGEST_STORE_BYTES STORE_HEADER_BYTES FlushPolicy IndexCachePolicy LogOptions "
        "open_segments_of overflow_of time_since_boot wall_clock"
    ),
    "packing": "Value check_containers check_value pack unpack",
    "payload": (
        "Record Run StoredRecord blob_head check_frame decode_blob decode_records decode_runs decode_system "
        "decode_values each_stored_record encode_blob encode_records encode_runs encode_system frame_values "
        "stored_records"
    ),
    "segment.mark": "MARK_NAME SLOT_BYTES SLOT_POSITIONS Mark SlotFile",
    "segment.removal": "Expiry",
    "segment.store": "SEGMENTS_FOLDER",
    "segment.survey": "Torn",
    "segment.value_stream": "ValueStream",
    "segment.write_segment": "Flush",
    "state": "Bounds",
    "storage": "Directory Storage",
}
__getattr__ = exports(__name__, _MODULES)
