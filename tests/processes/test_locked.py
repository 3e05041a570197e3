"""Nodes with certificates and tokens: who enters, and what each side says of a node that does not."""

import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from quire.cluster.access.roles import Role
from quire.cluster.access.tls import TlsFiles
from tests.cluster.access.issued import DAY, Authority
from tests.processes import borrowed
from tests.processes.cluster import Cluster, Clusters, Node, Reply, ending_clusters
from tests.processes.locked import PLAIN, CallerFiles, LockedFiles, locked_files, tls_flags
from tests.processes.refusals import FAILED, check_refused

SOON_S = 20.0
JSON = {"Content-Type": "application/json"}
ADD = b'{"commands": [["add", 1]]}'
SUM = b'{"request": null}'

MISSING_HERE = "if it has certificates, start this node with --tls-cert, --tls-key and --tls-ca"
MISSING_THERE = "it does not speak TLS: start it with --tls-cert, --tls-key and --tls-ca"


@pytest.fixture(scope="module")
def formed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster for the tests here. It still works when they are over."""
    with ending_clusters(tmp_path_factory.mktemp("locked")) as clusters:
        cluster = clusters.formed(locked=True)
        cluster.leader.apply(["add", 3])
        yield cluster
        cluster["n3"].apply(["add", 1])
        cluster.wait_for_equal()


def files_of(cluster: Cluster) -> LockedFiles:
    assert cluster.files is not None
    return cluster.files


def ask(node: Node, caller: CallerFiles, method: str, path: str, body: bytes | None = None) -> Reply:
    """What a caller with these files is answered."""
    before, node.shown = node.shown, caller.shown()
    try:
        return node.call(method, path, body, JSON)
    finally:
        node.shown = before


@contextmanager
def instead(cluster: Cluster, flags: Sequence[str], caller: CallerFiles) -> Generator[Node]:
    """N3 started again with other files, and its journal empty; afterwards it has its own again, and is ready."""
    node = cluster["n3"]
    before = (node.flags, node.shown, node.program)
    cluster.stop("n3")
    node.flags = [*without_files(node.flags), *flags]
    node.shown = caller.shown()
    for each in cluster:
        each.output.write_text("")
    try:
        yield node
    finally:
        if node.process is not None:
            cluster.stop("n3")
        node.flags, node.shown, node.program = before
        cluster.start_again(node)


def without_files(flags: Sequence[str]) -> list[str]:
    named = ("--tls-cert", "--tls-key", "--tls-ca", "--tokens")
    return [flag for at, flag in enumerate(flags) if flag not in named and (at == 0 or flags[at - 1] not in named)]


def wait_until_said(cluster: Cluster, failures: Mapping[tuple[str, str], str], journals: Mapping[str, str]) -> None:
    """Wait until each node's status has these words about a link, and its journal those."""

    def said() -> bool:
        for (node_id, link), words in failures.items():
            if words not in cluster[node_id].status()["link_failures"].get(link, ""):
                return False
        return all(words in cluster[node_id].output.read_text() for node_id, words in journals.items())

    cluster.wait_until(f"{failures} and {journals} are said", said, SOON_S)


def test_a_follower_forwards_what_the_role_of_a_token_allows(formed: Cluster) -> None:
    files, follower = files_of(formed), formed["n2"]

    assert ask(follower, files.caller(Role.WRITE), "POST", "/commands", ADD).status == 200
    assert ask(follower, files.caller(Role.READ), "POST", "/query", SUM).status == 200
    forbidden = ask(follower, files.caller(Role.READ), "POST", "/commands", ADD)
    assert (forbidden.status, forbidden.document["type"]) == (403, "urn:quire:problem:forbidden")
    assert "read" in forbidden.document["detail"]
    assert "write" in forbidden.document["detail"]
    unknown = ask(follower, CallerFiles(None, files.ca), "POST", "/commands", ADD)
    assert (unknown.status, unknown.headers["WWW-Authenticate"]) == (401, 'Bearer realm="quire"')


def test_nodes_with_certificates_survive_a_kill_of_each_and_a_restart_of_all(formed: Cluster) -> None:
    before = Decimal(formed.leader.query(None))
    for node in formed:
        node.kill()
        assert formed.elected().apply(["add", 1])
        formed.start_again(node)
        node.apply(["add", 1])
    formed.stop()
    formed.start()

    formed.wait_for_equal()
    assert Decimal(formed.leader.query(None)) == before + 6
    for node in formed:
        others = set(formed.nodes) - {node.node_id}
        formed.wait_until(f"{node.node_id} has its links", lambda: set(node.status()["links"]) == others)  # noqa: B023


# Certificates that a node does not start with


def expired(files: LockedFiles, folder: Path) -> TlsFiles:
    authority = Authority("tested")
    certificate, key = authority.issue(folder, "n3", from_day=-5, to_day=-1)
    return TlsFiles(certificate, key, authority.write(folder / "ca.crt"))


def not_yet_valid(files: LockedFiles, folder: Path) -> TlsFiles:
    authority = Authority("tested")
    certificate, key = authority.issue(folder, "n3", from_day=1, to_day=5)
    return TlsFiles(certificate, key, authority.write(folder / "ca.crt"))


def of_another_member(files: LockedFiles, folder: Path) -> TlsFiles:
    return files.tls("n2")


def of_another_ca(files: LockedFiles, folder: Path) -> TlsFiles:
    certificate, key = Authority("tested").issue(folder, "n3")
    return TlsFiles(certificate, key, files.ca)


def self_signed(files: LockedFiles, folder: Path) -> TlsFiles:
    private, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "n3")])
    now = datetime.now(UTC)
    names = x509.SubjectAlternativeName([x509.DNSName("n3.tested.quire"), x509.DNSName("tested.quire")])
    builder = x509.CertificateBuilder(name, name, private.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - DAY).not_valid_after(now + DAY).add_extension(names, critical=False)
    certificate = builder.sign(private, SHA256())
    (folder / "n3.crt").write_bytes(certificate.public_bytes(Encoding.PEM))
    (folder / "n3.key").write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return TlsFiles(folder / "n3.crt", folder / "n3.key", files.ca)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (expired, ["certificate has expired", "this machine's clock"]),
        pytest.param(not_yet_valid, ["certificate is not yet valid", "this machine's clock"], marks=pytest.mark.full),
        (of_another_member, ["was issued to node n2", "this node is n3", "quire certs node DIR n3"]),
        pytest.param(of_another_ca, ["is not accepted by tls_ca", "quire certs node"], marks=pytest.mark.full),
        pytest.param(self_signed, ["self-signed certificate", "quire certs node"], marks=pytest.mark.full),
    ],
)
def test_a_node_does_not_start_with_a_certificate_that_its_peers_would_refuse(
    clusters: Clusters, tmp_path: Path, made: Callable[[LockedFiles, Path], TlsFiles], words: list[str]
) -> None:
    cluster = clusters.make(locked=True)

    ended = cluster["n3"].run_to_end(*tls_flags(made(files_of(cluster), tmp_path)))

    check_refused(ended, FAILED, "tls_cert", *words)


# Nodes that start, and that their peers refuse


@pytest.mark.full
@pytest.mark.parametrize(
    ("cluster_name", "why"),
    [("other", "unable to get local issuer certificate"), ("tested", "self-signed certificate in certificate chain")],
)
def test_a_node_with_a_certificate_of_another_cluster_is_refused_and_both_sides_say_why(
    formed: Cluster, tmp_path: Path, cluster_name: str, why: str
) -> None:
    foreign = locked_files(tmp_path / "foreign", ["n3"], cluster_name)
    with instead(formed, foreign.flags("n3"), foreign.caller()) as node:
        node.start()

        refused = f"its certificate is refused: {why}"
        wait_until_said(
            formed,
            {("n3", "n1"): refused, ("n3", "n2"): refused, ("n1", "n3"): refused, ("n2", "n3"): refused},
            dict.fromkeys(formed.nodes, "perhaps it does not trust this node's certificate"),
        )
        assert not node.is_ready()
        assert formed["n2"].apply(["add", 1])


@pytest.mark.full
@pytest.mark.parametrize("cluster_name", ["other", "tested"])
def test_a_node_that_joins_with_a_certificate_of_another_cluster_is_refused_and_says_why(
    clusters: Clusters, tmp_path: Path, cluster_name: str
) -> None:
    cluster = clusters.formed(locked=True)
    stranger = cluster.make_joining("n4", cluster["n1"])
    foreign = locked_files(tmp_path / "foreign", ["n4"], cluster_name)
    stranger.flags += foreign.flags("n4")
    stranger.shown = foreign.caller().shown()
    stranger.start()

    why = f"{cluster['n1'].address} is no node of the cluster {cluster_name}"
    cluster.wait_until("n4 says why", lambda: any(why in reason for reason in stranger.status()["reasons"]), SOON_S)
    assert not stranger.is_ready()
    assert "n4" not in {member["node_id"] for member in cluster["n1"].status()["members"]}
    assert cluster["n2"].apply(["add", 1])


@pytest.mark.full
def test_a_member_that_shows_another_members_certificate_is_refused_and_both_sides_say_why(formed: Cluster) -> None:
    files = files_of(formed)
    with instead(formed, files.flags("n2"), files.caller()) as node:
        node.program = (sys.executable, "-m", borrowed.__name__)
        node.start()

        why = "it says that it is n3 and shows the certificate of n2"
        mismatch = "its certificate is refused: Hostname mismatch, certificate is not valid for 'n3.tested.quire'"
        wait_until_said(
            formed,
            {("n3", "n1"): why, ("n1", "link from n3"): why, ("n1", "n3"): mismatch, ("n2", "n3"): mismatch},
            {"n1": f"n3 was refused: certificate: {why}"},
        )
        assert not node.is_ready()
        assert formed["n2"].apply(["add", 1])


@pytest.mark.full
def test_a_node_without_certificates_is_refused_by_those_with_and_both_sides_say_what_is_missing(
    formed: Cluster,
) -> None:
    with instead(formed, [], PLAIN) as node:
        node.start()

        wait_until_said(
            formed,
            {
                ("n3", "n1"): MISSING_HERE,
                ("n3", "n2"): MISSING_HERE,
                ("n1", "n3"): MISSING_THERE,
                ("n2", "n3"): MISSING_THERE,
            },
            {"n1": "plain HTTP on the TLS port", "n2": "plain HTTP on the TLS port", "n3": "a TLS client"},
        )
        assert not node.is_ready()
        assert formed["n2"].apply(["add", 1])


@pytest.mark.full
def test_a_node_with_certificates_is_refused_by_those_without_and_both_sides_say_what_is_missing(
    clusters: Clusters, tmp_path: Path
) -> None:
    cluster = clusters.formed()
    files = locked_files(tmp_path / "files", ["n3"])
    with instead(cluster, files.flags("n3"), files.caller()) as node:
        node.start()

        wait_until_said(
            cluster,
            {
                ("n3", "n1"): MISSING_THERE,
                ("n3", "n2"): MISSING_THERE,
                ("n1", "n3"): MISSING_HERE,
                ("n2", "n3"): MISSING_HERE,
            },
            {"n1": "a TLS client", "n2": "a TLS client", "n3": "plain HTTP on the TLS port"},
        )
        assert not node.is_ready()
        assert cluster["n2"].apply(["add", 1])
