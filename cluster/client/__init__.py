"""The async client: `quire.connect("host:port,host:port")`."""

from .client import BatchReply, Client, Record, State, connect
from .errors import BadRequest, ClientError, NotFound, OutcomeUnknown, Refused, ServerFault, Unavailable

__all__ = [
    "BadRequest",
    "BatchReply",
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
]
