"""A replicated state-machine cluster: one log, and on every node the same answer."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quire.cluster.client import connect as connect

__version__ = "0.1.0"
__all__ = ["__version__", "connect"]


def __getattr__(name: str) -> object:
    # Lazily: a node, a Spark worker or a tool that reads a log imports quire, too, and needs no client.
    if name != "connect":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from quire.cluster.client import connect  # noqa: PLC0415

    return connect
