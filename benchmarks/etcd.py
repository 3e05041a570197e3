"""Members of etcd; and three of them under load from clients of the JSON gateway, for `benchmarks.failover`."""

import asyncio
import base64
import itertools
import random
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

MEMBERS: tuple[str, ...] = ("m1", "m2", "m3")
PORTS = (20_000, 32_000)
PAUSE_S = 0.02  # Between two attempts of a client, like quire's first backoff.
ATTEMPT_TIMEOUT_S = 1.0
DEADLINE_S = 60.0
STOP_S = 10.0
BETWEEN_PUTS = 100
VALUE = base64.b64encode(bytes(16)).decode()


def member_command(
    program: Path, folder: Path, member: str, peers: Mapping[str, str], clients: Mapping[str, str]
) -> list[str]:
    """The command line of a member with default settings; `peers` and `clients` are its and the others' URLs."""
    return [
        str(program),
        *("--name", member, "--data-dir", str(folder / member)),
        *("--listen-peer-urls", peers[member], "--initial-advertise-peer-urls", peers[member]),
        *("--listen-client-urls", clients[member], "--advertise-client-urls", clients[member]),
        *("--initial-cluster", ",".join(f"{other}={url}" for other, url in peers.items())),
    ]


class Etcd:
    """etcd members below a folder, under load while the context lasts."""

    def __init__(self, program: Path, folder: Path, clients: int) -> None:
        ports = random.sample(range(*PORTS), 2 * len(MEMBERS))
        self.acknowledged = 0
        self._program = program
        self._folder = folder
        self._clients = clients
        self._peers = dict(zip(MEMBERS, ports[::2], strict=True))
        self._ports = dict(zip(MEMBERS, ports[1::2], strict=True))
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._awaited: list[tuple[int, int, asyncio.Future[float]]] = []
        self._putting: list[asyncio.Task[None]] = []
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ATTEMPT_TIMEOUT_S))
        for member in MEMBERS:
            await self._start(member)
        self._putting = [asyncio.create_task(self._put(number)) for number in range(self._clients)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for task in self._putting:
            task.cancel()
        await asyncio.gather(*self._putting, return_exceptions=True)
        await self._session.close()
        for process in self._processes.values():
            process.kill()
            await process.wait()

    async def version(self) -> str:
        """The name and version."""
        answer = await self._call(MEMBERS[0], "maintenance/status", {})
        return f"etcd {answer['version']}"

    async def fail_over(self) -> float:
        """Kill the leader; return the seconds until a later epoch answers a put. Then restart the killed member."""
        await self._puts(BETWEEN_PUTS, 0)
        leader, epoch = await self._leader()
        process = self._processes.pop(leader)
        began = time.monotonic()
        process.kill()
        ended = await self._puts(1, epoch)
        await process.wait()
        await self._start(leader)
        await self._follows(leader)
        return ended - began

    async def _follows(self, member: str) -> None:
        """Wait until a restarted member forwards a put to the leader."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                with suppress(aiohttp.ClientError, OSError, TimeoutError):
                    await self._call(member, "kv/put", {"key": VALUE, "value": VALUE})
                    return
                await asyncio.sleep(PAUSE_S)

    async def _start(self, member: str) -> None:
        with (self._folder / f"{member}.log").open("ab") as output:
            self._processes[member] = await asyncio.create_subprocess_exec(
                *member_command(self._program, self._folder, member, _urls(self._peers), _urls(self._ports)),
                stdout=output,
                stderr=output,
            )

    async def _call(self, member: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self._ports[member]}/v3/{path}"
        async with self._session.post(url, json=body) as answer:
            answer.raise_for_status()
            document: dict[str, Any] = await answer.json()
            return document

    async def _leader(self) -> tuple[str, int]:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                for member in self._processes:
                    with suppress(aiohttp.ClientError, OSError, TimeoutError):
                        status = await self._call(member, "maintenance/status", {})
                        if status["leader"] == status["header"]["member_id"]:
                            return member, int(status["raftTerm"])
                await asyncio.sleep(PAUSE_S)

    async def _puts(self, count: int, above_epoch: int) -> float:
        """The time at which `count` more puts were answered in epochs above this one."""
        awaited: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._awaited.append((count, above_epoch, awaited))
        async with asyncio.timeout(DEADLINE_S):
            return await awaited

    async def _put(self, number: int) -> None:
        members = itertools.cycle(MEMBERS[number % 3 :] + MEMBERS[: number % 3])
        member = next(members)
        key = base64.b64encode(f"client-{number}".encode()).decode()
        while True:
            try:
                answer = await self._call(member, "kv/put", {"key": key, "value": VALUE})
            except (aiohttp.ClientError, OSError, TimeoutError):
                member = next(members)
                await asyncio.sleep(PAUSE_S)
            else:
                self._note(int(answer["header"]["raft_term"]))

    def _note(self, epoch: int) -> None:
        self.acknowledged += 1
        awaited, self._awaited = self._awaited, []
        for count, above_epoch, future in awaited:
            left = count - (epoch > above_epoch)
            if left > 0:
                self._awaited.append((left, above_epoch, future))
            elif not future.done():
                future.set_result(time.monotonic())


def _urls(ports: Mapping[str, int]) -> dict[str, str]:
    return {member: f"http://127.0.0.1:{port}" for member, port in ports.items()}
