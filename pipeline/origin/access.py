"""What a process shows to the nodes of a cluster, a token, and what it demands of them: a certificate of its CA.

Jobs and tasks get the paths of the files, never their content: Spark shows options on its pages and writes them to its
logs. Each process reads the files on its own host, which errors name.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

from quire.cluster.access.client_credentials import ClientCredentials, Shown, TokenRefused
from quire.cluster.access.tls import TlsRefused

from ..errors import AccessRefused


@dataclass(frozen=True, slots=True)
class Access:
    """Where the files are, on every host; without a CA, connections are plain HTTP."""

    token_file: str | None = None
    ca: str | None = None

    def credentials(self) -> ClientCredentials:
        """What is in the files on this host.

        Raises:
            AccessRefused: one of them cannot be used.
        """
        try:
            return ClientCredentials(None if self.token_file is None else Path(self.token_file), self.ca)
        except (TokenRefused, TlsRefused, ValueError) as error:
            raise AccessRefused(socket.gethostname(), str(error)) from None


PLAIN = Access()


class NodeConnection(HTTPConnection):
    """A connection to a node, which must prove the cluster's name before anything is sent."""

    def __init__(self, server: str, shown: Shown) -> None:
        host, _, port = server.rpartition(":")
        super().__init__(host.strip("[]"), int(port))
        self.shown = shown

    def wait(self, timeout: float) -> None:
        """Wait so many seconds for each read from now on: a kept connection has the deadline of an earlier request."""
        self.timeout = timeout
        if self.sock is not None:
            self.sock.settimeout(timeout)

    def connect(self) -> None:
        super().connect()
        if self.shown.context is not None:
            self.sock = self.shown.context.wrap_socket(self.sock, server_hostname=self.shown.server_name)
