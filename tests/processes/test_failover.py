"""Leaders are killed, paused, restarted, or lose their disks, while the history of their clients stays linearizable.

Every test ends with the verdict (`tests/verdict`). A client that is told that
the outcome is unknown may be so; it rides through nearly all of this without.
"""

import json
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.processes.cluster import DEADLINE_S, Cluster, Clusters, Node, Reply
from tests.processes.data_files import promise_of
from tests.processes.faulty import Faults
from tests.processes.recording import recording, rounds
from tests.verdict.verdict import Answered

ELECTION_TIMEOUT_S = 1.0  # The default, which other process tests lengthen.
DEFAULTS = ("--election-timeout-ms", "1000")
# Where nobody may lose the lead, a machine that stands still for a second or two must not take it either.
CALM = ("--election-timeout-ms", "5000")


def formed(clusters: Clusters, flags: Sequence[str] = DEFAULTS, *, locked: bool = False) -> Cluster:
    return clusters.formed(flags=flags, locked=locked)


def epoch_of(node: Node) -> int:
    return int(node.status()["epoch"])


def running_faulty(clusters: Clusters, folder: Path) -> tuple[Cluster, dict[str, Faults]]:
    """A cluster into whose nodes a test can inject faults."""
    cluster = clusters.make(flags=CALM)
    faults = {node.node_id: Faults(folder / f"faults-{node.node_id}").of(node) for node in cluster}
    cluster.start()
    return cluster, faults


# Ends


@pytest.mark.parametrize(
    "locked", [pytest.param(False, id="plain"), pytest.param(True, id="with TLS", marks=pytest.mark.full)]
)
def test_a_leader_that_is_killed_is_followed_by_another(clusters: Clusters, locked: bool) -> None:
    cluster = formed(clusters, locked=locked)
    with recording(cluster) as clients:
        for _ in range(rounds(2)):
            clients.wait_for_more(cluster)
            killed = cluster.elected()
            epoch = epoch_of(killed)
            killed.kill()

            clients.wait_for_more(cluster)

            assert epoch_of(cluster.elected()) > epoch
            cluster.start_again(killed)
        clients.check(cluster)


def test_a_session_s_write_through_a_follower_of_a_frozen_leader_is_answered_by_the_next_one(
    clusters: Clusters,
) -> None:
    cluster = formed(clusters)
    leader, follower = cluster.leader, cluster.followers[0]
    json_body = {"Content-Type": "application/json"}
    session = leader.call("POST", "/sessions", b"{}", json_body).document["session"]
    headers = {**json_body, "Quire-Session": str(session), "Quire-Sequence": "1"}
    leader.pause()

    def answered() -> Reply | None:
        reply = follower.call("POST", "/commands", b'{"commands": [["add", 1]]}', headers)
        return None if reply.status == 503 else reply  # On a slow machine, it has given the leader up before.

    assert cluster.wait_until("a write is answered", answered).status == 200
    leader.resume()


@pytest.mark.soak
def test_a_candidate_that_is_killed_between_its_promise_and_its_leadership_holds_nobody_up(clusters: Clusters) -> None:
    cluster = formed(clusters)
    with recording(cluster) as clients:
        for _ in range(rounds(2)):
            clients.wait_for_more(cluster)
            killed = cluster.elected()
            epoch = epoch_of(killed)
            killed.kill()

            candidate = candidate_above(cluster, epoch)
            candidate.kill()

            cluster.start_again(killed)
            clients.wait_for_more(cluster)
            cluster.start_again(candidate)
        clients.check(cluster)


def candidate_above(cluster: Cluster, epoch: int) -> Node:
    """The first node of which a promise to itself stands in its file, above an epoch. Looks without a pause."""
    end = time.monotonic() + DEADLINE_S
    running = [node for node in cluster if node.process is not None]
    while time.monotonic() < end:
        for node in running:
            promise = promise_of(node.data_dir)
            if promise.epoch > epoch and promise.candidate == node.node_id:
                return node
    raise AssertionError(f"nobody promised itself an epoch above {epoch}")


@pytest.mark.soak
def test_two_leaders_one_after_the_other_are_killed_before_the_first_is_back(clusters: Clusters) -> None:
    cluster = formed(clusters)
    with recording(cluster) as clients:
        for _ in range(rounds(2)):
            clients.wait_for_more(cluster)
            first = cluster.elected()
            first.kill()
            second = cluster.elected()
            first.start()
            second.kill()

            clients.wait_for_more(cluster)

            cluster.wait_until_ready(first)
            cluster.start_again(second)
        clients.check(cluster)


@pytest.mark.soak
def test_a_leader_that_is_left_alone_acknowledges_nothing_that_is_lost_with_it(clusters: Clusters) -> None:
    cluster = formed(clusters)
    with recording(cluster) as clients:
        clients.wait_for_more(cluster)
        leader = cluster.elected()
        others = [node for node in cluster if node is not leader]
        for node in others:
            node.kill()
        cluster.wait_until("it leads no longer", lambda: not leader.status()["serving"])
        leader.kill()

        for node in others:
            node.start()
        clients.wait_for_more(cluster)

        cluster.start_again(leader)
        clients.check(cluster)


@pytest.mark.full
def test_all_nodes_are_killed_with_all_that_the_control_plane_knew(clusters: Clusters) -> None:
    cluster = formed(clusters)
    with recording(cluster) as clients:
        for _ in range(rounds(2)):
            clients.wait_for_more(cluster)
            cluster.kill_all()
            for node in cluster:
                node.start()
            clients.wait_for_more(cluster)
        clients.check(cluster)


@pytest.mark.soak
def test_a_rolling_restart_leaves_no_outcome_unknown(clusters: Clusters) -> None:
    cluster = formed(clusters, CALM)
    with recording(cluster) as clients:
        for node in [*cluster, cluster.elected()]:
            clients.wait_for_more(cluster)
            led = node.status()["serving"]
            assert node.stop() == 0
            successor = cluster.elected()
            cluster.start_again(node)
            if led:
                assert f"{node.node_id} asked it to" in [row["reason"] for row in successor.status()["leaders"]]
        clients.check(cluster)
        assert clients.unknown == clients.not_executed == 0


@pytest.mark.full
def test_leadership_that_is_transferred_again_and_again_leaves_no_outcome_unknown(clusters: Clusters) -> None:
    cluster = formed(clusters, CALM)
    with recording(cluster) as clients:
        for node_id in ("n2", "n3", "n1") * rounds(1):
            cluster.lead(node_id)
            clients.wait_for_more(cluster)
        clients.check(cluster)
        assert clients.unknown == clients.not_executed == 0


# The control plane


@pytest.mark.soak
def test_pysyncobj_forgets_everything_everywhere_and_no_leader_is_lost(clusters: Clusters, tmp_path: Path) -> None:
    cluster, faults = running_faulty(clusters, tmp_path)
    with recording(cluster) as clients:
        clients.wait_for_more(cluster)
        leader = cluster.elected()
        epoch = epoch_of(leader)
        for _ in range(rounds(2)):
            for each in faults.values():
                each.begin("forget")
            cluster.wait_until(
                "every PySyncObj has failed", lambda: not any(each.has("forget") for each in faults.values())
            )
            clients.wait_for_more(cluster, 200)
        assert epoch_of(leader) == epoch_of(cluster.elected()) == epoch

        leader.kill()
        clients.wait_for_more(cluster)
        cluster.start_again(leader)
        clients.check(cluster)
        assert clients.not_executed == 0


@pytest.mark.soak
def test_two_that_pysyncobj_calls_leaders_depose_nobody_and_one_of_them_leads_when_it_may(
    clusters: Clusters, tmp_path: Path
) -> None:
    cluster, faults = running_faulty(clusters, tmp_path)
    with recording(cluster) as clients:
        for _ in range(rounds(2)):
            clients.wait_for_more(cluster)
            leader = cluster.elected()
            epoch = epoch_of(leader)
            others = [node for node in cluster if node is not leader]
            for node in others:
                faults[node.node_id].begin("leads")
            cluster.wait_until("both are nominated", lambda: all(node.status()["nominated"] for node in others))  # noqa: B023
            clients.wait_for_more(cluster, 200)
            assert epoch_of(leader) == epoch_of(cluster.elected()) == epoch

            leader.kill()
            clients.wait_for_more(cluster)
            assert cluster.elected() in others
            cluster.start_again(leader)
            for node in others:
                faults[node.node_id].end("leads")
        clients.check(cluster)
        assert clients.not_executed == 0


# Pauses


@pytest.mark.full
def test_a_leader_that_was_paused_past_its_timeout_fences_itself_before_it_answers_anything(clusters: Clusters) -> None:
    cluster = formed(clusters)
    with recording(cluster) as clients:
        for _ in range(rounds(2)):
            clients.wait_for_more(cluster)
            paused = cluster.elected()
            epoch = epoch_of(paused)
            paused.pause()
            successor = cluster.elected(but=paused)
            commands, unanswered = [["add", 1], ["sub", 1]], [["add", 0]]
            answer = successor.apply(*commands)  # From here on nothing older than this may be shown.
            told = Answered(commands, answer["results"], answer["index"], answer["epoch"])
            clients.history.answered.append(told)
            clients.history.unknown.append(unanswered)
            asked = [
                sent(paused, "GET", "/state?consistency=leader"),
                sent(paused, "GET", "/state"),
                sent(paused, "POST", "/commands", {"commands": unanswered}),
                sent(paused, "GET", "/state?consistency=leader"),
            ]

            paused.resume()

            for connection in asked:
                status, document = answer_on(connection)
                assert status in (200, 503, 504), document
                if "applied_index" in document:
                    assert document["applied_index"] > answer["index"], "it shows what was before its pause"
                if status == 200:
                    assert document.get("epoch", epoch + 1) > epoch, "it led on in an epoch that was over"
            clients.wait_for_more(cluster)
            cluster.wait_until_ready(paused)
        clients.check(cluster)


def sent(node: Node, method: str, path: str, body: Any = None) -> socket.socket:
    """A connection on which a request waits to be read."""
    host, _, port = node.address.rpartition(":")
    connection = socket.create_connection((host, int(port)), DEADLINE_S)
    content = b"" if body is None else json.dumps(body).encode()
    head = [
        f"{method} {path} HTTP/1.1",
        f"Host: {node.address}",
        "Connection: close",
        f"Content-Length: {len(content)}",
    ]
    connection.sendall("\r\n".join([*head, "Content-Type: application/json", "", ""]).encode() + content)
    return connection


def answer_on(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    """The status and the document of its answer."""
    parts = list(iter(lambda: connection.recv(1 << 16), b""))
    connection.close()
    head, _, body = b"".join(parts).partition(b"\r\n\r\n")
    document = json.loads(body)
    assert isinstance(document, dict)
    return int(head.split()[1]), document


@pytest.mark.soak
def test_followers_that_are_paused_one_after_the_other_cost_nobody_a_leader(clusters: Clusters) -> None:
    cluster = formed(clusters, CALM)
    with recording(cluster) as clients:
        leader = cluster.elected()
        epoch = epoch_of(leader)
        for follower in [node for node in cluster if node is not leader]:
            follower.pause()
            clients.wait_for_more(cluster, 200)
            follower.resume()
            cluster.wait_until_ready(follower)
        assert epoch_of(leader) == epoch_of(cluster.elected()) == epoch
        clients.check(cluster)


# Disks


@pytest.mark.soak
def test_a_leader_whose_disk_hangs_is_followed_by_another_and_comes_back_when_it_answers(
    clusters: Clusters, tmp_path: Path
) -> None:
    cluster, faults = running_faulty(clusters, tmp_path)
    with recording(cluster) as clients:
        clients.wait_for_more(cluster)
        leader = cluster.elected()
        faults[leader.node_id].hang_disk()
        try:
            clients.wait_for_more(cluster)
            assert cluster.elected() is not leader
            changes = [row for row in leader.status()["leaders"] if row["role"] != "leader"]
            assert any("disk has not answered" in row["reason"] for row in changes), changes
        finally:
            faults[leader.node_id].release_disk()
        clients.wait_for_more(cluster)
        cluster.wait_until_ready(leader)
        clients.check(cluster)


@pytest.mark.soak
def test_a_leader_whose_disk_fails_ends_and_another_leads(clusters: Clusters, tmp_path: Path) -> None:
    cluster, faults = running_faulty(clusters, tmp_path)
    with recording(cluster) as clients:
        clients.wait_for_more(cluster)
        leader = cluster.elected()
        faults[leader.node_id].begin("fail")

        code = leader.ended()

        assert code == 1
        assert "Input/output error" in leader.last_words()
        clients.wait_for_more(cluster)
        faults[leader.node_id].end("fail")
        cluster.start_again(leader)
        clients.check(cluster)


@pytest.mark.full
@pytest.mark.parametrize("fault", ["hang", "fail"])
def test_a_follower_whose_disk_does_not_do_its_work_costs_nobody_a_leader(
    clusters: Clusters, tmp_path: Path, fault: str
) -> None:
    cluster, faults = running_faulty(clusters, tmp_path)
    with recording(cluster) as clients:
        leader = cluster.elected()
        epoch = epoch_of(leader)
        follower = next(node for node in cluster if node is not leader)
        its = faults[follower.node_id]
        if fault == "hang":
            its.hang_disk()
            try:
                clients.wait_for_more(cluster, 200)
            finally:
                its.release_disk()
        else:
            its.begin("fail")
            assert follower.ended() == 1
            its.end("fail")
            clients.wait_for_more(cluster, 200)
            cluster.start_again(follower)
        assert epoch_of(leader) == epoch
        cluster.wait_until_ready(follower)
        clients.check(cluster)
