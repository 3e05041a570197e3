"""What a backup reads of one node, byte for byte."""

from urllib.parse import urlencode

from .connection import Connection

RAW_FRAMES = "application/vnd.quire.frames"
OCTETS = "application/octet-stream"


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
