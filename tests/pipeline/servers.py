"""Servers that answer as nodes do, or as no node should."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from quire.cluster.request_id import REQUEST_ID
from quire.log.frames import FrameHeader, walk_headers
from tests.pipeline.logs import CLUSTER

Told = tuple[int, bytes]
"""Status and body."""
SILENT: Told = (503, b"{}")
Answers = Mapping[str, Told | Callable[[dict[str, int]], Told]]


@contextmanager
def serving(
    answers: Answers,
    *,
    tls: ssl.SSLContext | None = None,
    tokens: Collection[str] = (),
    doubles: bool = False,
    port: int = 0,
) -> Generator[str]:
    """A server that answers each path, always the same or by the query's numbers; its address.

    With `tokens`, callers must show one of them. If it `doubles`, a copy of each answer comes before the next one.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        previous = b""

        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            answer = answers.get(asked.path, (404, b"{}"))
            if callable(answer):
                answer = answer({name: int(number) for name, [number] in parse_qs(asked.query).items()})
            status, body = answer
            if tokens and self.headers.get("Authorization", "").removeprefix("Bearer ") not in tokens:
                status, body = 401, b'{"detail": "the token is not known"}'
            request_id = self.headers.get(REQUEST_ID, "")
            head = f"HTTP/1.1 {status} -\r\nContent-Length: {len(body)}\r\n{REQUEST_ID}: {request_id}\r\n\r\n"
            whole = head.encode() + body
            self.wfile.write(self.previous + whole)
            if doubles:
                self.previous = whole

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            if tls is None:
                super().handle_error(request, client_address)

    server = Server(("127.0.0.1", port), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def answers_of(
    cluster_id: bytes = CLUSTER,
    records: Told | Callable[[dict[str, int]], Told] = SILENT,
    lowest: int = 0,
    highest: int = 100,
) -> dict[str, Told | Callable[[dict[str, int]], Told]]:
    """What a node of a cluster of one answers, with the records up to `highest`."""
    return {
        "/status": members(cluster_id=cluster_id),
        "/index_bounds": bounds(lowest, highest),
        "/records": records,
    }


def members(*addresses: str, leader: int = -1, observer: int = -1, cluster_id: bytes = CLUSTER) -> Told:
    """What `/status` says of the members at these addresses, n0 and so on, of which two are named by their place."""
    rows = [
        {"node_id": f"n{place}", "address": address, "role": "observer" if place == observer else "voter"}
        for place, address in enumerate(addresses)
    ]
    status = {"node_id": "n1", "cluster_id": cluster_id.hex(), "leader": f"n{leader}", "members": rows}
    return 200, json.dumps(status).encode()


def bounds(lowest: int, highest: int) -> Told:
    """What `/index_bounds` says."""
    return 200, json.dumps({"lowest_index": lowest, "highest_index": highest}).encode()


def pages(raw: bytes, *, answers: int = 1 << 30, lowest: int = 0) -> Callable[[dict[str, int]], Told]:
    """The frames of a log as a node gives them, or the boundaries among them, from the one that holds `from` on.

    After so many answers, there is none. What is below `lowest` has expired.
    """
    left, frames = answers, list[tuple[int, FrameHeader]]()

    def answer(asked: dict[str, int]) -> Told:
        nonlocal left, frames
        left -= 1
        if left < 0:
            return SILENT
        if asked["from"] < lowest:
            return 410, b'{"detail": "it has expired"}'
        frames = frames or list(walk_headers(raw))
        held = [
            (offset, header)
            for offset, header in frames
            if header.next_index > asked["from"] and header.index < asked.get("to", header.next_index)
        ]
        if "boundaries" in asked:
            return 200, json.dumps({"boundaries": _boundaries(held, asked)}).encode()
        fits = [
            offset + header.size for offset, header in held if offset + header.size - held[0][0] <= asked["max_bytes"]
        ]
        return 200, raw[held[0][0] : max([held[0][0] + held[0][1].size, *fits])]

    return answer


def _boundaries(held: list[tuple[int, FrameHeader]], asked: dict[str, int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    index = size = 0
    for _, header in held:
        if size and size + header.size > asked["boundaries"]:
            found.append((index, size))
            size = 0
        index, size = header.next_index, size + header.size
    return [*found, (index, size)][: asked.get("limit")] if held else []
