"""A name server that answers as a test tells it to."""

import socket
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from threading import Event

from tests.ports import HOST

UNKNOWN = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
DEADLINE_S = 30.0


class NameServer:
    """Answers every lookup with `answer`, and none while it is silent."""

    def __init__(self, *addresses: str) -> None:
        self.answer: Sequence[str] | Exception = addresses or (HOST,)
        self.asked: list[str] = []
        self._speaks = Event()
        self._speaks.set()

    def look_up(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        self._speaks.wait(DEADLINE_S)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    @contextmanager
    def silent(self) -> Generator[None]:
        self._speaks.clear()
        try:
            yield
        finally:
            self._speaks.set()
