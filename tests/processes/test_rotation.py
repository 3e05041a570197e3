"""Certificates, tokens and the CA of a cluster are replaced while clients use it, and no request fails."""

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial

from quire import connect_sync
from quire.cluster.access.certificates import add_ca, make_node, retire_ca
from quire.cluster.access.roles import Role
from quire.cluster.access.tokens import renew_token, revoke_token
from quire.cluster.client import BlockingClient
from tests.processes.cluster import Cluster, Clusters, Node
from tests.processes.locked import CLUSTER, CallerFiles, LockedFiles

READ_AGAIN = "certificates and tokens were read again"
SHORTER_DAYS = 200
BETWEEN = 20
"""Requests that each client makes between two steps."""


class Users:
    """Clients in threads: each makes one request after another, and stops at the first that fails."""

    def __init__(self) -> None:
        self.made: dict[str, int] = {}
        self.failed: dict[str, Exception] = {}
        self._ends = threading.Event()
        self._threads: list[threading.Thread] = []

    def begin(self, name: str, client: BlockingClient, request: Callable[[BlockingClient], object]) -> None:
        self.made[name] = 0

        def use() -> None:
            try:
                with client:
                    while not self._ends.is_set():
                        request(client)
                        self.made[name] += 1
            except Exception as error:  # noqa: BLE001  # The test raises it.
                self.failed[name] = error

        self._threads.append(threading.Thread(target=use, name=name))
        self._threads[-1].start()

    def end(self) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()
        if self.failed:
            raise AssertionError(f"requests failed: {self.failed}; made: {self.made}")


@contextmanager
def users_of(cluster: Cluster, caller: CallerFiles) -> Generator[Users]:
    """A writer over a stream through each node, and a reader of each node; each has the files alone."""
    users = Users()
    try:
        for node in cluster:
            write = connect_sync(node.address, token=caller.token, ca=caller.ca)
            users.begin(f"writer at {node.node_id}", write, lambda client: client.apply(["add", 1]))
            read = connect_sync(node.address, token=caller.token, ca=caller.ca)
            users.begin(f"reader at {node.node_id}", read, lambda client: client.query(None))
        yield users
    finally:
        users.end()


class Rotation:
    """The steps of the runbook, on the files of a cluster that runs."""

    def __init__(self, cluster: Cluster, files: LockedFiles, users: Users) -> None:
        self._cluster = cluster
        self._files = files
        self._users = users

    def used(self) -> None:
        """Each user has made some more requests."""
        before = dict(self._users.made)

        def all_went_on() -> bool:
            assert not self._users.failed, self._users.failed
            return all(made >= before[name] + BETWEEN for name, made in self._users.made.items())

        self._cluster.wait_until("everybody goes on", all_went_on)

    def certificates(self, days: int) -> None:
        """A new certificate for each node, one after the other."""
        for node in self._cluster:
            before = expiry_of(node)
            make_node(self._files.folder, node.node_id, days=days)
            self._on_each("its new certificate", partial(expires_not_at, before), node)
            self.used()

    def token(self, caller: CallerFiles) -> str:
        """A new token under the same name: first on every node, then for the clients, then without the old one."""
        assert caller.token is not None
        old, name = caller.token.read_text().strip(), caller.token.stem
        text = renew_token(self._files.folder / "tokens", name, None)
        self._on_each("the new token", lambda node: status_with(node, text) == 200)
        caller.token.write_text(f"{text}\n")
        self.used()
        revoke_token(self._files.folder / "tokens", f"{name}+old")
        self._on_each("no old token", lambda node: status_with(node, old) == 401)
        self.used()
        return old

    def ca(self) -> None:
        """A new CA: trusted beside the old one, then with certificates of its own, then alone."""
        add_ca(self._files.folder, CLUSTER)
        self._trusted(2)
        self.certificates(SHORTER_DAYS + 1)
        retire_ca(self._files.folder)
        self._trusted(1)

    def _trusted(self, count: int) -> None:
        self._on_each(f"{count} CAs", lambda node: len(node.status()["certificate"]["ca_sha256"]) == count)
        for node in self._cluster:
            node.shown = self._files.caller().shown()
        self._cluster.wait_until_ready()
        self.used()

    def _on_each(self, what: str, has: Callable[[Node], bool], *nodes: Node) -> None:
        for node in nodes or self._cluster:
            self._cluster.wait_until(f"{node.node_id} has {what}", partial(has, node))


def expiry_of(node: Node) -> float:
    return float(node.status()["certificate"]["expires_at"])


def expires_not_at(time_s: float, node: Node) -> bool:
    return expiry_of(node) != time_s


def status_with(node: Node, token: str) -> int:
    """The status of the answer to a caller with this token."""
    return node.call("GET", "/status", headers={"Authorization": f"Bearer {token}"}).status


def test_certificates_tokens_and_the_ca_are_replaced_and_no_request_fails(clusters: Clusters) -> None:
    cluster = clusters.formed(locked=True)
    files = cluster.files
    assert files is not None
    caller = files.caller(Role.WRITE)
    with users_of(cluster, caller) as users:
        rotation = Rotation(cluster, files, users)
        rotation.used()
        rotation.certificates(SHORTER_DAYS)
        old = rotation.token(caller)
        rotation.ca()

    cluster.wait_for_equal()
    before = cluster.leader.output.read_text().count(READ_AGAIN)
    cluster.leader.running.send_signal(signal.SIGHUP)
    cluster.wait_until(
        "SIGHUP has them read again", lambda: cluster.leader.output.read_text().count(READ_AGAIN) == before + 1
    )
    for node in cluster:
        assert status_with(node, old) == 401
        assert node.status()["alarms"] == []
