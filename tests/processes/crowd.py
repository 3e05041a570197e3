"""Clients in a thread beside a test."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from tests.processes.cluster import DEADLINE_S
from tests.verdict.verdict import History


class Crowd(ABC):
    """Clients of one event loop. Used in a `with`, they are told to end whatever happens inside.

    What one of them dies of ends all, and is raised where the test asks for anything of them. What they are told is in
    `history`.
    """

    longest_s = DEADLINE_S
    """What a client may need to end what it does."""

    def __init__(self) -> None:
        self.history = History()
        self._ending = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._tell_to_end()

    @property
    def is_ending(self) -> bool:
        """Whether the clients are to begin nothing more."""
        return self._ending.is_set()

    def raise_failure(self) -> None:
        """Raise what a client died of, if one did."""
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        """Let every client end what it does. Raises what one died of."""
        self._tell_to_end()
        self.raise_failure()
        assert not self._thread.is_alive(), f"{self._thread.name} did not end within {self.longest_s:g} s"

    @abstractmethod
    async def _all(self) -> None:
        """What they do, until `is_ending`."""

    def _tell_to_end(self) -> None:
        self._ending.set()
        self._thread.join(self.longest_s)

    def _run(self) -> None:
        try:
            asyncio.run(self._all())
        except BaseExceptionGroup as group:
            self._failure = group.exceptions[0]
        except BaseException as error:  # noqa: BLE001  # Raised again where the test asks.
            self._failure = error
