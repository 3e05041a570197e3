"""Shared by the commands that work on a node's data directory while the node is stopped.

One that begins another history dials the members first: the former one must not go on beside it.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from ...errors import ClusterError
from ..connection import fail_usage
from ..output import Exit, complain, interruptible, say

if TYPE_CHECKING:
    from aiohttp import ClientSession

    from quire.log import Directory, LogOptions
    from quire.replication.net.hello import PeerInfo
    from quire.replication.net.trust import Trust

OTHER_PROGRAM = frozenset(
    {HTTPStatus.OK, HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED}
)
"""How a program that is not quire answers a WebSocket's opening. quire gives `/peer` other codes when it refuses."""


class MayAnswer(ClusterError):
    """A member answered, or something that may be one; the text says who, and what to do."""


@contextmanager
def locked(data_dir: Path, *, create: bool = False) -> "Generator[Directory]":
    """The directory, locked. If it cannot be used, print why and exit."""
    from quire.log import FileDirectory, LogError, LogLocked

    from ...data_dir.volume import check_volume

    if data_dir.is_file() or not (create or data_dir.exists()):
        what = "is a file" if data_dir.exists() else "does not exist"
        fail_usage(f"{data_dir} {what}; give the --data-dir of a node")
    try:
        check_volume(data_dir)
        directory = FileDirectory(data_dir)
        directory.lock()
    except LogLocked:
        complain(f"{data_dir} is in use; stop that node first")
        raise typer.Exit(Exit.FAILED) from None
    except ClusterError as error:
        complain(str(error))
        raise typer.Exit(Exit.FAILED) from None
    except OSError as error:
        _fail(data_dir, error)
    try:
        with interruptible():
            yield directory
    except (ClusterError, LogError) as error:
        complain(str(error))
        raise typer.Exit(Exit.FAILED) from None
    except OSError as error:
        _fail(data_dir, error)
    finally:
        directory.unlock()


def _fail(data_dir: Path, error: OSError) -> NoReturn:
    from quire.log import sentence_of

    complain(sentence_of(error, data_dir))
    raise typer.Exit(Exit.FAILED) from None


def options_for(max_frame_bytes: int) -> "LogOptions":
    """How the log of a cluster with this limit is opened."""
    from quire.log import LogOptions, overflow_of

    segment_bytes = LogOptions().segment_bytes
    overflow = overflow_of(segment_bytes, max_frame_bytes)
    return LogOptions(segment_bytes=segment_bytes, segment_overflow_bytes=overflow, max_frame_bytes=max_frame_bytes)


def machine_of(recorded: str) -> tuple[list[str], str]:
    """The flags that start a node with the recorded machine, and what is to be filled in there; empty if nothing is.

    A recorded name may be an attacker's, so that none but those of built-in machines is a part of a command.
    """
    from quire.sm.machines.registry import BUILT_IN

    if recorded in BUILT_IN:
        return ["--machine", recorded], ""
    named = f"Its machine is recorded as {recorded[:80]!r}, which is not built in"
    return ["--machine", "MODULE:CLASS"], f"{named}: give its class for MODULE:CLASS."


# Who answers


@dataclass(frozen=True, slots=True)
class Caller:
    """The node of the directory, as which the members are dialled."""

    me: "PeerInfo"
    trust: "Trust"
    advice: str
    """What to do if a member answers, with `{node_id}` for its id."""
    passes_others: bool
    """Whether it counts as nobody if another cluster or another program answers."""

    def check_nobody_answers(self, members: Sequence[tuple[str, str]], *, hidden: bool) -> None:
        """Dial these, as (node id, HOST:PORT), and print why each does not answer, unless hidden. Raises MayAnswer."""
        import asyncio

        for (node_id, address), why in zip(members, asyncio.run(self._dial_all(members)), strict=True):
            if not hidden:
                say(f"{node_id} at {address} does not answer: {why}")

    async def _dial_all(self, members: Sequence[tuple[str, str]]) -> list[str]:
        import asyncio

        from quire.replication.net.sockets import peer_session

        async with peer_session() as session:
            return await asyncio.gather(*(self._why_silent(session, *member) for member in members))

    async def _why_silent(self, session: "ClientSession", node_id: str, address: str) -> str:
        """Why this member does not answer there. Raises MayAnswer if it does, or if that cannot be told."""
        from quire.replication.net.hello import LINK_FAILURES, PeerRefused, dial
        from quire.replication.net.sockets import close_socket

        advice = f"{self.advice.format(node_id=node_id)}; nothing was changed"
        try:
            socket, peer = await dial(session, address, lambda: self.me, node_id, "peer", self.trust, None)
        except LINK_FAILURES as error:
            why = await _unreached(error, address)
            if why is None and self.passes_others:
                why = self._another(error)
            if why is not None:
                return why
            reason = error.reason if isinstance(error, PeerRefused) else f"{type(error).__name__}: {error}"
            said = f"{address}, the address of {node_id}, answers, and cannot be told apart from a member: {reason}"
            raise MayAnswer(f"{said}; {advice}") from error
        await close_socket(socket)
        raise MayAnswer(f"{peer.node_id} answers at {address}: the cluster goes on there; {advice}")

    def _another(self, error: BaseException) -> str | None:
        """Who else answers there than a node of this cluster; None if that cannot be told."""
        from aiohttp import WSServerHandshakeError

        from quire.replication.net.hello import FOREIGN_CLUSTER, ForeignCluster, PeerRefused

        match error:
            case ForeignCluster() if self.trust.proves:
                return None  # It has this cluster's secret or CA: the cluster goes on there in another history.
            case PeerRefused(code=code):
                return "another cluster answers there" if code == FOREIGN_CLUSTER else None
            case WSServerHandshakeError(status=status):
                return "another program answers there" if status in OTHER_PROGRAM else None
            case _:
                return None


async def _unreached(error: BaseException, address: str) -> str | None:
    """Why a connection to this HOST:PORT was never accepted; None if it was."""
    import asyncio

    from aiohttp import ClientConnectorError, ClientSSLError

    from quire.replication.address import host_and_port
    from quire.replication.net.sockets import HELLO_TIMEOUT_S

    match error:
        case ClientSSLError() | ClientConnectorError(os_error=ConnectionResetError()):
            return None  # What listens nowhere refuses; only what accepts can fail at TLS, or hang up during it.
        case ClientConnectorError():
            return (error.os_error.strerror or str(error.os_error)).lower()
        case TimeoutError():
            # Of a machine that is gone, or of a frozen process, for which the kernel accepts: that one may go on.
            try:
                async with asyncio.timeout(HELLO_TIMEOUT_S):
                    _, writer = await asyncio.open_connection(*host_and_port(address))
            except OSError:  # TimeoutError is one.
                return "nothing came in time"
            writer.close()
            return None
        case _:
            return None
