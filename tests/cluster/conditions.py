"""Conditions that make a running cluster give its rare answers."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace

from quire.cluster.node.writing import Waiter
from quire.replication import Replica
from quire.replication.core.fitness import Fitness
from tests.cluster.running import RunningCluster


def replica_of(cluster: RunningCluster, at: str = "n1") -> Replica[Waiter]:
    components = cluster.nodes[at].node.formed
    assert components is not None
    return components.replica


@contextmanager
def core_limits(cluster: RunningCluster, **limits: int) -> Generator[None, None, None]:
    """Other limits for the leader's core while the block runs."""
    state = replica_of(cluster).core.state
    before = state.options
    state.options = replace(before, **limits)  # type: ignore[arg-type]  # mypy takes a limit for any option
    try:
        yield
    finally:
        state.options = before


def forget_fault(cluster: RunningCluster) -> None:
    """The leader is fit as if it had been for long; by itself it waits for two election timeouts and more."""
    state = replica_of(cluster).core.state
    state.fitness = Fitness(state.options.election_timeout_us)


@contextmanager
def held(cluster: RunningCluster, **limits: int) -> Generator[None, None, None]:
    """The leader accepts writes and appends none, as with a stalled disk."""
    with core_limits(cluster, uncommitted_bytes=0, **limits):
        yield
