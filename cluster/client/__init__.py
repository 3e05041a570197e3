"""The Python client: `quire.connect` for asyncio, `quire.connect_sync` for programs without an event loop."""

from ..access.client_credentials import TokenRefused
from ..access.tls import TlsRefused
from .admin import Admin, BlockingAdmin
from .blocking import BlockingClient, connect_sync
from .client import Client, Consistency, State, connect
from .documents import (
    CodeAccepted,
    Members,
    SegmentsExpired,
    SessionClosed,
    SessionRow,
    SessionStatus,
    SnapshotTaken,
    Status,
)
from .errors import (
    BadRequest,
    ClientError,
    CommandRefused,
    CursorTaken,
    Forbidden,
    ForkedClient,
    Halted,
    HistoryChanged,
    NotFound,
    OutcomeUnknown,
    Problem,
    RecordsLost,
    Refusal,
    ReplyGone,
    ReshardRefused,
    ResultsCut,
    ServerFault,
    SessionError,
    SessionExpired,
    SessionFenced,
    SessionOwned,
    Unauthorized,
    Unavailable,
)
from .message import BatchReply
from .records.consumer import Batch, BlockingBatch
from .records.cursors import BlockingCursors, CursorRow, Cursors
from .records.pages import Record
from .stream import Session

__all__ = [
    "Admin",
    "BadRequest",
    "Batch",
    "BatchReply",
    "BlockingAdmin",
    "BlockingBatch",
    "BlockingClient",
    "BlockingCursors",
    "Client",
    "ClientError",
    "CodeAccepted",
    "CommandRefused",
    "Consistency",
    "CursorRow",
    "CursorTaken",
    "Cursors",
    "Forbidden",
    "ForkedClient",
    "Halted",
    "HistoryChanged",
    "Members",
    "NotFound",
    "OutcomeUnknown",
    "Problem",
    "Record",
    "RecordsLost",
    "Refusal",
    "ReplyGone",
    "ReshardRefused",
    "ResultsCut",
    "SegmentsExpired",
    "ServerFault",
    "Session",
    "SessionClosed",
    "SessionError",
    "SessionExpired",
    "SessionFenced",
    "SessionOwned",
    "SessionRow",
    "SessionStatus",
    "SnapshotTaken",
    "State",
    "Status",
    "TlsRefused",
    "TokenRefused",
    "Unauthorized",
    "Unavailable",
    "connect",
    "connect_sync",
]
