"""A hostile client: all that a caller may send and that costs a node much, seeded, each kind alone or all at once.

    batches   bodies of a MiB with as many commands as fit, or as the limit allows
    answers   requests of which each byte asks for a hundred: long values again and again, the whole state, full pages
    takers    callers of long answers who take none of them
    streams   WebSockets on which nothing is sent, of sessions that exist and that do not
    bodies    requests of which half of the body comes
    sessions  sessions opened by name, and never closed
    polls     readers that wait for records that no record will be

Run as a program beside the nodes, until its standard input ends; then it prints what it was answered, as JSON. It comes
from an address of its own, so that limits for each address keep it apart from others.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import aiohttp

from quire.log import pack
from quire.replication.address import host_and_port
from tests.packed import unpacked

ADDRESS = "127.0.0.2"
MSGPACK = {"Content-Type": "application/msgpack", "Accept": "application/msgpack"}
BODY_BYTES = (1 << 20) - 64
LONG_VALUE = "v" * 1000  # The longest that the command `get` returns is 1,024 bytes.
LONG_KEYS = 20
HELD_VALUE = "h" * 60_000
HELD_KEYS = 200
MOST_COMMANDS = 10_000
PATIENCE_S = 30.0
HOLD_S = 20.0
"""How long a taker, an idle stream or half a body stays, unless it is cut off."""
TASKS = {"batches": 3, "answers": 3, "takers": 40, "streams": 1100, "bodies": 300, "sessions": 8, "polls": 50}
"""How many of each kind there are."""
HARMLESS = (aiohttp.ClientError, OSError, asyncio.IncompleteReadError, TimeoutError, ValueError)


class Hostile:
    """All kinds, on these servers."""

    def __init__(self, servers: list[str], seed: int) -> None:
        self._servers = servers
        self._seed = seed
        self._answers: dict[str, Counter[str]] = {}
        self._http: aiohttp.ClientSession
        self._names = 0

    async def run(self, kinds: list[str], ended: Awaitable[object]) -> dict[str, Counter[str]]:
        """Do these until that is done; what they were answered, by kind."""
        connector = aiohttp.TCPConnector(limit=0, local_addr=(ADDRESS, 0))
        timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as self._http:
            await self._fill()
            acts = {kind: act for kind, act in self._acts().items() if kind in kinds}
            tasks = [
                asyncio.create_task(self._again(kind, act, random.Random(f"{self._seed} {kind} {number}")))
                for kind, act in acts.items()
                for number in range(TASKS[kind])
            ]
            await ended
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return self._answers

    def _acts(self) -> dict[str, Callable[[str, random.Random], Awaitable[str]]]:
        return {
            "batches": self._batch,
            "answers": self._answer,
            "takers": self._taker,
            "streams": self._stream,
            "bodies": self._half_body,
            "sessions": self._session,
            "polls": self._poll,
        }

    async def _again(
        self, kind: str, act: Callable[[str, random.Random], Awaitable[str]], chance: random.Random
    ) -> None:
        counts = self._answers.setdefault(kind, Counter())
        await _wait(chance.random())  # They do not begin in the same millisecond.
        while True:
            try:
                outcome = await act(chance.choice(self._servers), chance)
            except HARMLESS as error:
                outcome = type(error).__name__
                await _wait(chance.random())
            counts[outcome] += 1

    async def _fill(self) -> None:
        """Long values, of which answers are made."""
        for first in range(0, HELD_KEYS, 10):
            puts = [["put", f"held-{number}", HELD_VALUE] for number in range(first, first + 10)]
            await self._commands(self._servers[0], puts)
        await self._commands(self._servers[0], [["put", f"long-{number}", LONG_VALUE] for number in range(LONG_KEYS)])

    async def _commands(self, server: str, commands: Sequence[Sequence[object]]) -> str:
        url = f"http://{server}/commands"
        async with self._http.post(url, data=pack({"commands": commands}), headers=MSGPACK) as answer:
            await answer.read()
            return str(answer.status)

    async def _batch(self, server: str, chance: random.Random) -> str:
        command: list[object] = ["incr", f"{chance.randrange(1000)}"]
        most = BODY_BYTES // len(pack(command)) if chance.random() < 0.5 else MOST_COMMANDS
        return await self._commands(server, [command] * most)

    async def _answer(self, server: str, chance: random.Random) -> str:
        kind = chance.randrange(4)
        if kind == 0:
            command: list[object] = ["get", f"long-{chance.randrange(LONG_KEYS)}"]
            return await self._commands(server, [command] * (BODY_BYTES // len(pack(command))))
        if kind == 1:
            return await self._commands(server, [["get", "long-1"]] * MOST_COMMANDS)
        if kind == 2:
            async with self._http.get(f"http://{server}/state?consistency=local") as answer:
                await answer.read()
                return str(answer.status)
        query = pack({"request": ["scan", ""]})
        async with self._http.post(f"http://{server}/query", data=query, headers=MSGPACK) as answer:
            await answer.read()
            return str(answer.status)

    async def _taker(self, server: str, chance: random.Random) -> str:
        """Ask for the most, and take nothing of it."""
        gets = pack({"commands": [["get", "long-1"]] * MOST_COMMANDS})
        head = "Host: localhost\r\nAccept: application/msgpack\r\n"
        post = f"{head}Content-Type: application/msgpack\r\nContent-Length: {len(gets)}\r\n\r\n".encode() + gets
        request = chance.choice(
            (
                b"POST /commands HTTP/1.1\r\n" + post,
                f"GET /state?consistency=local HTTP/1.1\r\n{head}\r\n".encode(),
                b"GET /records?from=1 HTTP/1.1\r\nHost: localhost\r\nAccept: application/vnd.quire.frames\r\n\r\n",
            )
        )
        return await self._held(server, request, HOLD_S, takes=False)

    async def _half_body(self, server: str, chance: random.Random) -> str:
        head = "POST /commands HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/msgpack\r\n"
        head += f"Content-Length: {BODY_BYTES}\r\n\r\n"
        return await self._held(server, head.encode() + bytes(BODY_BYTES // 2), HOLD_S, takes=True)

    async def _held(self, server: str, request: bytes, hold_s: float, *, takes: bool) -> str:
        """Send this, and then nothing, until an answer comes (if it takes any) or the node closes."""
        loop = asyncio.get_running_loop()
        with socket.socket() as caller:
            caller.setblocking(False)
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            caller.bind((ADDRESS, 0))
            await loop.sock_connect(caller, host_and_port(server))
            with suppress(TimeoutError):
                async with asyncio.timeout(hold_s):
                    await loop.sock_sendall(caller, request)
                    if takes:
                        return (await loop.sock_recv(caller, 64))[9:12].decode() or "closed"
                    await asyncio.Event().wait()
        return "held"

    async def _stream(self, server: str, chance: random.Random) -> str:
        session = chance.randrange(1 << 40, 1 << 41)
        if chance.random() < 0.3:
            async with self._http.post(f"http://{server}/sessions", data=pack({}), headers=MSGPACK) as answer:
                if answer.status == 200:
                    session = unpacked(await answer.read())["session"]
        url = f"http://{server}/commands/stream?session={session}"
        async with self._http.ws_connect(url, autoping=False) as stream:
            with suppress(TimeoutError):
                await stream.receive(timeout=HOLD_S)
                return "closed"
        return "held"

    async def _session(self, server: str, chance: random.Random) -> str:
        self._names += 1
        name = pack({"name": f"flood-{self._seed}-{self._names}"})
        async with self._http.post(f"http://{server}/sessions", data=name, headers=MSGPACK) as answer:
            await answer.read()
            return str(answer.status)

    async def _poll(self, server: str, chance: random.Random) -> str:
        url = f"http://{server}/records?shard={chance.randrange(65536)}/65536&wait_ms=60000"
        async with self._http.get(url) as answer:
            await answer.read()
            return str(answer.status)


async def _wait(seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), seconds)


async def _end_of_input() -> None:
    await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    """`python -m tests.overload.hostile SERVERS`, beside the nodes."""
    parser = argparse.ArgumentParser(prog="python -m tests.overload.hostile", description=__doc__)
    parser.add_argument("servers", help="HOST:PORT,...")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--only", action="append", choices=sorted(TASKS), help="this kind; may be given again")
    arguments = parser.parse_args()
    hostile = Hostile(arguments.servers.split(","), arguments.seed)
    answers = asyncio.run(hostile.run(arguments.only or sorted(TASKS), _end_of_input()))
    sys.stdout.write(json.dumps(answers) + "\n")


if __name__ == "__main__":
    main()
