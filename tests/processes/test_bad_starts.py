"""A wrong start ends with one clear sentence, changes nothing on disk, and does not disturb the running cluster."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ports import HOST, free_port
from tests.processes.cluster import Cluster, Clusters, Node, ending_clusters, run_quire
from tests.processes.data_files import contents
from tests.processes.refusals import FAILED, USAGE, check_refused, last_sentence

ENDS_WITHIN_S = 20.0  # Only its peers can tell it, once it has reached one.


@pytest.fixture(scope="module")
def formed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster for all tests here, with commands in it. It still works when they are over."""
    with ending_clusters(tmp_path_factory.mktemp("bad-starts")) as clusters:
        cluster = clusters.formed()
        cluster.leader.apply(["add", 3], ["div", 5])
        cluster.wait_for_equal()
        yield cluster
        if cluster["n2"].process is None:
            cluster.start("n2")
        assert cluster["n2"].apply(["add", 1])["results"] == ["10"]
        cluster.wait_for_equal()


@pytest.fixture
def cluster(formed: Cluster) -> Iterator[Cluster]:
    """The cluster; the test cost n1 and n3, which always run, no process, no record and no leader."""
    before = [unmoved(formed[node_id]) for node_id in ("n1", "n3")]
    yield formed
    assert [unmoved(formed[node_id]) for node_id in ("n1", "n3")] == before, formed.last_words()


def unmoved(node: Node) -> dict[str, object]:
    """What stays the same as long as nothing is written, nobody restarts and no leadership begins."""
    status = node.status()
    names = ("role", "epoch", "leader", "ready", "lowest_index", "highest_index", "applied_index", "digest", "members")
    return {"pid": node.running.pid, **{name: status[name] for name in names}}


@pytest.fixture
def stopped(cluster: Cluster) -> Node:
    """The cluster's n2, stopped: the other two go on."""
    node = cluster["n2"]
    if node.process is not None:
        cluster.stop("n2")
    return node


def test_a_port_in_use_is_named_and_no_data_dir_is_made(cluster: Cluster, tmp_path: Path) -> None:
    ended = cluster["n3"].run_to_end("--data-dir", str(tmp_path / "fresh"))

    check_refused(ended, FAILED, f"cannot listen on {cluster['n3'].address}", "address already in use", "--listen")
    assert not (tmp_path / "fresh").exists()


@pytest.mark.full
def test_a_data_dir_that_a_running_node_uses_is_refused_and_left_as_it_is(cluster: Cluster) -> None:
    node = cluster["n3"]
    before = settled_contents(cluster, node)

    ended = node.run_to_end("--listen", f"{HOST}:{free_port()}")

    check_refused(ended, FAILED, f"data_dir {node.data_dir}", "another process uses it")
    assert contents(node.data_dir) == before


def settled_contents(cluster: Cluster, node: Node) -> dict[str, str]:
    """What its files hold once they rest: the mark is written until a second after the last command."""
    seen: list[dict[str, str]] = []
    since: list[int] = []

    def unchanged() -> bool:
        now, clock = contents(node.data_dir), node.status()["clock"]
        if not seen or seen[-1] != now:
            seen.append(now)
            since[:] = [clock]
        return bool(clock - since[0] > 2_500_000)

    cluster.wait_until(f"the files of {node.node_id} rest", unchanged)
    return seen[-1]


@pytest.mark.full
def test_the_data_dir_of_another_node_is_refused_and_left_as_it_is(cluster: Cluster, stopped: Node) -> None:
    before = contents(stopped.data_dir)

    ended = cluster["n3"].run_to_end("--data-dir", str(stopped.data_dir), "--listen", f"{HOST}:{free_port()}")

    check_refused(ended, FAILED, f"data_dir {stopped.data_dir}", "belongs to node n2, not n3")
    assert contents(stopped.data_dir) == before


@pytest.mark.full
def test_another_machine_than_the_genesis_is_refused_by_both_names(stopped: Node) -> None:
    before = contents(stopped.data_dir / "log")

    ended = stopped.run_to_end("--machine", "log")

    check_refused(ended, FAILED, "machine arithmetic version 1", "log version 1")
    assert contents(stopped.data_dir / "log") == before


@pytest.mark.full
def test_another_initial_value_than_the_genesis_is_refused_by_both_values(stopped: Node) -> None:
    ended = stopped.run_to_end("--initial", "7")

    check_refused(ended, FAILED, "started from 42", "configured with 7")


@pytest.mark.full
def test_a_machine_that_is_none_is_refused_by_name(stopped: Node) -> None:
    before = contents(stopped.data_dir)

    ended = stopped.run_to_end("--machine", "abacus")

    check_refused(ended, FAILED, "abacus")
    assert contents(stopped.data_dir) == before


@pytest.mark.full
def test_a_smaller_frame_limit_than_the_genesis_is_refused_by_both_numbers(stopped: Node) -> None:
    ended = stopped.run_to_end("--max-frame-bytes", str(4 << 20))

    check_refused(ended, FAILED, str(8 << 20), str(4 << 20))


@pytest.mark.full
def test_an_unknown_configuration_key_is_named_with_its_file(stopped: Node, tmp_path: Path) -> None:
    before = contents(stopped.data_dir)
    config = tmp_path / "quire.toml"
    config.write_text("heartbeat_ms = 100\nheartbeet_ms = 100\n")

    ended = stopped.run_to_end("--config", str(config))

    check_refused(ended, USAGE, "heartbeet_ms", str(config))
    assert contents(stopped.data_dir) == before


@pytest.mark.full
def test_an_unknown_variable_is_named(stopped: Node) -> None:
    before = contents(stopped.data_dir)

    ended = stopped.run_to_end(extra={"QUIRE_HEARTBEET_MS": "100"})

    check_refused(ended, USAGE, "QUIRE_HEARTBEET_MS")
    assert contents(stopped.data_dir) == before


@pytest.mark.full
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--config", "no-such-file.toml"], ["no-such-file.toml"]),
        (["--peer-secret-file", "no-such-secret"], ["--peer-secret-file", "no-such-secret"]),
        (["--listen", "127.0.0.1"], ["--listen", "HOST:PORT"]),
        (["--segment-bytes", "many"], ["--segment-bytes", "many"]),
    ],
    ids=["config", "secret", "listen", "number"],
)
def test_a_value_that_cannot_be_is_named_and_nothing_is_made(
    tmp_path: Path, flags: list[str], words: list[str]
) -> None:
    address = f"{HOST}:{free_port()}"
    arguments = ["--node", "n1", "--listen", address, "--members", f"n1={address}"]

    ended = run_quire("serve", *arguments, "--data-dir", str(tmp_path / "fresh"), *flags)

    check_refused(ended, USAGE, *words)
    assert not (tmp_path / "fresh").exists()


def test_a_flag_that_is_missing_is_named_with_all_the_places_where_it_can_be_given(tmp_path: Path) -> None:
    ended = run_quire("serve", "--node", "n1", "--listen", "127.0.0.1:7001", "--members", "n1=h:1")

    check_refused(ended, USAGE, "data_dir is missing", "--data-dir", "QUIRE_DATA_DIR")


@pytest.mark.full
def test_a_data_dir_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    address = f"{HOST}:{free_port()}"
    arguments = ["--node", "n1", "--listen", address, "--members", f"n1={address}"]

    ended = run_quire("serve", *arguments, "--data-dir", str(tmp_path / "file" / "n1"))

    check_refused(ended, FAILED, str(tmp_path / "file"), "--data-dir")
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.full
def test_a_damaged_identity_is_refused_and_left_as_it_is(stopped: Node) -> None:
    identity = stopped.data_dir / "identity"
    whole = identity.read_bytes()
    identity.write_bytes(whole.replace(b'"n2"', b'"n7"'))
    before = contents(stopped.data_dir)

    ended = stopped.run_to_end()

    check_refused(ended, FAILED, f"data_dir {stopped.data_dir}", "identity", "crc32c")
    assert contents(stopped.data_dir) == before
    identity.write_bytes(whole)


@pytest.mark.full
def test_a_missing_promise_beside_an_identity_is_refused_and_left_as_it_is(stopped: Node) -> None:
    promise = stopped.data_dir / "promise"
    whole = promise.read_bytes()
    promise.unlink()
    before = contents(stopped.data_dir)

    ended = stopped.run_to_end()

    check_refused(ended, FAILED, f"data_dir {stopped.data_dir}", "promise")
    assert contents(stopped.data_dir) == before
    promise.write_bytes(whole)


# A data_dir of another cluster with the same node ids


@pytest.mark.soak
def test_a_data_dir_of_another_cluster_is_refused_and_left_as_it_is(clusters: Clusters) -> None:
    other = clusters.formed()
    other.leader.apply(["add", 100])
    other.wait_for_equal()
    foreign_id = other.leader.status()["cluster_id"]
    other.stop()
    cluster = clusters.formed()
    cluster.leader.apply(["add", 3])
    before = cluster.wait_for_equal()["n1"]
    cluster.stop("n2")
    before_log = contents(other["n2"].data_dir / "log")

    ended = cluster["n2"].run_to_end("--data-dir", str(other["n2"].data_dir), timeout_s=ENDS_WITHIN_S)

    sentence = last_sentence(ended, FAILED)
    assert foreign_id in sentence or "another cluster" in sentence, sentence
    assert contents(other["n2"].data_dir / "log") == before_log
    assert cluster.leader.status()["digest"] == before["digest"]
    cluster.start("n2")
    assert cluster.leader.apply(["div", 5])["results"] == ["9"]
    cluster.wait_for_equal()


@pytest.mark.soak
def test_a_log_of_another_cluster_below_this_one_s_identity_is_refused(clusters: Clusters) -> None:
    other = clusters.formed()
    other.stop()
    cluster = clusters.formed()
    cluster.stop("n2")
    node = cluster["n2"]
    for name in ("log", "mark"):
        moved = node.data_dir / name
        moved.rename(node.data_dir.with_name(f"kept-{name}"))
    shutil.copytree(other["n2"].data_dir / "log", node.data_dir / "log")
    shutil.copy(other["n2"].data_dir / "mark", node.data_dir / "mark")
    before = contents(node.data_dir / "log")

    ended = node.run_to_end()

    check_refused(ended, FAILED, f"data_dir {node.data_dir}", cluster.leader.status()["cluster_id"])
    assert contents(node.data_dir / "log") == before


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["serve", "--node", "n1", "--listen", f"{HOST}:1024", "--data-dir", "FILE"], FAILED),
        (["serve", "--standalone", "--listen", f"{HOST}:1024", "--data-dir", "FILE/x"], FAILED),
        (["recover", "--inspect", "--data-dir", "FILE"], USAGE),
        (["log", "verify", "FILE"], USAGE),
        (["backup", "list", "FILE"], FAILED),
        (["backup", "FILE", "--server", f"{HOST}:1"], FAILED),
        (["restore", "FILE", "--data-dir", "FILE.new"], FAILED),
    ],
)
def test_a_file_in_the_place_of_a_directory_is_called_a_file(tmp_path: Path, arguments: list[str], code: int) -> None:
    file = tmp_path / "file"
    file.touch()

    ended = run_quire(*(word.replace("FILE", str(file)) for word in arguments))

    assert ended.code == code
    assert ended.stderr.count("\n") == 1
    assert "a file" in ended.stderr
    assert list(tmp_path.iterdir()) == [file]
