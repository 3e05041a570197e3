"""Certificates of a cluster for tests: a CA, nodes' certificates, and files of them."""

import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from quire.cluster.access.tls import Tls, TlsFiles, load_tls

DAY = timedelta(days=1)
CLUSTER = "shop"


class Authority:
    """The CA of a cluster; `pem` is its certificate."""

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _name(cluster)
        now = datetime.now(UTC)
        builder = _builder(self._subject, self._subject, self._key, now - DAY, now + 10 * DAY)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        own = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        builder = builder.add_extension(own, critical=False)
        self.pem = builder.sign(self._key, SHA256()).public_bytes(Encoding.PEM)

    def write(self, path: Path) -> Path:
        path.write_bytes(self.pem)
        return path

    def issue(self, folder: Path, node: str = "n1", *, from_day: float = -1, to_day: float = 5) -> tuple[Path, Path]:
        """The files of a node's certificate and its key, valid between days from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.DNSName(f"{node}.{self.cluster}.quire"), x509.DNSName(f"{self.cluster}.quire")]
        now = datetime.now(UTC)
        builder = _builder(_name(node), self._subject, key, now + from_day * DAY, now + to_day * DAY)
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        # Two CAs of one cluster have one subject, so a certificate names its issuer's key.
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(issuer, critical=False)
        certificate, private = folder / f"{node}.crt", folder / f"{node}.key"
        certificate.write_bytes(builder.sign(self._key, SHA256()).public_bytes(Encoding.PEM))
        private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return certificate, private

    def context(self, folder: Path, node: str = "n1", *, from_day: int = -1, to_day: int = 5) -> ssl.SSLContext:
        """A server's context with a new certificate of that node."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(*self.issue(folder, node, from_day=from_day, to_day=to_day))
        return context


def _name(name: str) -> x509.Name:
    return x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "quire"), x509.NameAttribute(NameOID.COMMON_NAME, name)]
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, start: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
    )


@dataclass(frozen=True)
class Issuer:
    """A CA of a cluster, and a folder for its files."""

    folder: Path
    authority: Authority = field(default_factory=lambda: Authority(CLUSTER))

    @property
    def file(self) -> Path:
        """The CA's certificate."""
        path = self.folder / "ca.crt"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            self.authority.write(path)
        return path

    def issue(self, node: str, *, ended: bool = False) -> TlsFiles:
        """The files of a node; one whose certificate has `ended` cannot load them."""
        ca = self.file
        return TlsFiles(*self.authority.issue(self.folder, node, from_day=-2, to_day=-1 if ended else 5), ca)

    def tls(self, node: str = "n1") -> Tls:
        """What a node with new files is given."""
        return load_tls(self.issue(node), node)
