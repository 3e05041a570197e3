"""The client: `quire.connect("host:port,host:port")`, and `quire.connect_sync` without an event loop."""

from .blocking import BlockingClient, connect_sync
from .client import BatchReply, Client, State, connect
from .errors import BadRequest, ClientError, NotFound, OutcomeUnknown, Refused, ServerFault, Unavailable
from .reading import Record

__all__ = [
    "BadRequest",
    "BatchReply",
    "BlockingClient",
    "Client",
    "ClientError",
    "NotFound",
    "OutcomeUnknown",
    "Record",
    "Refused",
    "ServerFault",
    "State",
    "Unavailable",
    "connect",
    "connect_sync",
]
