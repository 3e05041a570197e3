"""The parts of a scenario: the cluster's shape, which faults happen when, and the load of the clients."""

from __future__ import annotations

from dataclasses import dataclass

from tests.faults.actions import Action


@dataclass(frozen=True)
class Step:
    """At so many seconds after the disturbance began; what actions waited for is not counted."""

    at_s: float
    action: Action


@dataclass(frozen=True)
class Shape:
    """What a cluster is like: scenarios of one shape share one, one after the other."""

    size: int = 3
    volumes: bool = False
    """Whether each node has a small file system of its own, in memory, and segments as small."""
    expiring: bool = False
    """Whether voters' logs expire soon. An observer is added then whose log does not: all is judged by that one."""


@dataclass(frozen=True)
class Scenario:
    """One way for things to go wrong. After `lasting_s` everything is healed."""

    name: str
    steps: tuple[Step, ...]
    lasting_s: float = 1.5
    shape: Shape = Shape()
    bulk: bool = False
    """Whether a writer of megabytes works beside the clients."""
    permanent: tuple[str, ...] = ()
    """The permanent faults of a minority. The healthy majority must make progress until all are healed."""


def scenario(
    name: str, *actions: Action | Step, lasting_s: float = 1.5, shape: Shape = Shape(), bulk: bool = False
) -> Scenario:
    """A scenario whose actions happen at once, or when a step says."""
    steps = tuple(action if isinstance(action, Step) else Step(0.0, action) for action in actions)
    return Scenario(name, steps, lasting_s, shape, bulk)
