"""A replicated state machine: one durable log, and the same state on every node."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quire.cluster.client import connect as connect
    from quire.cluster.client import connect_sync as connect_sync

__version__ = "0.1.0"
__all__ = ["__version__", "connect", "connect_sync"]


def __getattr__(name: str) -> object:
    # Lazily, because a node, a Spark worker or a tool that reads a log imports quire without needing the client.
    if name not in ("connect", "connect_sync"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("quire.cluster.client"), name)


class QuireError(Exception):
    """The base of each package's errors. A copy, even a pickled one, has the same type, text and fields."""

    def __reduce__(self) -> tuple[object, ...]:
        return _restored, (type(self), self.args), self.__dict__ or None


def _restored(kind: type[QuireError], arguments: tuple[object, ...]) -> QuireError:
    """An error without its fields, as `Exception` creates it: its own constructor's arguments are not in `args`."""
    error = kind.__new__(kind)
    error.args = arguments
    return error
