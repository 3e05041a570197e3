"""The Python client: `quire.connect` for asyncio, `quire.connect_sync` for programs without an event loop."""

from .blocking import BlockingClient, connect_sync
from .client import Client, Consistency, State, connect
from .errors import (
    BadRequest,
    ClientError,
    CommandRefused,
    ForkedClient,
    Halted,
    NotFound,
    OutcomeUnknown,
    ReplyGone,
    ResultsCut,
    ServerFault,
    SessionError,
    SessionExpired,
    SessionFenced,
    Unavailable,
)
from .message import BatchReply
from .records import Record
from .stream import Session

__all__ = [
    "BadRequest",
    "BatchReply",
    "BlockingClient",
    "Client",
    "ClientError",
    "CommandRefused",
    "Consistency",
    "ForkedClient",
    "Halted",
    "NotFound",
    "OutcomeUnknown",
    "Record",
    "ReplyGone",
    "ResultsCut",
    "ServerFault",
    "Session",
    "SessionError",
    "SessionExpired",
    "SessionFenced",
    "State",
    "Unavailable",
    "connect",
    "connect_sync",
]
