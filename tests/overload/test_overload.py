"""Overload and hostility, in short. The long forms are `make soak-overload` and `make soak-hostile`.

A machine that is busy with something else makes everything slower: the bounds here are on counts, on memory and on
shares of the leader's own processor time.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from tests.overload import handshakes, hour, mutated, overload
from tests.processes.cluster import CALM, Clusters

KV = ("--machine", "kv", *CALM)


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[Clusters]:
    """Makes clusters of real processes; all are gone after the test.

    Other tests also fail for a long turn of a node's loop. Here a turn serves as many callers as there are.
    """
    made = Clusters(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.full
def test_mutated_messages_cause_no_fault_no_flood_of_lines_and_no_growth(clusters: Clusters, tmp_path: Path) -> None:
    figures, wrong = mutated.run(mutated.formed(clusters, tmp_path), 1_000, seed=1)

    assert wrong == [], figures


@pytest.mark.soak
def test_four_times_the_load_costs_the_leader_little_of_what_it_accepts(clusters: Clusters) -> None:
    load = overload.Load(
        peak_s=9,
        pressed_s=24,
        slice_s=3,
        peak_connections=256,
        connections=1024,
        kept_share=0.5,
        p99_s=30,
        growth_bytes=64 << 20,
    )

    figures, wrong = overload.run(clusters.formed(flags=KV), load)

    assert not wrong, (wrong, figures)


@pytest.mark.soak
def test_four_times_the_batches_cost_the_leader_little_and_depose_nobody(clusters: Clusters) -> None:
    load = overload.Load(
        peak_s=9,
        pressed_s=24,
        slice_s=3,
        peak_connections=4,
        connections=256,
        commands=10_000,
        kept_share=0.5,
        p99_s=30,
        growth_bytes=128 << 20,
    )

    figures, wrong = overload.run(clusters.formed(flags=KV), load)

    assert not wrong, (wrong, figures)


@pytest.mark.soak
def test_a_hostile_client_deposes_nobody_and_locks_nobody_out(clusters: Clusters) -> None:
    plan = hour.Plan(40, seed=1, kinds=("batches", "bodies", "sessions"), clients=50, peak_bytes=480 << 20)

    figures, wrong = hour.run(clusters.formed(flags=KV), plan)

    assert not wrong, (wrong, figures)


@pytest.mark.soak
def test_300_silent_connections_and_200_handshakes_at_once_are_counted_and_hold_no_turn(tmp_path: Path) -> None:
    figures = uvloop.run(handshakes.measure(tmp_path, 300, 200))

    assert (figures["counted"], figures["answered"]) == (500, 200), figures
    assert figures["longest_turn_ms"] < 50, figures
