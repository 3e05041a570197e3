"""The Python client: `quire.connect` for asyncio, `quire.connect_sync` for programs without an event loop."""

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
    "SessionRow",
    "SessionStatus",
    "SnapshotTaken",
    "State",
    "Status",
    "Unauthorized",
    "Unavailable",
    "connect",
    "connect_sync",
]
