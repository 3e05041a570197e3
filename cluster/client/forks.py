"""After a fork, an open client belongs to the parent: the child gets no descriptors, and its calls fail at once.

The child has a copy of every object, but not the thread that runs a blocking client's loop, so a call would never
return. And it shares the parent's descriptors: a close frame on the copied socket would end the parent's stream, a
change to the copied epoll would hide the parent's sockets from it, and finalizers do both. So the child replaces each
with /dev/null: anything that still uses the number, then or when the child exits, fails without effect. (If it closed
them, files of the child could get these numbers, and a finalizer would close those.)
"""

import os
import socket
from collections.abc import Iterable
from typing import Protocol
from weakref import WeakSet

from aiohttp import AddrInfoType

from .errors import ForkedClient


class Forkable(Protocol):
    """The clients, sockets and selectors that are open in this process but must not be used in its children."""

    def forked(self) -> None:
        """Called in a child, which has one thread: close the copied descriptors and forget what was opened."""
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
        """In a child: close the copies of all open sockets."""
        leave_to_parent(self._open)


def leave_to_parent(holders: Iterable[HoldsDescriptor]) -> None:
    """In a child: replace each copied descriptor with /dev/null."""
    for holder in holders:
        descriptor = holder.fileno()
        if descriptor >= 0:
            os.close(descriptor)  # First: a process at its limit of descriptors can open this one again.
            nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            if nothing != descriptor:
                os.dup2(nothing, descriptor, inheritable=False)
                os.close(nothing)


def refuse_fork(opened_in: int | None) -> None:
    """Raise ForkedClient if the client was opened in another process. None means that it is not open."""
    if opened_in is not None and opened_in != os.getpid():
        raise ForkedClient(opened_in)


_open: WeakSet[Forkable] = WeakSet()


def opened(what: Forkable) -> None:
    """Call its `forked` in every child, until `closed` or it is collected."""
    _open.add(what)


def closed(what: Forkable) -> None:
    """Forget it: it has closed everything."""
    _open.discard(what)


def _forked() -> None:
    for what in tuple(_open):
        what.forked()
    _open.clear()


os.register_at_fork(after_in_child=_forked)
