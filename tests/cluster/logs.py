"""A standalone log with its server, in this process."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, web

from quire.cluster.http.admission.connections import ConnectionLimit
from quire.cluster.http.app import serve_app
from quire.cluster.outgoing import sendable
from quire.cluster.serve.process import listen
from quire.cluster.standalone.app import make_app
from quire.cluster.standalone.config import StandaloneConfig
from quire.cluster.standalone.service import LogService
from quire.log import DiskFull, FileDirectory, FileStorage, Log, ResourcesExhausted
from tests.cluster.running import Reply
from tests.ports import HOST, free_ports
from tests.tuned import tuned


class HeldDirectory(FileDirectory):
    """A folder whose device can be held up, broken, or full."""

    __slots__ = ("device",)

    def __init__(self, path: Path | str, device: Device | None = None) -> None:
        super().__init__(path)
        self.device = Device() if device is None else device

    def open(self, name: str) -> FileStorage:
        return HeldStorage(f"{self.path}/{name}", 0, self.device, self._files)

    def create(self, name: str) -> FileStorage:
        if self.device.exhausted:
            raise ResourcesExhausted(name, "injected")
        if self.device.full:
            raise DiskFull(name, 0)
        return HeldStorage(f"{self.path}/{name}", os.O_CREAT | os.O_EXCL, self.device, self._files)

    def child(self, name: str) -> HeldDirectory:
        return HeldDirectory(f"{self.path}/{name}", self.device)


class Device:
    """What all files of a folder share."""

    def __init__(self) -> None:
        self.runs = threading.Event()
        self.runs.set()
        self.broken = False
        self.full = False
        self.exhausted = False
        self.index_reads: list[str] = []
        """Names of the index files that were read, one for each read."""


class HeldStorage(FileStorage):
    """A file on such a device."""

    __slots__ = ("_device",)

    def __init__(self, path: str, flags: int, device: Device, registry: set[FileStorage]) -> None:
        super().__init__(path, flags, registry=registry)
        self._device = device

    def read_at(self, position: int, length: int) -> bytes:
        if self._path.endswith(".index"):
            self._device.index_reads.append(os.path.basename(self._path))
        return super().read_at(position, length)

    def sync(self) -> None:
        if not self._device.runs.wait(60):
            raise TimeoutError("the test never let the sync go")
        if self._device.broken:
            raise OSError(errno.EIO, "injected")
        super().sync()

    def write_at(self, position: int, data: bytes | bytearray | memoryview) -> None:
        if self._device.broken:
            raise OSError(errno.EIO, "injected")
        super().write_at(position, data)

    def allocate(self, length: int) -> None:
        if self._device.full:
            raise DiskFull("a file", length)
        super().allocate(length)


@dataclass
class ServedLog:
    """A log that is served, and a client of it."""

    service: LogService
    url: str
    client: ClientSession
    application: web.Application

    @property
    def log(self) -> Log:
        return self.service.log

    async def call(self, method: str, path: str, **given: Any) -> Reply:
        if isinstance(given.get("data"), bytes):
            given["data"] = sendable(given["data"])
        async with self.client.request(method, self.url + path, **given) as response:
            return Reply(response.status, dict(response.headers), await response.read())

    async def append(self, body: Any, content_type: str = "application/octet-stream", **headers: str) -> Reply:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.call("POST", "/records", data=body, headers={"Content-Type": content_type} | named)


@asynccontextmanager
async def served(data_dir: Path, device: Device | None = None, **fields: Any) -> AsyncGenerator[ServedLog]:
    """A log in that directory, served while the block runs."""
    [port] = free_ports(1)
    address = f"{HOST}:{port}"
    config = tuned(StandaloneConfig, listen=address, data_dir=data_dir, **fields)
    service = LogService(config, HeldDirectory(data_dir, device))
    await service.start()
    connections = ConnectionLimit(reserve=0)
    application = make_app(service, connections)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=2.0)
    server = await serve_app(runner, connections, listen(address), lambda: service.credentials.tls)
    scheme = "http" if service.credentials.tls is None else "https"
    try:
        async with ClientSession() as client:
            yield ServedLog(service, f"{scheme}://{address}", client, application)
    finally:
        await server.close()
        await runner.cleanup()
        await service.stop()
