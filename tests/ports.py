"""Ports of this machine for tests: what one was given, no other test process is given, though nobody listens there yet.

All lie below the ephemeral port range. Above it the kernel could give a cut link's port to somebody else, or connect a
client that retries on a cut link of this machine to itself.

Between the moment in which a port is given and that in which a node listens there others look for one, too: links and
routers of the same cluster, and clusters of another process beside this. So a process takes its ports from blocks that
are its own while it listens on the first port of each, and gives every port of a block once.
"""

import random
import socket
import threading
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from itertools import cycle, islice
from pathlib import Path

HOST = "127.0.0.1"
LOWEST_PORT = 20_000
BLOCK = 128
"""More than a cluster and its links take at once."""
BLOCKS_HELD = 2
"""Before the oldest is given up; its turn comes again behind all others."""


class NoPort(Exception):
    """Every block is somebody's."""


def _blocks() -> list[int]:
    lowest_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    return list(range(LOWEST_PORT, max(lowest_ephemeral, LOWEST_PORT + 8 * BLOCK) - BLOCK, BLOCK))


def ports_of(blocks: Sequence[int]) -> Generator[int]:
    """Ports of blocks that begin there, one after the other, until it is closed. Raises NoPort."""
    missed = 0
    with ExitStack() as held:
        oldest: deque[socket.socket] = deque()
        for base in cycle(random.sample(blocks, len(blocks))):
            try:
                oldest.append(held.enter_context(socket.create_server((HOST, base))))
            except OSError:
                missed += 1
                if missed == len(blocks):
                    raise NoPort(f"none of {missed} blocks of ports from {blocks[0]} on is free") from None
                continue
            missed = 0
            if len(oldest) > BLOCKS_HELD:
                oldest.popleft().close()
            yield from filter(_is_free, range(base + 1, base + BLOCK))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


_lock = threading.Lock()
_given = ports_of(_blocks())


def free_ports(count: int) -> list[int]:
    """Different ports on which nobody listens, and which nobody else is given soon. Raises NoPort."""
    with _lock:
        return list(islice(_given, count))


def free_port() -> int:
    """One of them. Raises NoPort."""
    return free_ports(1)[0]
