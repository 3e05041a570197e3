#!/usr/bin/env bash
# aiohttp 3.14.5: a server answers `Expect` before any middleware has seen the request.
#
# One would guess: `100 Continue` invites the body once somebody reads it, as in Go's net/http, so a middleware that
# refuses a caller (401) spares both sides the upload; and what is answered, whatever it is, has passed the middlewares,
# which may add headers, count, log, or turn errors into documents.
#
# What happens: the route's `expect_handler` runs before the middlewares. `100 Continue` is sent to a caller whom the
# middleware then refuses, and for a path that has no route. Another value of `Expect` is answered 417 in plain text, and
# no middleware runs at all: only the signal `on_response_prepare` sees that answer. So a limit that must come before
# `100 Continue`, or a form that all answers must have, needs an `expect_handler` on each route; and the answer for a
# path without a route cannot be changed that way, since its route is aiohttp's own.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check aiohttp==3.14.5

cat >"$folder/seen.py" <<'PYTHON'
import asyncio

from aiohttp import web

seen = []


@web.middleware
async def admit(request, handler):
    seen.append("middleware")
    if "Authorization" not in request.headers:
        raise web.HTTPUnauthorized
    return await handler(request)


async def take(request):
    return web.Response(body=await request.read())


async def prepared(request, response):
    seen.append(f"signal {response.status}")


async def lines(port, path, expect):
    """The first lines of the answer before the body was sent, and of the one after it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: {expect}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode())
    first = (await reader.readuntil(b"\r\n")).split()[1].decode()
    await reader.readuntil(b"\r\n")
    writer.write(b"hello")
    rest = await reader.read()
    writer.close()
    return first, "401" if b"401 Unauthorized" in rest else "-"


async def main():
    app = web.Application(middlewares=[admit])
    app.router.add_post("/", take)
    app.on_response_prepare.append(prepared)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    for path in ("/", "/nowhere"):
        for expect in ("100-continue", "200-ok"):
            seen.clear()
            first, then = await lines(port, path, expect)
            print(f"{path} {expect}: {first}, then {then}; seen by {', '.join(seen)}")
    await runner.cleanup()


asyncio.run(main())
PYTHON

cat >"$folder/expected" <<'TEXT'
/ 100-continue: 100, then 401; seen by middleware, signal 401
/ 200-ok: 417, then -; seen by signal 417
/nowhere 100-continue: 100, then 401; seen by middleware, signal 401
/nowhere 200-ok: 417, then -; seen by signal 417
TEXT
"$folder/venv/bin/python" "$folder/seen.py" >"$folder/output"
cat "$folder/output"
diff "$folder/expected" "$folder/output"
echo "as described: aiohttp 3.14.5 answers Expect before the middlewares"
