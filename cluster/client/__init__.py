"""The client: `quire.connect("host:port,host:port")`, and `quire.connect_sync` without an event loop."""

from .blocking import BlockingClient, connect_sync
from .client import Client, State, connect
from .errors import (
    BadRequest,
    ClientError,
    Halted,
    NotFound,
    OutcomeUnknown,
    Refused,
    ReplyGone,
    ServerFault,
    SessionError,
    SessionExpired,
    SessionFenced,
    Unavailable,
)
from .reading import Record
from .replies import BatchReply
from .session import Session

__all__ = [
    "BadRequest",
    "BatchReply",
    "BlockingClient",
    "Client",
    "ClientError",
    "Halted",
    "NotFound",
    "OutcomeUnknown",
    "Record",
    "Refused",
    "ReplyGone",
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
