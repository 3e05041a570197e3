"""TLS 1.3 between nodes, and from clients to nodes. Names are verified, not addresses.

A cluster has one CA. A node's certificate has the DNS names `NODE.CLUSTER.quire` and `CLUSTER.quire`. A node dials a
peer under the peer's own name, and a client dials any node under the cluster's, so that proxies and mapped ports may
stand between. OpenSSL checks the name before a byte is sent.

One port serves both. A node asks for a certificate if it is dialled under its own name, as peers do; a browser, which
would show its user a dialogue, never dials that name.

A context is never changed after it was made: `load_tls` makes all of them anew from the files, or none.
"""

import hashlib
import re
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import ClusterError
from .files import read_bounded

DOMAIN = "quire"
CLUSTER_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
MAX_FILE_BYTES = 1 << 20
WHOLE = "give the file that `quire certs` made, whole"

Certificate = Mapping[str, object]
"""What `ssl.SSLObject.getpeercert` returns."""


class TlsRefused(ClusterError):
    """The files cannot be used; the text says which one, why, and what to do."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """A node's certificate and its key, and the certificates of the CAs that it trusts, as PEM."""

    certificate: Path
    key: Path
    ca: Path


@dataclass(frozen=True, slots=True, eq=False)
class Tls:
    """The contexts that a node uses from now on, and what its certificate says."""

    cluster: str
    node_id: str
    clients: ssl.SSLContext
    """For callers that dial `CLUSTER.quire` or another name: none is asked for a certificate."""
    peers: ssl.SSLContext
    """For callers that dial this node's own name: they must show a certificate of the CA."""
    dialling: ssl.SSLContext
    """For dialling peers; it verifies the name that is dialled."""
    expires_at: float
    """When the node's certificate expires, in Unix seconds."""
    ca_expires_at: float
    """When the first of the trusted CAs expires."""
    ca_digests: frozenset[bytes]
    """SHA-256 of each trusted CA's certificate."""
    dns_names: frozenset[str]
    """Every DNS name in the node's certificate; clients may dial it under any of them."""

    @property
    def node_name(self) -> str:
        """The DNS name under which peers dial this node."""
        return name_of_node(self.node_id, self.cluster)


@dataclass(frozen=True, slots=True, eq=False)
class ClientTls:
    """What a client needs: a context that trusts the cluster's CA, and the name that a server must prove."""

    context: ssl.SSLContext
    server_name: str


def name_of_cluster(cluster: str) -> str:
    """The DNS name that every node of a cluster proves to clients."""
    return f"{cluster}.{DOMAIN}"


def name_of_node(node_id: str, cluster: str) -> str:
    """The DNS name that one node proves to its peers."""
    return f"{node_id}.{cluster}.{DOMAIN}"


def node_in(certificate: Certificate | None, cluster: str) -> str | None:
    """The id of the node of this cluster that a verified certificate was issued to; None if it was to none."""
    names = _dns_names(certificate or {})
    suffix = f".{name_of_cluster(cluster)}"
    nodes = [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
    return nodes[0] if len(nodes) == 1 and name_of_cluster(cluster) in names and "." not in nodes[0] else None


def expiry_of(certificate: Certificate) -> float:
    """When a verified certificate expires, in Unix seconds."""
    return float(ssl.cert_time_to_seconds(str(certificate["notAfter"])))


def load_tls(files: TlsFiles, node_id: str | None = None) -> Tls:
    """The contexts from a node's files. They are checked against each other, as a peer would check them.

    `node_id` is the node that the certificate must be issued to; a server without peers takes the one that it names.

    Raises:
        TlsRefused: a file cannot be read or is cut off, or they do not belong together.
    """
    ca = _text_of(files.ca, "tls_ca")
    for path, name in ((files.certificate, "tls_cert"), (files.key, "tls_key")):
        _text_of(path, name)
    clients = _server_context(files)
    peers = _server_context(files)
    dialling = _trusting(ca, files.ca)
    _load_chain(dialling, files)
    _load_ca(peers, ca, files.ca)
    peers.verify_mode = ssl.CERT_REQUIRED
    certificate = _own_certificate(peers, files, ca)
    cluster = _cluster_in(certificate, files.certificate)
    issued_to = node_in(certificate, cluster)
    if issued_to is None or node_id not in (None, issued_to):
        whose = "no node" if issued_to is None else f"node {issued_to}"
        command = f"quire certs node DIR {node_id or 'NODE'}"
        raise TlsRefused(
            f"tls_cert {files.certificate} was issued to {whose} of the cluster {cluster}, and this node is "
            f"{node_id or 'not named there'}; make one with `{command}`"
        )
    return Tls(
        cluster,
        issued_to,
        clients,
        peers,
        dialling,
        expiry_of(certificate),
        min(expiry_of(each) for each in dialling.get_ca_certs()),
        frozenset(hashlib.sha256(each).digest() for each in dialling.get_ca_certs(binary_form=True)),
        frozenset(_dns_names(certificate)),
    )


def load_client_tls(ca: Path, cluster: str | None = None) -> ClientTls:
    """What a client needs to dial a cluster; without `cluster`, the name is the one in the subject of the CA.

    Raises:
        TlsRefused: the file cannot be read or holds no CA, or it names no cluster and `cluster` does not, either.
    """
    context = _trusting(_text_of(ca, "ca"), ca)
    if cluster is None:
        named = {name for each in context.get_ca_certs() for name in _names_of_subject(each)}
        cluster = named.pop() if len(named) == 1 else ""
        if not CLUSTER_LABEL.fullmatch(cluster):
            raise TlsRefused(f"ca {ca} does not name one cluster in its subject; name the cluster as well (cluster=)")
    elif not CLUSTER_LABEL.fullmatch(cluster):
        raise TlsRefused(f"{cluster!r} is not a cluster's name; use 1 to 63 of a-z, 0-9 and -")
    return ClientTls(context, name_of_cluster(cluster))


def _text_of(path: Path, what: str) -> str:
    try:
        data, _ = read_bounded(path, MAX_FILE_BYTES)
    except OSError as error:
        raise TlsRefused(f"{what} {path} cannot be read: {(error.strerror or str(error)).lower()}") from None
    # A file that is being written has its last line without its end, or a certificate without its last line.
    if len(data) > MAX_FILE_BYTES or not data.isascii() or data.count(b"-----BEGIN ") != data.count(b"-----END "):
        raise TlsRefused(f"{what} {path} is not PEM, or is cut off; {WHOLE}")
    return data.decode("ascii")


def _server_context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # No connection is resumed: each proves what it is, under the certificates of the day.
    _load_chain(context, files)
    return context


def _trusting(ca: str, path: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    _load_ca(context, ca, path)
    return context


def _load_chain(context: ssl.SSLContext, files: TlsFiles) -> None:
    try:
        # Without a password, so that a locked key does not ask for one at the terminal.
        context.load_cert_chain(files.certificate, files.key, password=lambda: b"")
    except OSError as error:  # SSLError is one, too.
        if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
            why = f"{files.key} is not the key of that certificate"
        elif isinstance(error, ssl.SSLError):
            why = f"one of them is not PEM, is cut off or needs a password; {WHOLE}"
        else:
            why = (error.strerror or str(error)).lower()
        raise TlsRefused(f"tls_cert {files.certificate} and tls_key {files.key} cannot be used: {why}") from None


def _load_ca(context: ssl.SSLContext, ca: str, path: Path) -> None:
    try:
        context.load_verify_locations(cadata=ca)
    except (ssl.SSLError, ValueError):
        raise TlsRefused(f"{path} holds no certificate of a CA, or a part of one; {WHOLE}") from None
    if not context.get_ca_certs():
        raise TlsRefused(f"{path} holds no certificate of a CA; {WHOLE}")


def _own_certificate(peers: ssl.SSLContext, files: TlsFiles, ca: str) -> Certificate:
    """The node's certificate, as a peer sees it in a handshake with this node, which both ends verify."""
    dialling = _trusting(ca, files.ca)
    dialling.check_hostname = False  # The name is not known yet.
    _load_chain(dialling, files)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = peers.wrap_bio(to_server, to_client, server_side=True)
    client = dialling.wrap_bio(to_client, to_server)
    try:
        for end in (client, server, client, server):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    except ssl.SSLError as error:
        why = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else error.reason
        raise TlsRefused(
            f"tls_cert {files.certificate} is not accepted by tls_ca {files.ca} now ({why}); check both and this "
            "machine's clock, and make another with `quire certs node`"
        ) from None
    certificate: Certificate | None = client.getpeercert()
    return certificate or {}


def _cluster_in(certificate: Certificate, path: Path) -> str:
    labels = [name.removesuffix(f".{DOMAIN}") for name in _dns_names(certificate) if name.endswith(f".{DOMAIN}")]
    clusters = [label for label in labels if CLUSTER_LABEL.fullmatch(label)]
    if len(clusters) != 1:
        raise TlsRefused(f"tls_cert {path} does not have one name CLUSTER.{DOMAIN}; make one with `quire certs node`")
    return clusters[0]


def _pairs(value: object) -> Iterator[tuple[str, str]]:
    """The pairs of texts in what `getpeercert` has for a name, however deep."""
    match value:
        case (str(kind), str(text)):
            yield kind, text
        case tuple():
            for each in value:
                yield from _pairs(each)
        case _:
            return


def _dns_names(certificate: Certificate) -> list[str]:
    return [text.lower() for kind, text in _pairs(certificate.get("subjectAltName")) if kind == "DNS"]


def _names_of_subject(certificate: Certificate) -> list[str]:
    return [text for kind, text in _pairs(certificate.get("subject")) if kind == "commonName"]
