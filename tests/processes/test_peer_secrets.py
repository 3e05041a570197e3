"""Peers prove that they know a shared secret. A node without it is refused, with the reason, and ignored (rule 10)."""

from pathlib import Path
from typing import Any

import pytest

from tests.processes.cluster import Cluster, Clusters, Node
from tests.processes.load import COMMANDS, running_load

ELECTION_TIMEOUT_US = 1_000_000
SOON_S = 20.0


def secret_flags(folder: Path, name: str, secret: bytes) -> list[str]:
    file = folder / name
    file.write_bytes(secret)
    file.chmod(0o600)
    return ["--peer-secret-file", str(file)]


def without_secret(node: Node) -> list[str]:
    """The node's flags but for its secret."""
    place = node.flags.index("--peer-secret-file")
    return node.flags[:place] + node.flags[place + 2 :]


@pytest.mark.full
def test_nodes_that_share_a_secret_form_a_cluster_and_survive_restarts(clusters: Clusters, tmp_path: Path) -> None:
    cluster = clusters.formed(flags=secret_flags(tmp_path, "secret", b"a sheet of paper\n"))
    cluster["n2"].apply(["add", 3])
    cluster.stop("n2")
    # The same secret: a line's end is no part of it.
    cluster["n2"].flags = without_secret(cluster["n2"]) + secret_flags(tmp_path, "again", b"a sheet of paper")
    cluster.start("n2")

    assert cluster["n2"].apply(["div", 5])["results"] == ["9"]
    cluster.wait_for_equal()
    for node in cluster:
        others = set(cluster.nodes) - {node.node_id}
        cluster.wait_until(f"{node.node_id} has its links", lambda: set(node.status()["links"]) == others)  # noqa: B023
        failures = node.status()["link_failures"]
        assert set(failures).isdisjoint(cluster.nodes), failures


@pytest.mark.full
def test_a_member_with_another_secret_or_none_is_refused_says_so_and_is_not_heard(
    clusters: Clusters, tmp_path: Path
) -> None:
    cluster = clusters.formed(flags=secret_flags(tmp_path, "secret", b"a sheet of paper"))
    cluster.wait_for_equal()
    node = cluster["n3"]
    right = node.flags
    cluster.stop("n3")
    heard = leader_s_view(cluster)
    for wrong in wrong_flags(node, tmp_path):
        node.flags = wrong
        node.start()

        cluster.wait_until("n3 says why nobody speaks to it", lambda: says_why(node, "n1", "n2"), SOON_S)

        cluster.leader.apply(["add", 3])
        cluster.wait_until("n1 says why it does not speak to n3", lambda: says_why(cluster.leader, "n3"), SOON_S)
        wait_for_clock(cluster, 2 * ELECTION_TIMEOUT_US)
        status = node.status()
        assert (status["ready"], status["links"], status["leader"]) == (False, [], None)
        assert status["durable_index"] == heard["durable_index"], "no record reached it"
        assert leader_s_view(cluster) == heard, "the leader heard nothing of it"
        assert "n3" not in cluster.leader.status()["links"]
        cluster.stop("n3")

    node.flags = right
    cluster.start("n3")
    assert cluster.leader.apply(["div", 4])["results"] == ["12"]
    cluster.wait_for_equal()


@pytest.mark.full
def test_a_new_node_with_another_secret_or_none_gets_no_genesis_and_says_why(
    clusters: Clusters, tmp_path: Path
) -> None:
    cluster = clusters.make(initial=["n1", "n2"], flags=secret_flags(tmp_path, "secret", b"a sheet of paper"))
    cluster.start("n1", "n2")
    node = cluster["n3"]
    for wrong in wrong_flags(node, tmp_path):
        node.flags = wrong
        node.start()

        cluster.wait_until("n3 says why nobody speaks to it", lambda: says_why(node, "n1", "n2"), SOON_S)

        assert not (node.data_dir / "identity").exists()
        assert "cluster_id" not in node.status()
        assert "n3" not in cluster.leader.status()["nodes"]
        cluster.stop("n3")


@pytest.mark.soak
def test_the_secret_is_rotated_under_load_by_three_rolling_restarts(clusters: Clusters, tmp_path: Path) -> None:
    old, new = b"a sheet of paper", b"another sheet of paper"
    cluster = clusters.formed(flags=secret_flags(tmp_path, "secret", old))
    with running_load(cluster, clients=2) as load:
        for step, secrets in enumerate([(old, new), (new, old), (new,)]):
            for node_id in ("n3", "n2", "n1"):
                node = cluster[node_id]
                load.wait_for_more(cluster, COMMANDS // 100)
                assert node.stop() == 0
                node.flags = without_secret(node) + secret_flags(tmp_path, f"step-{step}", b"\n".join(secrets))
                cluster.start_again(node)
        load.wait_for_more(cluster, COMMANDS // 100)
        load.end()

    load.check(cluster)
    for node in cluster:
        assert "peer_secret" not in node.output.read_text(), "no peer was refused at any step"
        assert node.status()["alarms"] == []

    cluster.stop("n3")
    node = cluster["n3"]
    node.flags = without_secret(node) + secret_flags(tmp_path, "secret", old)
    node.start()
    cluster.wait_until("the old secret is worth nothing", lambda: says_why(node, "n1", "n2"), SOON_S)
    refused = "link from n3"
    cluster.wait_until("n1 names n3", lambda: says_why(cluster["n1"], refused), SOON_S)
    assert "n3 was refused: peer_secret" in cluster["n1"].output.read_text()


def wrong_flags(node: Node, folder: Path) -> list[list[str]]:
    """The node's flags with another secret, and with none."""
    without = without_secret(node)
    return [without + secret_flags(folder, "other", b"another sheet of paper"), without]


def wait_for_clock(cluster: Cluster, microseconds: int) -> None:
    """Return when so much time has passed by the leader's clock."""
    until = cluster.leader.status()["clock"] + microseconds
    cluster.wait_until("time passes", lambda: cluster.leader.status()["clock"] > until)


def leader_s_view(cluster: Cluster) -> dict[str, Any]:
    """What the leader last heard of n3."""
    row: dict[str, Any] = cluster.leader.status()["nodes"]["n3"]
    return {name: row[name] for name in ("durable_index", "applied_index", "heard_at")}


def says_why(node: Node, *peers: str) -> bool:
    """Whether the node says of each of these peers that their secrets do not match."""
    failures = node.status().get("link_failures", {})
    return all("peer_secret" in failures.get(peer, "") for peer in peers)
