"""The segmented log: frames, payloads, segments on disk, and what a crash leaves of them (DESIGN.md)."""

from __future__ import annotations

from .errors import (
    ChainBroken,
    DiskFull,
    ForeignStore,
    FrameCorrupt,
    FrameInvalid,
    IndexExpired,
    IndexOutOfBounds,
    LogClosed,
    LogError,
    LogLocked,
    LogReadOnly,
    LogRotten,
    NotFrameBorder,
    NotYetFlushed,
    PayloadInvalid,
    RecordTooLarge,
    UnexpectedIndex,
    UnknownVersion,
)
from .expiry import Expirable
from .files import FileDirectory, FileStorage, ReadOnlyDirectory
from .flush import Flush, Sync
from .flusher import GroupFlusher
from .frames import HEADER_BYTES, Frame, FrameHeader, Kind, Tail, decode_header, encode_frame, walk_frames
from .inspection import SegmentFacts, frames_of, list_segments, log_bytes, store_bases, stored_cluster_id, stored_mark
from .log import Bounds, Log
from .mark import Mark
from .memory import MemoryDirectory, MemoryStorage
from .options import FLUSH_ALWAYS, FLUSH_NEVER, FlushPolicy, LogOptions
from .packing import check_value, pack, unpack
from .payload import (
    Record,
    Run,
    StoredRecord,
    blob_head,
    decode_blob,
    decode_records,
    decode_runs,
    decode_system,
    decode_values,
    encode_blob,
    encode_records,
    encode_runs,
    encode_system,
    frame_records,
    frame_values,
    stored_records,
)
from .removal import remove_log
from .repair import NothingToKeep, Plan, Repaired, Side, plan_repair, repair
from .slots import SlotFile
from .spool import Spool
from .storage import Directory, Storage
from .value_stream import ValueStream
from .verification import CheckedSegment, Fault, Verdict, verify

__all__ = [
    "FLUSH_ALWAYS",
    "FLUSH_NEVER",
    "HEADER_BYTES",
    "Bounds",
    "ChainBroken",
    "CheckedSegment",
    "Directory",
    "DiskFull",
    "Expirable",
    "Fault",
    "FileDirectory",
    "FileStorage",
    "Flush",
    "FlushPolicy",
    "ForeignStore",
    "Frame",
    "FrameCorrupt",
    "FrameHeader",
    "FrameInvalid",
    "GroupFlusher",
    "IndexExpired",
    "IndexOutOfBounds",
    "Kind",
    "Log",
    "LogClosed",
    "LogError",
    "LogLocked",
    "LogOptions",
    "LogReadOnly",
    "LogRotten",
    "Mark",
    "MemoryDirectory",
    "MemoryStorage",
    "NotFrameBorder",
    "NotYetFlushed",
    "NothingToKeep",
    "PayloadInvalid",
    "Plan",
    "ReadOnlyDirectory",
    "Record",
    "RecordTooLarge",
    "Repaired",
    "Run",
    "SegmentFacts",
    "Side",
    "SlotFile",
    "Spool",
    "Storage",
    "StoredRecord",
    "Sync",
    "Tail",
    "UnexpectedIndex",
    "UnknownVersion",
    "ValueStream",
    "Verdict",
    "blob_head",
    "check_value",
    "decode_blob",
    "decode_header",
    "decode_records",
    "decode_runs",
    "decode_system",
    "decode_values",
    "encode_blob",
    "encode_frame",
    "encode_records",
    "encode_runs",
    "encode_system",
    "frame_records",
    "frame_values",
    "frames_of",
    "list_segments",
    "log_bytes",
    "pack",
    "plan_repair",
    "remove_log",
    "repair",
    "store_bases",
    "stored_cluster_id",
    "stored_mark",
    "stored_records",
    "unpack",
    "verify",
    "walk_frames",
]
