"""The address of a node: HOST:PORT.

An IPv4-mapped IPv6 address such as `::ffff:127.0.0.1` is treated as the IPv4 address everywhere, since a dual-stack
socket shows its IPv4 callers that way.
"""

import re
from ipaddress import IPv4Address, IPv6Address, ip_address

MAX_ADDRESS = 300
MAX_HOST = 253
_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")
_NUMBERS = re.compile(r"([0-9.]*\.)?[0-9]+\.?")  # No host name ends like this: it is an IPv4 address, or invalid.


def host_and_port(address: str) -> tuple[str, int]:
    """Split HOST:PORT; the host is as `host_of` returns it, without the brackets of IPv6. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not _is_host(host) or not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        shown = repr(address[:MAX_ADDRESS])
        raise ValueError(f"{shown} is not HOST:PORT with a port from 1 to 65535; write it as in 127.0.0.1:7001")
    return host_of(host.strip("[]")), int(port)


def _is_host(host: str) -> bool:
    """Whether it is an IP address, with brackets for IPv6, or a possible name."""
    if host.startswith("[") and host.endswith("]"):
        return "%" not in host and ":" in host and _ip_address(host[1:-1]) is not None
    if _NUMBERS.fullmatch(host):
        return _ip_address(host) is not None
    return len(host) <= MAX_HOST and _NAME.fullmatch(host) is not None


def host_of(host: str) -> str:
    """The host; an IP address in its shortest form, an IPv4-mapped one as IPv4."""
    address = _ip_address(host) if ":" in host else None
    return host if address is None else str(address)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach that host: a loopback address or localhost. No name is looked up."""
    address = _ip_address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def may_serve(listen: str, address: str) -> bool:
    """Whether a node that listens on `listen` may be the one that others reach at `address`.

    The ports must be equal. So must two IP addresses, but `0.0.0.0` stands for every IPv4 address and `[::]` for every
    address. A host name may have any address: no name is looked up.
    """
    (own, own_port), (host, port) = host_and_port(listen), host_and_port(address)
    listening, reached = _ip_address(own), _ip_address(host)
    if own_port != port or listening is None or reached is None or listening == reached:
        return own_port == port
    return listening.is_unspecified and (listening.version == 6 or reached.version == 4)


def is_name(host: str) -> bool:
    """Whether it is a name that must be resolved, and no IP address."""
    return _ip_address(host) is None


def _ip_address(host: str) -> IPv4Address | IPv6Address | None:
    """The host as an IP address, None if it is a name."""
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def is_address(address: object) -> bool:
    """Whether the address may be dialled: it is HOST:PORT, and not a URL with another path."""
    if type(address) is not str or len(address) > MAX_ADDRESS:
        return False
    try:
        host_and_port(address)
    except ValueError:
        return False
    return True


def is_here(address: str) -> bool:
    """Whether HOST:PORT is on this machine, by a loopback address."""
    return is_address(address) and is_loopback(host_and_port(address)[0])
