"""Machines that tests run nodes with."""

from collections.abc import Iterable, Iterator
from typing import Any

from quire.sm import Context


class Long:
    """A machine whose state is long."""

    name = "long"
    version = 1

    def __init__(self, initial: Any) -> None:
        self._state = "x" * 2000

    def check(self, command: Any) -> None:
        """Everything is a command."""

    def apply(self, command: Any, context: Context) -> Any:
        """Change nothing."""
        return None

    def query(self, request: Any) -> Any:
        """The long state."""
        return self._state

    def snapshot(self) -> Iterator[bytes]:
        """The state as bytes."""
        return iter((self._state.encode(),))

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Take it back."""
        self._state = b"".join(chunks).decode()
