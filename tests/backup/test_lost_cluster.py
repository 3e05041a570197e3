"""The runbook's way back from a cluster that is lost whole, with clients that go on; and how long it takes."""

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from threading import Event, Thread

import pytest

from quire.cluster import client as quire_client
from quire.cluster.backup.contents import read_all
from quire.cluster.backup.manifest import BackupRefused
from quire.cluster.backup.object_store import open_store
from quire.cluster.backup.store import StoreFailed
from quire.cluster.client import ClientError, HistoryChanged, OutcomeUnknown
from tests.backup.gateway import BUCKET, QUICK, Gateway
from tests.processes.cluster import DEADLINE_S, Cluster, Clusters, environment, run_quire
from tests.processes.test_runbook import Operator, commands_of

CLIENTS = 3
PLACE = "s3://backups/lab"


class Client:
    """Counts under a named session until it is told to end. What it does after a change of history is its program."""

    def __init__(self, name: str, servers: str) -> None:
        self.name = name
        self._servers = servers
        self._ending = Event()
        self.sent = 0
        self.answered = 0
        self.histories: list[int] = []
        """The sequences that its session had when it was opened again after a change of history."""
        self.failure: BaseException | None = None
        self.thread = Thread(target=self._run)

    def end(self) -> None:
        self._ending.set()
        self.thread.join()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            asyncio.run(self._count())
        except BaseException as error:  # noqa: BLE001  # It is raised where the test ends it.
            self.failure = error

    async def _count(self) -> None:
        changed = False
        while not self._ending.is_set():
            try:
                async with quire_client.connect(self._servers, session=self.name, timeout_s=DEADLINE_S) as client:
                    if changed:
                        self.histories.append((await client.session()).sequence)
                        changed = False
                    while not self._ending.is_set():
                        self.sent += 1
                        with suppress(OutcomeUnknown):  # What was under way when the cluster was lost.
                            await client.apply(["add", 1])
                            self.answered += 1
            except HistoryChanged:
                changed = True
            except ClientError:
                continue  # Nobody serves: the cluster is lost.


@contextmanager
def kept(gateway: Gateway, command: str, folder: Path) -> Generator[None]:
    """The runbook's backup, which runs until the block ends."""
    words = command.split()
    program = [sys.executable, "-m", "quire.cluster.cli.main", *words[1:]]
    with (folder / "backup.log").open("wb") as output:
        process = subprocess.Popen(program, env=environment(gateway.environment), stdout=output, stderr=output)
        try:
            yield
        finally:
            process.terminate()
            process.wait(DEADLINE_S)


@pytest.mark.slow
def test_a_lost_cluster_is_restored_and_grown_by_the_runbook_and_its_clients_go_on(
    clusters: Clusters, gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, place = clusters.formed(), f"s3://{BUCKET}/{token_hex(4)}"
    for name, value in gateway.environment.items():
        monkeypatch.setenv(name, value)
    keep, *look = [line.replace(PLACE, place) for line in commands_of("Back up and restore")]
    store, clients = (
        open_store(place, gateway.options, QUICK),
        [Client(f"c{n}", cluster.servers) for n in range(CLIENTS)],
    )

    def covers(index: int) -> bool:
        try:
            return read_all(store, print)[-1].end.index >= index
        except (BackupRefused, StoreFailed):
            return False

    for client in clients:
        client.thread.start()
    keep = f"{keep.replace('--every 60', '--every 1').partition(' --metrics')[0]} --server {cluster.servers}"
    with kept(gateway, keep, tmp_path):
        cluster.wait_until("clients are served", lambda: all(client.answered > 20 for client in clients))
        index = int(cluster.leader.status()["applied_index"])
        cluster.wait_until("the backup has that", lambda: covers(index))
    for line in look:
        verb = line.split()[1:]
        ended = run_quire(*verb, *(["--server", cluster.servers] if "status" in verb else []))
        assert ended.code == 0, (line, ended)

    cluster.kill_all()
    for node in cluster:
        shutil.rmtree(node.data_dir)
        node.flags = [*cluster.flags]
    began = time.monotonic()
    operator = Operator(cluster)
    for line in commands_of("The whole cluster is lost"):
        run_one(operator, line.replace(PLACE, place), cluster)
    serving_s = time.monotonic() - began
    operator.votes("n1", "n2", "n3")
    whole_s = time.monotonic() - began

    at = {client.name: client.answered for client in clients}
    cluster.wait_until("clients go on", lambda: all(client.answered > at[client.name] + 20 for client in clients))
    for client in clients:
        client.end()
    assert all(len(client.histories) == 1 for client in clients), [client.histories for client in clients]
    assert all(0 < client.histories[0] <= client.sent for client in clients)
    sys.stdout.write(f"serving, and the others started, after {serving_s:.1f} s; three voters after {whole_s:.1f} s\n")


def run_one(operator: Operator, line: str, cluster: Cluster) -> None:
    """Run a line of the section; a restore needs no server, and the rest is the operator's."""
    if line.startswith("quire restore"):
        words = line.replace("data/n1", str(cluster["n1"].data_dir)).split()[1:]
        ended = run_quire(*words)
        assert ended.code == 0, (line, ended)
    else:
        operator.run_one(line)
