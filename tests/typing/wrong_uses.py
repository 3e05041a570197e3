"""Wrong uses of the public interface. mypy must refuse each with the error that its comment names."""

from collections.abc import Iterator
from typing import Any

import quire
from quire.cluster.client import BlockingClient, Client, State
from quire.log import Log, MemoryDirectory
from quire.sm import StateMachine, check_batch


async def awaiting(cluster: Client) -> None:
    """A call that is not awaited is no result."""
    index: int = cluster.append("value")  # type: ignore[assignment]
    state: State = cluster.state()  # type: ignore[assignment]
    del index, state


async def arguments(cluster: Client) -> None:
    """Words and numbers of the wrong kind."""
    await cluster.state("strong")  # type: ignore[arg-type]
    await cluster.query(None, "eventual")  # type: ignore[arg-type]
    await cluster.read("7")  # type: ignore[arg-type]
    await cluster.apply_batch(7)  # type: ignore[arg-type]
    await cluster.expire("127.0.0.1:7001", True)  # type: ignore[call-arg]


def connecting() -> None:
    """Servers are a string or a sequence; options go by name; each client has its own way of opening."""
    quire.connect(7001)  # type: ignore[arg-type]
    quire.connect("127.0.0.1:7001", "billing")  # type: ignore[call-arg]
    with quire.connect("127.0.0.1:7001") as cluster:  # type: ignore[attr-defined]
        del cluster


async def opening() -> None:
    """The blocking client does not open with `async with`."""
    async with quire.connect_sync("127.0.0.1:7001") as cluster:  # type: ignore[attr-defined]
        del cluster


def blocking(cluster: BlockingClient) -> None:
    """Blocking calls are not awaited, and their results are immutable."""
    total: str = cluster.append("value")  # type: ignore[assignment]
    state = cluster.state()
    state.applied_index = 7  # type: ignore[misc]
    del total


class NoSnapshots:
    """A machine without `snapshot` and `restore`."""

    name = "no-snapshots"
    version = 1

    def __init__(self, initial: Any) -> None:
        self.initial = initial

    def check(self, command: Any) -> None:
        """Take everything."""

    def apply(self, command: Any, context: Any) -> None:
        """Do nothing."""

    def query(self, request: Any) -> None:
        """Answer nothing."""


class SnapshotOfText(NoSnapshots):
    """A machine whose snapshot is text instead of bytes."""

    def snapshot(self) -> Iterator[str]:
        """Not bytes."""
        yield "text"

    def restore(self, chunks: Any) -> None:
        """Read nothing."""


def machines() -> None:
    """A machine has every method of the protocol, with its types."""
    machine: StateMachine = NoSnapshots(None)  # type: ignore[assignment]
    check_batch(SnapshotOfText(None), [])  # type: ignore[arg-type]
    del machine


def logs(log: Log) -> None:
    """A log needs a clock and a cluster id, and appends sequences."""
    Log.open(MemoryDirectory(), standalone=True)  # type: ignore[call-arg]
    log.append(7)  # type: ignore[arg-type]
    log.append(["value"], 0)  # type: ignore[call-arg]
    log.durable_index = 7  # type: ignore[misc]
