"""What an operator asks of a cluster: status, leadership, members, snapshots, expiry, code and sessions."""

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TypedDict
from urllib.parse import urlencode

from quire.log import pack

from .connection import Connection, Run
from .documents import (
    CodeAccepted,
    Members,
    SegmentsExpired,
    SessionClosed,
    SessionRow,
    SessionStatus,
    SnapshotTaken,
    Status,
    document_of,
)
from .errors import NotFound
from .message import pack_or_refuse
from .records.cursors import BlockingCursors, Cursors
from .transport import MSGPACK, Reply

RAW_FRAMES = "application/vnd.quire.frames"
OCTETS = "application/octet-stream"
NODE_ID = re.compile(r"[a-z0-9-]{1,24}")  # As in quire.replication, which takes long to import.


class Code:
    """The code of the machine, for an operator: `client.code`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def accept(self, server: str) -> CodeAccepted:
        """Have a node accept the code of its machine and of the members'; return the fingerprints.

        Clears the alarms that the code changed or that members run different code. Use it only if the code gives the
        same results for every command in the log.
        """
        return document_of(await self._connection.change("/admin/accept-code", server=server), CodeAccepted)


class Membership:
    """Changes of the members, and draining one. Each is safe to repeat; each returns or raises within `timeout_s`.

    A change returns the indices of the members records that it wrote: none if the members already are as wanted.
    Each raises as follows.

    Raises:
        BadRequest: the change makes no sense as the members are, or an address or id is invalid.
        NotFound: there is no such node.
        Unavailable: the change could not be made within `timeout_s`; nothing was changed.
        OutcomeUnknown: it may have been made; call this again.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def add(self, addresses: Mapping[str, str], *, observers: bool = False) -> list[int]:
        """Add nodes, HOST:PORT by node id. They join when they are started with `--join`.

        They become voters once all that join have caught up, or stay observers. You need not wait for it.
        """
        body = pack_or_refuse({"members": dict(addresses), "role": "observer" if observers else "voter"})
        return list(document_of(await self._connection.change("/members", body), _Changed)["changes"])

    async def remove(self, node_id: str) -> list[int]:
        """Remove a node for good. A leader hands over first."""
        reply = await self._connection.call("DELETE", _path(node_id), writes=True, repeatable=True)
        return list(document_of(reply, _Changed)["changes"])

    async def promote(self, node_id: str) -> list[int]:
        """Make a node a voter with the disk that it has now. An older disk of it loses its vote first.

        The call waits until the node has caught up and the leader serves.
        """
        return list(document_of(await self._patch(node_id, {"role": "voter"}), _Changed)["changes"])

    async def demote(self, node_id: str) -> list[int]:
        """Make a voter an observer. A leader hands over first."""
        return list(document_of(await self._patch(node_id, {"role": "observer"}), _Changed)["changes"])

    async def move(self, node_id: str, address: str) -> list[int]:
        """Give a member another address, HOST:PORT."""
        return list(document_of(await self._patch(node_id, {"address": address}), _Changed)["changes"])

    async def drain(self, node_id: str, *, drained: bool = True) -> None:
        """Have a node let others lead as long as one can, or no longer. A restart of the node ends it."""
        await self._patch(node_id, {"drained": drained})

    async def _patch(self, node_id: str, document: Mapping[str, object]) -> Reply:
        return await self._connection.call(
            "PATCH",
            _path(node_id),
            writes=True,
            repeatable=True,
            body=pack(document),
            content_type=MSGPACK,
        )


class NodeFiles:
    """The frames, the genesis and the snapshots of a node, for backups: `client.files`. All need the role `admin`,
    except for `frames`. `server` is the node's HOST:PORT. Nothing is verified.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def frames(self, from_index: int, to_index: int, history: str, server: str, max_bytes: int) -> bytes:
        """Whole committed frames, from the one that holds `from_index` on; those that begin below `to_index`.

        Raises:
            NotFound: the node has them no longer, or not yet; `type` says which.
            HistoryChanged: the cluster has another history than `history`.
        """
        asked = {"from": from_index, "to": to_index, "max_bytes": max_bytes, "history": history}
        return await self._read(f"/records?{urlencode(asked)}", server, RAW_FRAMES)

    async def genesis(self, server: str) -> bytes:
        """The cluster's genesis frame."""
        return await self._read("/admin/genesis", server)

    async def snapshot_manifest(self, index: int, server: str) -> bytes:
        """The manifest of the node's snapshot at an index, which the node then keeps for a minute.

        Raises:
            NotFound: it has none there.
        """
        return await self._read(f"/admin/snapshots/{index}", server)

    async def snapshot_chunk(self, index: int, number: int, server: str) -> bytes:
        """A chunk of a snapshot, numbered from 0; the node then keeps the snapshot for a minute. Raises NotFound."""
        return await self._read(f"/admin/snapshots/{index}/{number}", server)

    async def _read(self, path: str, server: str, accept: str = OCTETS) -> bytes:
        return (await self._connection.call("GET", path, server=server, accept=accept)).body


class Admin:
    """An operator's calls on a cluster; a `Client` has them. Each returns or raises within `timeout_s`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.code = Code(connection)
        """The code of the machine."""
        self.membership = Membership(connection)
        """Changes of the members."""
        self.files = NodeFiles(connection)
        """What a backup reads of one node."""
        self.cursors = Cursors(connection)
        """The positions of consumers."""

    async def status(self, server: str | None = None) -> Status:
        """The status of a node: of `server`, or else of the leader or the first server that answers."""
        return document_of(await self._connection.call("GET", "/status", server=server), Status)

    async def ready(self, server: str) -> bool:
        """True once a node reports that it is ready; the node need not be there yet.

        Raises:
            Unavailable: it was not ready within `timeout_s`.
        """
        reply = await self._connection.call("GET", "/readyz", server=server, awaits_start=True)
        return bool(document_of(reply, _Ready)["ready"])

    async def transfer(self, target: str | None = None) -> str:
        """Move leadership to a node, or to the most up-to-date follower; return the new leader's id. Loses no write.

        Raises:
            BadRequest: there is no such voter.
            Unavailable: leadership did not move within `timeout_s`.
            OutcomeUnknown: an attempt was not answered, so leadership may have moved.
        """
        reply = await self._connection.change("/admin/transfer", pack_or_refuse({"target": target}))
        return str(document_of(reply, _Transferred)["leader"])

    async def members(self) -> Members:
        """The members, as the leader knows them."""
        return document_of(await self._connection.get("/members"), Members)

    async def take_snapshot(self, server: str) -> SnapshotTaken:
        """Have a node take a snapshot of everything it has applied; return its index, size and checksum.

        Raises:
            ServerFault: the node tried, and says why there is none.
            Unavailable: the snapshot was not complete within `timeout_s`.
            OutcomeUnknown: an attempt was not answered, so the snapshot may be complete.
        """
        return document_of(await self._connection.change("/admin/snapshot", server=server), SnapshotTaken)

    async def expire(self, server: str, *, dry_run: bool = False) -> SegmentsExpired:
        """Have a node delete the expired segments of its log; return how many, up to which index, and their size.

        With `dry_run`, delete nothing and return what would be deleted.
        """
        reply = await self._connection.change("/admin/expire", pack_or_refuse({"dry_run": dry_run}), server=server)
        return document_of(reply, SegmentsExpired)

    async def session_status(self, session: int) -> SessionStatus:
        """Any open session: its name, and the last sequence that it executed.

        Raises:
            NotFound: the session is not open.
        """
        return document_of(await self._connection.get(f"/sessions/{session}"), SessionStatus)

    async def sessions(self, prefix: str = "") -> AsyncGenerator[SessionRow, None]:
        """The open sessions whose names start with `prefix`, by id.

        An empty prefix gives all sessions, including those without a name.
        """
        after: int | None = -1
        while after is not None:
            query = urlencode({"prefix": prefix, **({"after": after} if after >= 0 else {})})
            page = document_of(await self._connection.get(f"/sessions?{query}"), _Sessions)
            for row in page["sessions"]:
                yield row
            after = page["next"]

    async def close_session(self, session: int) -> SessionClosed:
        """Close any session; return the last sequence it executed. Its holder's next command fails: SessionExpired.

        Raises:
            NotFound: the session is not open.
        """
        return document_of(await self._connection.call("DELETE", f"/sessions/{session}", writes=True), SessionClosed)

    async def close_sessions(self, sessions: Sequence[int]) -> list[int]:
        """Close these sessions, at most 1,000; return the ids of those that were open.

        Their holders' next commands fail with SessionExpired.
        """
        body = pack({"sessions": list(sessions)})
        reply = await self._connection.call("POST", "/sessions/close", writes=True, body=body, content_type=MSGPACK)
        return document_of(reply, _Closed)["closed"]


class BlockingCode:
    """`Code` for programs without an event loop."""

    def __init__(self, code: Code, run: Run) -> None:
        self._code = code
        self._run = run

    def accept(self, server: str) -> CodeAccepted:
        """Have a node accept the code of its machine and of the members'; return the fingerprints."""
        return self._run(self._code.accept(server))


class BlockingMembership:
    """`Membership` for programs without an event loop."""

    def __init__(self, membership: Membership, run: Run) -> None:
        self._membership = membership
        self._run = run

    def add(self, addresses: Mapping[str, str], *, observers: bool = False) -> list[int]:
        """Add nodes, HOST:PORT by node id. They join when they are started with `--join`."""
        return self._run(self._membership.add(addresses, observers=observers))

    def remove(self, node_id: str) -> list[int]:
        """Remove a node for good. A leader hands over first."""
        return self._run(self._membership.remove(node_id))

    def promote(self, node_id: str) -> list[int]:
        """Make a node a voter with the disk that it has now. An older disk of it loses its vote first."""
        return self._run(self._membership.promote(node_id))

    def demote(self, node_id: str) -> list[int]:
        """Make a voter an observer. A leader hands over first."""
        return self._run(self._membership.demote(node_id))

    def move(self, node_id: str, address: str) -> list[int]:
        """Give a member another address, HOST:PORT."""
        return self._run(self._membership.move(node_id, address))

    def drain(self, node_id: str, *, drained: bool = True) -> None:
        """Have a node let others lead as long as one can, or no longer. A restart of the node ends it."""
        self._run(self._membership.drain(node_id, drained=drained))


class BlockingAdmin:
    """`Admin` for programs without an event loop. Each call blocks; it returns and raises what `Admin`'s does."""

    def __init__(self, admin: Admin, run: Run) -> None:
        self._admin = admin
        self._run = run
        self.code = BlockingCode(admin.code, run)
        """The code of the machine."""
        self.membership = BlockingMembership(admin.membership, run)
        """Changes of the members."""
        self.cursors = BlockingCursors(admin.cursors, run)
        """The positions of consumers."""

    def status(self, server: str | None = None) -> Status:
        """The status of a node: of `server`, or else of the leader or the first server that answers."""
        return self._run(self._admin.status(server))

    def ready(self, server: str) -> bool:
        """True once a node reports that it is ready."""
        return self._run(self._admin.ready(server))

    def transfer(self, target: str | None = None) -> str:
        """Move leadership to a node, or to the most up-to-date follower; return the new leader's id."""
        return self._run(self._admin.transfer(target))

    def members(self) -> Members:
        """The members, as the leader knows them."""
        return self._run(self._admin.members())

    def take_snapshot(self, server: str) -> SnapshotTaken:
        """Have a node take a snapshot of everything it has applied; return its index, size and checksum."""
        return self._run(self._admin.take_snapshot(server))

    def expire(self, server: str, *, dry_run: bool = False) -> SegmentsExpired:
        """Have a node delete the expired segments of its log; return how many, up to which index, and their size."""
        return self._run(self._admin.expire(server, dry_run=dry_run))

    def session_status(self, session: int) -> SessionStatus:
        """Any open session: its name, and the last sequence that it executed."""
        return self._run(self._admin.session_status(session))

    def sessions(self, prefix: str = "") -> list[SessionRow]:
        """The open sessions whose names start with `prefix`, by id; see `Admin.sessions`."""

        async def listed() -> list[SessionRow]:
            return [row async for row in self._admin.sessions(prefix)]

        return self._run(listed())

    def close_session(self, session: int) -> SessionClosed:
        """Close any session; return the last sequence it executed. Its holder's next command fails: SessionExpired."""
        return self._run(self._admin.close_session(session))

    def close_sessions(self, sessions: Sequence[int]) -> list[int]:
        """Close these sessions, at most 1,000; return the ids of those that were open."""
        return self._run(self._admin.close_sessions(sessions))


class _Ready(TypedDict):
    ready: bool


class _Transferred(TypedDict):
    leader: str


class _Sessions(TypedDict):
    sessions: list[SessionRow]
    next: int | None


class _Closed(TypedDict):
    closed: list[int]


class _Changed(TypedDict):
    changes: list[int]


def _path(node_id: str) -> str:
    if not NODE_ID.fullmatch(node_id):
        raise NotFound({"status": 404, "detail": f"{node_id!r} is not a node id: 1 to 24 of a-z, 0-9 and -"})
    return f"/members/{node_id}"
