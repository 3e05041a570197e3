"""What a node counts and shows to Prometheus. Nearly all of it is read from the node when it is scraped."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from quire.replication import Placed, Write

if TYPE_CHECKING:
    from .node import Node

ROLES = ("leader", "follower", "observer", "forming")
INDICES = ("lowest_index", "highest_index", "durable_index", "commit_index", "applied_index")


class WriteCounts:
    """What went through this node's write path, while it led: plain numbers, so that a write pays next to nothing."""

    def __init__(self) -> None:
        self.requests = 0
        self.commands = 0
        self.frames = 0
        self.payload_bytes = 0

    def proposed(self, write: Write) -> None:
        """A request was handed to the writer."""
        self.requests += 1
        self.commands += write.count

    def placed(self, placed: Placed) -> None:
        """A frame was appended."""
        self.frames += 1
        self.payload_bytes += sum(share.write.size for share in placed.shares)


class Metrics:
    """One node's metrics, in a registry of its own."""

    def __init__(self, node: "Node") -> None:
        self.answers: Counter[tuple[str, str, int]] = Counter()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_NodeCollector(node, self.answers))

    def exposition(self) -> bytes:
        """All of them, in Prometheus' text format."""
        return generate_latest(self._registry)


class _NodeCollector(Collector):
    def __init__(self, node: "Node", answers: Counter[tuple[str, str, int]]) -> None:
        self._node = node
        self._answers = answers

    def collect(self) -> Iterator[Metric]:
        """Every metric, as it is now."""
        yield from self._counters()
        status = self._node.status()
        role = GaugeMetricFamily("quire_role", "1 for the role that the node has", labels=["role"])
        for name in dict.fromkeys([*ROLES, status["role"]]):
            role.add_metric([name], float(name == status["role"]))
        yield role
        yield GaugeMetricFamily("quire_epoch", "The epoch that the node is in", value=status["epoch"])
        yield GaugeMetricFamily("quire_serving", "1 where the node leads and serves", value=status["serving"])
        yield GaugeMetricFamily("quire_ready", "1 where /readyz says so", value=status["ready"])
        for name in INDICES:
            if name in status:
                yield GaugeMetricFamily(f"quire_{name}", f"{name} of the node's log or machine", value=status[name])
        if "log_bytes" in status:
            yield GaugeMetricFamily("quire_log_bytes", "Bytes that the log's files hold", value=status["log_bytes"])
        for unit, value in status.get("lag", {}).items():
            yield GaugeMetricFamily(f"quire_lag_{unit}", f"How many {unit} the node is behind its leader", value=value)
        if "nodes" in status:
            yield from _lags_of_others(status["nodes"])

    def _counters(self) -> Iterator[Metric]:
        counts = self._node.write_counts
        for name, text, value in (
            ("requests", "Writes handed to this leader's writer", counts.requests),
            ("commands", "Commands and records in those writes", counts.commands),
            ("frames", "Frames of writes that this leader appended", counts.frames),
            ("payload_bytes", "Bytes of the writes in those frames", counts.payload_bytes),
        ):
            yield CounterMetricFamily(f"quire_write_{name}", text, value=value)
        answers = CounterMetricFamily("quire_http_answers", "Answers begun", labels=["method", "path", "status"])
        for (method, path, code), count in self._answers.items():
            answers.add_metric([method, path, str(code)], count)
        yield answers


def _lags_of_others(nodes: dict[str, dict[str, dict[str, float]]]) -> Iterator[Metric]:
    """A leader's view of the others' lag."""
    for unit in ("records", "bytes", "seconds"):
        family = GaugeMetricFamily(
            f"quire_node_lag_{unit}", f"How many {unit} another node is behind this leader", labels=["node"]
        )
        for node_id, row in nodes.items():
            family.add_metric([node_id], row["lag"][unit])
        yield family
