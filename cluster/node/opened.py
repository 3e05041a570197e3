"""What a node has at hand once it is started, whether or not it belongs to a cluster yet."""

import asyncio
import os
from dataclasses import dataclass

from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

from quire.log import IndexCachePolicy, LogOptions
from quire.replication.core import Identity
from quire.sm import Applier, StateMachine

from ..config.serve import ServeConfig
from ..data_dir.data_dir import DataDir
from ..data_dir.genesis import Genesis, check_genesis


@dataclass(frozen=True, slots=True)
class Opened:
    """Its data_dir, locked; the session that it dials its peers with; and who it is this time."""

    config: ServeConfig
    machine_type: type[StateMachine]
    data_dir: DataDir
    http: ClientSession
    secret: bytes | None
    incarnation: int

    @classmethod
    async def open(cls, config: ServeConfig, machine_type: type[StateMachine]) -> "Opened":
        """Open it all.

        Raises:
            DataDirRefused, LogError, OSError: it cannot run here; nothing was changed.
        """
        secret = config.peer_secret_file.read_bytes().strip() if config.peer_secret_file else None
        options = LogOptions(
            segment_bytes=config.segment_bytes,
            segment_overflow_bytes=max(config.segment_bytes // 2, config.max_frame_bytes),  # any frame fits any segment
            max_frame_bytes=config.max_frame_bytes,
            # Replication and most reads need the newest records: a scan of old ones must not push their indexes out.
            index_cache_policy=IndexCachePolicy.NEWEST,
        )
        data_dir = await asyncio.to_thread(DataDir.open, config.data_dir, config.node, options)
        http = ClientSession(
            connector=TCPConnector(limit=0), timeout=ClientTimeout(total=None), cookie_jar=DummyCookieJar()
        )
        return cls(config, machine_type, data_dir, http, secret, int.from_bytes(os.urandom(8), "little"))

    @property
    def identity(self) -> Identity:
        """Who this is among its peers."""
        return Identity(self.config.node, self.data_dir.promises.disk_id, self.incarnation)

    @property
    def machine(self) -> tuple[str, int]:
        """Name and version of the machine, as they stand in genesis."""
        return self.machine_type.name, self.machine_type.version

    @property
    def urls(self) -> dict[str, str]:
        """HOST:PORT of the other members as this node reaches them, by node id."""
        members, links = self.config.members, self.config.link
        return {node: links.get(node, address) for node, address in members.items() if node != self.config.node}

    async def restored(self, genesis: Genesis) -> Applier:
        """The machine and the sessions as the newest snapshot has them, or as they began.

        Raises:
            GenesisRefused: the cluster is not what this node is configured for.
            DataDirRefused, LogError, MachineError: as `DataDir.restore`.
        """
        check_genesis(genesis, self.machine, self.config)
        machine_type, initial = self.machine_type, genesis.initial
        return await asyncio.to_thread(self.data_dir.restore, lambda: machine_type(initial), genesis.new_sessions)

    async def close(self) -> None:
        """Mark a clean stop and unlock."""
        await self.http.close()
        await asyncio.to_thread(self.data_dir.close)
