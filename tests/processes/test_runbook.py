"""The runbook's commands on members, in their order on real clusters, with what holds after each.

`tests/pages` runs every command of the page as it stands, and checks that each ends well.
"""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from quire.cluster.cli.output import Exit
from tests.processes.cluster import Cluster, Clusters, Ended, Node, run_quire
from tests.processes.retriers import FLAGS

RUNBOOK = Path(__file__).parents[2] / "deploy" / "runbook.md"
SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ADDRESS = re.compile(r"127\.0\.0\.1:700(\d)")
MOVED = "127.0.0.1:7012"
"""Where n2 moves to."""
SECRET = " --peer-secret-file data/peer-secret"
"""The clusters of these tests have none."""


def commands_of(section: str) -> list[str]:
    """The commands of quire in a section, without what the shell does with them, and without comments."""
    text = re.split(rf"^##+ {re.escape(section)}$", RUNBOOK.read_text(), maxsplit=1, flags=re.MULTILINE)[1]
    text = re.split(r"^##+ ", text, maxsplit=1, flags=re.MULTILINE)[0]
    shell = "\n".join(SHELL.findall(text)).replace("\\\n   ", "")
    found = re.findall(r"^(quire .*)$", shell, re.MULTILINE)
    assert found, section
    return [re.split(r" >| &|  #", command)[0].strip() for command in found]


class Operator:
    """Runs the commands on a cluster: its nodes stand for n1, n2 and so on, at the ports 7001, 7002 and so on."""

    def __init__(self, cluster: Cluster, moved: Node | None = None) -> None:
        self._cluster = cluster
        self._moved = moved

    def run(self, section: str, *, but: str = "no command") -> None:
        """Run a section; every command must succeed."""
        for command in commands_of(section):
            if but not in command:
                self.run_one(command)

    def run_one(self, command: str) -> Ended | None:
        _, verb, *arguments = shlex.split(self._here(command))
        if verb == "serve":
            self._start(arguments)
            return None
        offline = verb == "recover"
        ended = run_quire(verb, *arguments, *([] if offline else ["--server", self._cluster.servers]), timeout_s=120)
        assert ended.code == 0, (command, ended)
        return ended

    def _here(self, command: str) -> str:
        """The command with the addresses and folders of this cluster."""
        if self._moved is not None:
            command = command.replace(MOVED, self._moved.address)
        command = ADDRESS.sub(lambda found: self._cluster[f"n{found[1]}"].address, command.replace(SECRET, ""))
        return re.sub(r"data/(n\d)", lambda found: str(self._cluster[found[1]].data_dir), command)

    def _start(self, arguments: list[str]) -> None:
        given = dict(zip(arguments[::2], arguments[1::2], strict=True))
        node = self._cluster[given.pop("--node")]
        assert (given.pop("--listen"), given.pop("--data-dir")) == (node.address, str(node.data_dir))
        node.flags = [*self._cluster.flags, *(word for pair in given.items() for word in pair)]
        if node.process is None:
            node.start()

    def votes(self, *node_ids: str) -> None:
        """Wait until these are the voters, and all of them are ready."""

        def are_voters() -> bool:
            rows = self._cluster.elected().status()["members"]
            return [row["node_id"] for row in rows if row["role"] == "voter"] == list(node_ids)

        self._cluster.wait_until(f"{node_ids} vote", are_voters)
        self._cluster.wait_until_ready(*(self._cluster[node_id] for node_id in node_ids))

    def left(self, node_id: str) -> None:
        node = self._cluster[node_id]
        assert node.ended() == Exit.REMOVED, node.last_words()


@pytest.mark.full
def test_a_cluster_grows_is_moved_and_shrinks_by_the_runbook(clusters: Clusters) -> None:
    cluster = clusters.make(["n1"], flags=FLAGS)
    for number in (2, 3, 4, 12):
        cluster.make_joining(f"n{number}", cluster["n1"])
    cluster["n1"].may_end = True
    operator = Operator(cluster, cluster["n12"])
    operator.run("Members", but="--help")
    cluster.wait_until_ready(cluster["n1"])
    operator.run("Add nodes")
    operator.votes("n1", "n2", "n3")
    add, start, *_ = commands_of("Replace a machine")
    operator.run_one(add)
    operator.run_one(start)
    operator.votes("n1", "n2", "n3", "n4")
    operator.run_one("quire members remove n1")
    operator.left("n1")
    second, moved = cluster["n2"], cluster["n12"]
    second.stop()
    second.address = moved.address
    second.start()
    assert f"quire members move n2={MOVED}" in commands_of("Replace a machine")
    operator.run_one(f"quire members move n2={MOVED}")
    operator.votes("n2", "n3", "n4")
    operator.run("Fewer voters")
    operator.left("n3")
    operator.votes("n2", "n4")


@pytest.mark.full
def test_a_lost_disk_a_lost_majority_and_maintenance_by_the_runbook(clusters: Clusters) -> None:
    cluster = clusters.formed(flags=FLAGS)
    operator = Operator(cluster)
    third = cluster["n3"]
    third.stop()
    shutil.rmtree(third.data_dir)
    third.start()
    cluster.wait_until_ready(third)
    operator.run("Replace a disk")
    operator.votes("n1", "n2", "n3")
    [drain] = [command for command in commands_of("Rolling restart") if command.startswith("quire drain")]
    operator.run_one(drain)
    operator.run_one(drain.replace("drain", "undrain"))

    cluster.elected().apply(["incr", "counter"])
    cluster.wait_for_equal()
    cluster.kill_all()
    for node in (cluster["n1"], cluster["n2"]):
        shutil.rmtree(node.data_dir)
    inspect, recover, first, *rest = commands_of("A lost majority")
    shown, told = operator.run_one(inspect), operator.run_one(recover)
    assert shown is not None
    assert "last epoch" in shown.stdout
    assert told is not None
    assert "history" in told.stdout
    operator.run_one(first)
    cluster.wait_until_ready(third)
    for command in rest:
        operator.run_one(command)
    operator.votes("n1", "n2", "n3")
    assert third.local_state()["state"] == {"counter": 1}
    cluster.wait_until("n1 has all", lambda: cluster["n1"].local_state()["state"] == {"counter": 1})
