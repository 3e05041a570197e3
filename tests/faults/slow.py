"""A follower behind a link of 1 MB/s under full load: its cost to the others, and how it catches up.

    python -m tests.faults --slow-follower 5       five minutes of it

The scenario "a slow follower" is the same for seconds, judged as all scenarios are. Here the log grows by gigabytes; so
the verdict is of figures: the rate of the others, the leader's memory, and that all come to the same state in the end,
which is the sum of what was acknowledged.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.cluster.config.serve import MIB
from tests.faults.acting import Actor
from tests.faults.actions import FOLLOWER, LEADER, OTHER, STREAM, narrow, of
from tests.faults.mesh import Mesh, meshed
from tests.faults.running import Watch
from tests.faults.traffic import Traffic
from tests.processes.cluster import Cluster, Node
from tests.verdict.bounds import check_memory
from tests.verdict.linearizable import check_linearizable, step_sum
from tests.verdict.verdict import Wrong, check_progress, check_states

LINK_KB_A_SECOND = 1_000
FLAGS = ("--machine", "tests.processes.adder:Adder", "--initial", "0")
WINDOW_BYTES = 8 * MIB  # The default of stream_window_bytes, which this runs with.
# What docs/reliability.md promises: a window that is full, once in the socket's queue and once more as it is handed to
# it; and what other users of the allocator take between two looks.
LEADER_GROWTH_BYTES = 2 * WINDOW_BYTES + 16 * MIB
WARM_S = 1.0
# Not of 10 kB, as in the scenarios: five minutes of those would be tens of gigabytes on each disk.
COMMAND_BYTES = 200
LOAD: list[Any] = [["add", 0, "0" * COMMAND_BYTES]] * 4_000
CATCH_UP_DEADLINE_S = 1_800.0


@dataclass(frozen=True)
class Slowed:
    """What it came to: commands acknowledged a second before and while one follower was slow, and the rest."""

    before: float
    during: float
    minutes: float
    lag_bytes: int
    other_lag_bytes: int
    peak_bytes: dict[str, int]
    leader_growth_bytes: int
    catch_up_s: float
    acknowledged: int

    def __str__(self) -> str:
        peaks = ", ".join(f"{node_id} {peak / MIB:.0f} MiB" for node_id, peak in sorted(self.peak_bytes.items()))
        return (
            f"{self.before:,.0f} commands of {COMMAND_BYTES} bytes acknowledged a second before, {self.during:,.0f} "
            f"during {self.minutes:g} minutes of a link of {LINK_KB_A_SECOND / 1e3:g} MB/s; then the slow follower was "
            f"{self.lag_bytes / 1e6:,.0f} MB behind, the other one {self.other_lag_bytes / 1e6:.1f} MB; the leader's "
            f"memory grew by {self.leader_growth_bytes / MIB:.1f} MiB (peaks: {peaks}); all was caught up "
            f"{self.catch_up_s:.1f} s after; {self.acknowledged:,} commands acknowledged, lost 0, executed twice 0"
        )


def slow_follower(folder: Path, minutes: float, before_s: float, kept_rate: float) -> Slowed:
    """Run it on a cluster of its own. Raises Wrong, NotLinearizable, NeverCame.

    `kept_rate`: the least share of the rate of before that must be left while the follower is slow.
    """
    cluster = Cluster(folder, flags=FLAGS, locked=True)
    with meshed(cluster) as mesh:
        try:
            cluster.start()
            return _Slow(cluster, mesh).run(minutes, before_s, kept_rate)
        except BaseException:
            print(cluster.last_words())  # noqa: T201  # pytest shows it of a test that failed.
            raise
        finally:
            cluster.close()


class _Slow:
    def __init__(self, cluster: Cluster, mesh: Mesh) -> None:
        self._cluster, self._mesh = cluster, mesh
        leader = cluster.elected()
        self._places = [leader, *(node for node in cluster if node is not leader)]

    def run(self, minutes: float, before_s: float, kept_rate: float) -> Slowed:
        cluster, watch = self._cluster, Watch(self._cluster)
        addresses = [self._mesh.client_address(node.node_id) for node in self._places]
        with Traffic(addresses, cluster.caller, bulk=LOAD) as traffic:
            traffic.wait_until_all_were_answered(cluster, time.monotonic())
            self._pass(WARM_S)
            epoch = self._places[LEADER].status()["epoch"]
            before = self._rate_of(traffic, before_s)
            actor = Actor(cluster, self._mesh, self._places, {}, {})
            actor.act(narrow(of(LEADER, FOLLOWER), LINK_KB_A_SECOND, STREAM))
            with watch.watching():
                during = self._rate_of(traffic, minutes * 60)
            behind, other_behind = (self._lag_bytes(self._places[place]) for place in (FOLLOWER, OTHER))
            self._judge_leader(epoch)
            traffic.end()
        began = time.monotonic()
        self._mesh.heal()
        cluster.wait_for_equal(deadline_s=CATCH_UP_DEADLINE_S)
        caught_up = time.monotonic() - began
        grown = watch.growth[self._places[LEADER].node_id]
        slowed = Slowed(
            *(before, during, minutes, behind, other_behind, watch.peak, grown, caught_up), traffic.history.acknowledged
        )
        self._judge(traffic, watch, slowed)
        if during < kept_rate * before:
            raise Wrong(f"less than {kept_rate:.0%} of the rate of before is left: {slowed}")
        return slowed

    def _pass(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self._cluster.wait_until("it is time", lambda: time.monotonic() >= end, deadline_s=seconds + 60)

    def _rate_of(self, traffic: Traffic, seconds: float) -> float:
        began = time.monotonic()
        self._pass(seconds)
        ended = time.monotonic()
        ends = [batch.ended for batch in list(traffic.history.answered) if batch.commands is LOAD]
        batches = sum(began <= end < ended for end in ends)
        return batches * len(LOAD) / (ended - began)

    def _lag_bytes(self, node: Node) -> int:
        nodes = self._places[LEADER].status().get("nodes", {})
        return int(nodes[node.node_id]["lag"]["bytes"]) if node.node_id in nodes else 0

    def _judge_leader(self, epoch: int) -> None:
        status = self._places[LEADER].status()
        if status["epoch"] != epoch or not status["serving"]:
            raise Wrong(f"the leader of epoch {epoch} lost it: {status['leaders']}")

    def _judge(self, traffic: Traffic, watch: Watch, slowed: Slowed) -> None:
        check_progress(watch.seen)
        check_memory({self._places[LEADER].node_id: slowed.leader_growth_bytes}, LEADER_GROWTH_BYTES)
        check_linearizable(traffic.history.operations, 0, step_sum)
        expected = sum(command[1] for answered in traffic.history.answered for command in answered.commands)
        check_states({node.node_id: node.local_state()["state"] for node in self._cluster}, str(expected))
