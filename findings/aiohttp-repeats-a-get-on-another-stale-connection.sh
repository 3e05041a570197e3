#!/usr/bin/env bash
# aiohttp 3.14.5: what it sends again after a stale connection goes to the next kept connection, not to a new one.
#
# One would guess: a client session sends an idempotent request again if the kept connection that it took turns out
# to be closed, so a server that restarted costs no GET. One would also guess that this holds however many
# connections are kept.
#
# What happens: it sends again once, on the next connection of the pool, which was kept as long and is as stale. So
# of four connections to a server that lost them all at once, the first two GETs take two each and fail, and the
# third dials. With one kept connection no GET fails, which is what a test in the small shows. (The server here
# resets a connection when the next byte comes, as a machine that came back does.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check aiohttp==3.14.5

cat >"$folder/seen.py" <<'PYTHON'
import asyncio

import aiohttp

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server(asyncio.Protocol):
    """Answers once `awaited` requests are there; it has forgotten the connections that are older than `born`."""

    born = 0
    awaited = 0
    waiting = []

    def connection_made(self, transport):
        self.transport, self.made = transport, Server.born

    def data_received(self, data):
        if self.made < Server.born:
            self.transport.abort()
            return
        Server.waiting.append(self.transport)
        if len(Server.waiting) >= Server.awaited:
            for transport in Server.waiting:
                transport.write(ANSWER)
            Server.waiting.clear()


async def gets(kept):
    """What comes of GETs, one after the other, if so many connections were kept to a server that restarted."""
    Server.awaited, Server.born = kept, 0
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with aiohttp.ClientSession() as session:

        async def get():
            try:
                async with session.get(url) as response:
                    return await response.text()
            except aiohttp.ClientError:
                return "lost"

        await asyncio.gather(*(get() for _ in range(kept)))
        Server.awaited, Server.born = 1, 1
        seen = [await get() for _ in range(3)]
    server.close()
    return " ".join(seen)


async def main():
    for kept in (1, 2, 4):
        print(f"{kept} kept:", await gets(kept))


asyncio.run(main())
PYTHON

seen=$("$folder/venv/bin/python" "$folder/seen.py")
printf '%s\n' "$seen"
[ "$seen" = "1 kept: ok ok ok
2 kept: lost ok ok
4 kept: lost lost ok" ]
