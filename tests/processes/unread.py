"""Outputs that nobody reads: what is written there blocks."""

import os
import pty
import select
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def full_pipe() -> Generator[int]:
    """The writing end of a pipe without room."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, bytes(4096))
    except BlockingIOError:
        os.set_blocking(writing, True)
    yield writing
    os.close(reading)
    os.close(writing)


@contextmanager
def stopped_terminal() -> Generator[int]:
    """A terminal after Ctrl-S."""
    screen, terminal = pty.openpty()
    os.write(screen, b"\x13")
    room = select.poll()
    room.register(terminal, select.POLLOUT)
    while room.poll(0):
        pass
    yield terminal
    os.close(screen)
    os.close(terminal)
