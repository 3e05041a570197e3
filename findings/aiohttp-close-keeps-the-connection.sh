#!/usr/bin/env bash
# aiohttp 3.14.5: `ClientResponse.close()` does not always close the connection.
#
# One would guess: its documentation says "Close response and underlying connection. For keep-alive support see
# release()", so after `close()` the next request dials again. A caller that has just seen something wrong in the
# head of an answer relies on that to get rid of the connection.
#
# What happens: if the whole body came with the head, the connection is back in the pool before the caller gets the
# response, `close()` has nothing left to close, and the next request uses the same connection. If the body came
# later, `close()` does close it. So the same code dials once or three times, depending on timing and size. In a
# middleware it is the same. What does close it in every case: a subclass of ClientResponse whose `start` keeps
# `connection.protocol` and closes that.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check aiohttp==3.14.5

cat >"$folder/seen.py" <<'PYTHON'
import asyncio

import aiohttp

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"


class Server(asyncio.Protocol):
    """Answers each request; the body comes with the head, or when the test says so."""

    opened = 0
    body_with_head = True

    def connection_made(self, transport):
        self.transport = transport
        Server.opened += 1

    def data_received(self, data):
        self.transport.write(HEAD + b"hello" if Server.body_with_head else HEAD)


async def connections(body_with_head):
    """How many connections three requests take, each closed by `close()` as soon as its head is there."""
    Server.opened, Server.body_with_head = 0, body_with_head
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with aiohttp.ClientSession() as session:
        for _ in range(3):
            response = await session.get(f"http://127.0.0.1:{port}/")
            response.close()
    server.close()
    return Server.opened


async def main():
    print("the body came with the head:", await connections(True))
    print("the body had not come yet:", await connections(False))


asyncio.run(main())
PYTHON

seen=$("$folder/venv/bin/python" "$folder/seen.py")
printf '%s\n' "$seen"
[ "$seen" = "the body came with the head: 1
the body had not come yet: 3" ]
