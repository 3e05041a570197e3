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
    Forbidden,
    ForkedClient,
    Halted,
    HistoryChanged,
    NotFound,
    OutcomeUnknown,
    Problem,
    Refusal,
    ReplyGone,
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
from .records import Record
from .stream import Session

__all__ = [
    "Admin",
    "BadRequest",
    "BatchReply",
    "BlockingAdmin",
    "BlockingClient",
    "Client",
    "ClientError",
    "CodeAccepted",
    "CommandRefused",
    "Consistency",
    "Forbidden",
    "ForkedClient",
    "Halted",
    "HistoryChanged",
    "Members",
    "NotFound",
    "OutcomeUnknown",
    "Problem",
    "Record",
    "Refusal",
    "ReplyGone",
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
