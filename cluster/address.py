"""The address of a node: HOST:PORT."""

import re

_HOST = re.compile(r"\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+")


def host_and_port(address: str) -> tuple[str, int]:
    """Split HOST:PORT; the brackets of an IPv6 address are removed. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not _HOST.fullmatch(host) or not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise ValueError(f"{address!r} is not HOST:PORT with a port from 1 to 65535; write it as in 127.0.0.1:7001")
    return host.strip("[]"), int(port)
