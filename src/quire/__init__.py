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
