"""Which origin a request counts against, and how much of a limit one origin may use.

One address gets at most half of each limit, so that it cannot lock everybody else out. A member that forwards requests
carries those of many clients, so they count against the member, not against its address.
"""

from ipaddress import AddressValueError, IPv6Address
from typing import Any

from quire.replication.address import host_of

from ...errors import Overloaded

SHARES = 2  # Of each limit; one address gets one.
LEAST_SHARE = 256  # Connections, streams or long polls: clients behind one proxy, or on one machine.
LEAST_SHARE_BYTES = 32 << 20
NETWORK_BITS = 64  # An IPv6 host can use any number of addresses in a network of this size.


def address_of(peername: Any) -> str:
    """The address of a socket's peer. IPv6 addresses count by their network, IPv4-mapped ones as IPv4."""
    host = host_of(str(peername[0]) if isinstance(peername, tuple) and peername else str(peername))
    if ":" not in host:
        return host
    try:
        address = IPv6Address(host.partition("%")[0])
    except AddressValueError:
        return host
    network = int(address) >> (128 - NETWORK_BITS) << (128 - NETWORK_BITS)
    return f"{IPv6Address(network)}/{NETWORK_BITS}"


def share_of(limit: int, least: int = LEAST_SHARE) -> int:
    """How much of a limit one address may have. A limit up to `least` is not divided."""
    return max(limit // SHARES, min(limit, least))


def full(limit: int, what: str, *, is_whole: bool, least: int = LEAST_SHARE) -> Overloaded:
    """The refusal of one more: the whole limit is taken, or one address's share of it."""
    most, of_one = (limit, "") if is_whole else (share_of(limit, least), " for one caller")
    return Overloaded(f"at most {most:,} {what}{of_one}")
