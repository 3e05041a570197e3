"""The session under which a client's commands are numbered, so that each executes once however often it is sent."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter

from quire.log import pack

from .errors import ClientError
from .transport import NothingWritten, Transport, document_of

FIELDS = ("session", "sequence", "session_window", "max_request_bytes")
CLOSE_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class Session:
    """An open session.

    `sequence`: how many commands were executed under its name when it was opened, 0 for a new one. `window`: how many
    commands may wait for their answers. `message_bytes`: how large the commands of a message may be, as msgpack.
    """

    id: int
    name: str | None
    sequence: int
    window: int
    message_bytes: int


async def open_session(transport: Transport, name: str | None) -> Session:
    """A new session; under a name that is open already, one that goes on with its sequence and fences its holder.

    Every server is asked in turn, although one before may have opened it: that executes nothing, and the last one of a
    name holds it. Raises as `Transport.call_once`.
    """
    body = pack({} if name is None else {"name": name})
    reply = await transport.call_once("POST", "/sessions", body)
    try:
        session, sequence, window, message_bytes = itemgetter(*FIELDS)(document_of(reply))
    except KeyError as missing:
        raise ClientError(
            f"a server answered without {missing} to a session; is it a quire node of this age?"
        ) from None
    return Session(session, name, sequence, window, message_bytes)


async def close_session(transport: Transport, session: Session) -> None:
    """Close it, if that can be had at once."""
    with suppress(TimeoutError, NothingWritten, ClientError):
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await transport.call_once("DELETE", f"/sessions/{session.id}")
