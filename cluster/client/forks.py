"""A fork leaves an open client to the parent: the child gets none of its descriptors, and its calls fail at once.

The child has a copy of every object, but not the thread that runs a blocking client's loop: a call would wait for ever.
And its descriptors are the parent's. A close frame on the copied socket would end the parent's stream, a change of the
copied epoll would make the parent deaf to its own sockets, and finalizers do both. So the child puts /dev/null in the
place of each: what still uses the number, then or when the child exits, fails without effect. (Closing would free the
number for a file of the child's, which a finalizer would close.)
"""

import os
import socket
from collections.abc import Iterable
from typing import Protocol
from weakref import WeakSet

from aiohttp import AddrInfoType

from .errors import ForkedClient


class Forkable(Protocol):
    """What is open in this process, and not in its children."""

    def forked(self) -> None:
        """This process is a child, and has one thread: close the copied descriptors, and forget what was opened."""
        ...


class HoldsDescriptor(Protocol):
    """A socket or selector."""

    def fileno(self) -> int: ...


class Sockets:
    """The sockets of one client."""

    def __init__(self) -> None:
        self._open: WeakSet[socket.socket] = WeakSet()

    def create(self, address: AddrInfoType) -> socket.socket:
        """A new socket for an address: aiohttp's `socket_factory`."""
        family, kind, protocol, _, _ = address
        created = socket.socket(family, kind, protocol)
        self._open.add(created)
        return created

    def leave_to_parent(self) -> None:
        """In a child: close the copies of all that are open."""
        leave_to_parent(self._open)


def leave_to_parent(holders: Iterable[HoldsDescriptor]) -> None:
    """In a child: put /dev/null in the place of each descriptor that was copied."""
    for holder in holders:
        descriptor = holder.fileno()
        if descriptor >= 0:
            os.close(descriptor)  # First: a process at its limit of descriptors can open this one again.
            nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            if nothing != descriptor:
                os.dup2(nothing, descriptor, inheritable=False)
                os.close(nothing)


def refuse_fork(opened_in: int | None) -> None:
    """Raise ForkedClient if the client was opened in another process; None: it is not open."""
    if opened_in is not None and opened_in != os.getpid():
        raise ForkedClient(opened_in)


_open: WeakSet[Forkable] = WeakSet()


def opened(what: Forkable) -> None:
    """Call its `forked` in every child, until `closed` or it is collected."""
    _open.add(what)


def closed(what: Forkable) -> None:
    """It has nothing open any more."""
    _open.discard(what)


def _forked() -> None:
    for what in tuple(_open):
        what.forked()
    _open.clear()


os.register_at_fork(after_in_child=_forked)
