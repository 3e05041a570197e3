"""The simulated network lets nothing through where it is cut or silent: else no fault there would be one for good."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from quire.cluster.simulator.clock import Schedule
from quire.cluster.simulator.network import Link, Network, Pipe, Weather
from quire.replication.core import Promise, events
from quire.replication.core.messages import Heartbeat


@dataclass
class Listener:
    """A node that counts what it hears."""

    node_id: str
    disk_id: bytes = bytes(16)
    life: int = 1
    history: bytes = bytes(16)
    runs: bool = True
    code: bytes = b""
    upstreams: dict[int, Any] = field(default_factory=dict)
    downstreams: dict[int, Any] = field(default_factory=dict)
    heard: list[events.Event] = field(default_factory=list)

    def run(self, life: int, call: Callable[..., None], *arguments: Any) -> None:
        call(*arguments)

    def step(self, event: events.Event) -> None:
        self.heard.append(event)

    def snapshot_part(self, index: int, number: int | None) -> bytes | None:
        raise AssertionError("nobody asks for a snapshot")

    def next_stream_id(self) -> int:
        raise AssertionError("nobody opens a stream")


def heard(weather: Weather, hinder: Callable[[Network, Listener], None]) -> int:
    """How much n2 hears of 20 messages from n1, after something happened between them."""
    schedule = Schedule()
    network = Network(schedule, Random(1), weather)
    n1, n2 = Listener("n1"), Listener("n2")
    pipe = Pipe(network, "n1", "n2")
    network.ends = {"n1": n1, "n2": n2}
    network.links["n1", "n2"] = Link(n1, n2, pipe, pipe, 1, 1)
    hinder(network, n2)
    for sequence in range(20):
        network.send(n1, "n2", Heartbeat(Promise(1, "n1", 1), sequence, 0))
    while schedule.run_next():
        pass
    return len(n2.heard)


def test_every_message_may_arrive_twice() -> None:
    assert heard(Weather(double_chance=1.0), lambda network, n2: None) == 40


@pytest.mark.parametrize(
    "hinder",
    [
        pytest.param(lambda network, n2: network.begin_cut([("n1", "n2")], breaks=False), id="cut"),
        pytest.param(lambda network, n2: network.silence(n2, links=True, streams=True), id="silent"),
    ],
)
def test_nothing_arrives_where_nothing_comes_through_not_even_twice(
    hinder: Callable[[Network, Listener], None],
) -> None:
    assert heard(Weather(double_chance=1.0), hinder) == 0
