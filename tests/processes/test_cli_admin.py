"""`quire snapshot` and `quire expire` against a real cluster."""

import json

import pytest

from tests.processes.cluster import Clusters, run_quire


@pytest.mark.full
def test_snapshot_and_expire_ask_every_node_or_the_named_one(clusters: Clusters) -> None:
    cluster = clusters.formed(flags=["--retention-bytes=1"])
    cluster.leader.apply(["add", 1])
    cluster.wait_for_equal()

    taken = run_quire("snapshot", "--json", "--server", cluster.servers)
    assert taken.code == 0, taken
    rows = json.loads(taken.stdout)
    assert sorted(rows) == ["n1", "n2", "n3"]
    assert len({row["document"]["sha256"] for row in rows.values()}) == 1

    held = run_quire("expire", "--dry-run", "--json", "--node", "n2", "--server", cluster.servers)
    assert held.code == 0, held
    [(node_id, row)] = json.loads(held.stdout).items()
    assert node_id == "n2"
    assert "1 of 2 snapshots are there" in row["document"]["held_by"]

    shown = run_quire("status", "--server", cluster.servers)
    assert rows["n1"]["document"]["sha256"][:8] in shown.stdout

    unknown = run_quire("expire", "--node", "n9", "--server", cluster.servers)
    assert (unknown.code, unknown.stdout) == (1, "")
    assert "n9 is not one of the members (n1, n2, n3)" in unknown.stderr
