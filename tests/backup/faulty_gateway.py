"""A proxy before an S3 gateway that fails, by the number of the request."""

import http.client
import shutil
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import cast

from tests.backup.gateway import Gateway
from tests.ports import HOST


class Fault(StrEnum):
    """What becomes of a request."""

    NONE = "none"
    REFUSED = "refused"
    """503: nothing is done."""
    DROPPED = "dropped"
    """The connection closes before anything is done."""
    UNANSWERED = "unanswered"
    """It is done, and the connection closes without an answer: the client asks again."""
    CUT = "cut"
    """It is done, and half of the answer comes."""
    HALTED = "halted"
    """It is done, half of the answer comes, and nothing more until the proxy ends."""
    STALLED = "stalled"
    """Nothing is done, and nothing comes until the proxy ends."""
    FORGOTTEN = "forgotten"
    """A PUT is answered with 200, and not done."""
    REPLACED = "replaced"
    """A put that should create replaces what is there."""
    LACKING = "lacking"
    """501: the store does not know what is asked of it."""


Choose = Callable[[int, str, str], Fault]
"""Gets the number of a request from 0, its method and its path."""


class FaultyGateway:
    """A running proxy. `choose` may be replaced at any time."""

    def __init__(self, gateway: Gateway) -> None:
        self.target = gateway.port
        self._root = gateway.folder.parents[1]
        self.choose: Choose = lambda number, method, path: Fault.NONE
        self.requests: list[tuple[str, str]] = []
        self.ended = threading.Event()
        self._lock = threading.Lock()
        self._server = _Server((HOST, 0), _Handler)
        self._server.proxy = self
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def fault_of(self, method: str, path: str) -> Fault:
        with self._lock:
            self.requests.append((method, path))
            return self.choose(len(self.requests) - 1, method, path)

    def forget(self, path: str) -> None:
        """Remove an object behind the gateway's back, so that a put finds nothing there."""
        key = path.partition("?")[0].lstrip("/")
        (self._root / "root" / key).unlink(missing_ok=True)
        shutil.rmtree(self._root / "sidecar" / key, ignore_errors=True)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    proxy: FaultyGateway


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def proxy(self) -> FaultyGateway:
        return cast(_Server, self.server).proxy

    def do(self) -> None:
        proxy, body = self.proxy, self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = proxy.fault_of(self.command, self.path)
        self.close_connection = True
        match fault:
            case Fault.REFUSED:
                self._answer(503, b"<Error><Code>SlowDown</Code></Error>")
            case Fault.LACKING:
                self._answer(501, b"<Error><Code>NotImplemented</Code></Error>")
            case Fault.FORGOTTEN if self.command == "PUT":
                self._answer(200, b"", {"ETag": '"00000000000000000000000000000000"'})
            case Fault.DROPPED:
                pass
            case Fault.STALLED:
                proxy.ended.wait()
            case _:
                if fault is Fault.REPLACED and self.command == "PUT":
                    proxy.forget(self.path)
                status, headers, content = self._forwarded(body)
                if fault is not Fault.UNANSWERED:
                    halved = fault in (Fault.CUT, Fault.HALTED)
                    self._answer(status, content, headers, len(content) // 2 if halved else None)
                if fault is Fault.HALTED:
                    proxy.ended.wait()

    def _forwarded(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(HOST, self.proxy.target, timeout=60)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                connection.putheader(name, value)  # The signature covers them, Host among them.
            connection.endheaders(body)
            got = connection.getresponse()
            return got.status, dict(got.getheaders()), got.read()
        finally:
            connection.close()

    def _answer(
        self, status: int, content: bytes, headers: dict[str, str] | None = None, cut: int | None = None
    ) -> None:
        self.send_response_only(status)
        given = headers or {}
        own = ("content-length", "transfer-encoding", "connection")
        kept = {name: value for name, value in given.items() if name.lower() not in own}
        length = given.get("Content-Length", "0") if self.command == "HEAD" else str(len(content))
        for name, value in {**kept, "Content-Length": length, "Connection": "close"}.items():
            self.send_header(name, value)
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(content[:cut])

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


for _method in ("GET", "PUT", "POST", "HEAD", "DELETE"):
    setattr(_Handler, f"do_{_method}", _Handler.do)


@contextmanager
def faulty_gateway(gateway: Gateway) -> Generator[FaultyGateway]:
    """A proxy before a gateway, without faults until it is told some."""
    proxy = FaultyGateway(gateway)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()
