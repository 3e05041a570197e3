"""The health check of a container: `python -m quire.cluster.serve.healthcheck` asks its node whether it is ready.

It reads QUIRE_LISTEN, and with TLS QUIRE_TLS_CERT, QUIRE_TLS_KEY and QUIRE_TLS_CA, as the node does, and verifies that
the answer comes from a node of its own cluster. It needs no token. The exit code is 0 once /readyz answers 200, else 1.

It runs every few seconds beside the node, so it imports little.
"""

import os
import sys
from collections.abc import Mapping
from contextlib import closing
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from ..access.tls import Tls, TlsFiles, TlsRefused, load_tls, name_of_cluster
from ..errors import ClusterError
from ..terminal import escaped

TIMEOUT_S = 2.0
ANSWER_BYTES = 64 << 10
LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # What to dial for a wildcard.
FILES = ("QUIRE_TLS_CERT", "QUIRE_TLS_KEY", "QUIRE_TLS_CA")


class NodeNotReady(ClusterError):
    """The node does not answer, or is not ready; the text says why."""


def check(variables: Mapping[str, str]) -> None:
    """Return if the node that these variables configure is ready.

    Raises:
        NodeNotReady: it is not, or does not answer.
    """
    host, _, port = variables.get("QUIRE_LISTEN", "").rpartition(":")
    if not port.isdecimal():
        raise NodeNotReady("QUIRE_LISTEN is not set to HOST:PORT; set it for the container, where this check reads it")
    host = host.strip("[]")
    try:
        tls = _tls_of(variables)
        connection = HTTPConnection(LOOPBACK.get(host, host), int(port), timeout=TIMEOUT_S)
        with closing(connection):
            connection.connect()
            if tls is not None:
                name = name_of_cluster(tls.cluster)
                connection.sock = tls.dialling.wrap_socket(connection.sock, server_hostname=name)
            connection.request("GET", "/readyz")
            answer = connection.getresponse()
            body = answer.read(ANSWER_BYTES)
    except (OSError, HTTPException, TlsRefused) as error:
        raise NodeNotReady(f"{host}:{port}: {error}") from None
    if answer.status != HTTPStatus.OK:
        raise NodeNotReady(f"{host}:{port} answered {answer.status}: {body.decode(errors='replace')}")


def _tls_of(variables: Mapping[str, str]) -> Tls | None:
    files = [Path(variables[name]) for name in FILES if variables.get(name)]
    if not files:
        return None
    if len(files) < len(FILES):
        raise NodeNotReady(f"only some of {', '.join(FILES)} are set; set all of them, or none")
    return load_tls(TlsFiles(*files))


def main() -> int:
    """Check the node of this process's environment; return the exit code."""
    try:
        check(os.environ)
    except NodeNotReady as error:
        print(f"quire: {escaped(str(error))}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
