"""Makes a cluster's CA and its nodes' certificates, for `quire certs`. Only that command imports this module.

    DIR/ca.crt, ca.key      O=quire, CN=CLUSTER; may sign nodes and no other CA; 10 years
    DIR/n1.crt, n1.key      n1.CLUSTER.quire, CLUSTER.quire and the node's hosts; for both ends of a connection; 1 year

Keys are ECDSA P-256. A certificate is valid from a day before it is made, for machines whose clock is off.

A CA is replaced in three steps, and the files are usable after each, also if a command is killed. `add_ca` puts a new
CA in front of the old one in ca.crt, then its key into ca.key; `make_node` signs with the CA that ca.key belongs to;
`retire_ca` removes from ca.crt all but that one, once it has signed every node's certificate in the folder.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from quire.replication import NEW_NODE_ID, NODE_ID_FORM

from ..errors import ClusterError
from .files import PRIVATE, PUBLIC, NewFile, locked, read_bounded, replace_files
from .tls import CLUSTER_LABEL, DOMAIN, MAX_FILE_BYTES, name_of_cluster, name_of_node

CA_DAYS = 3650
NODE_DAYS = 365
MAX_HOSTS = 100
MAX_CAS = 2
"""One in use, and one that follows or precedes it."""
CLOCK_SLACK = timedelta(days=1)

_DNS_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_MAX_DNS_NAME = 253


class CertificatesRefused(ClusterError):
    """A certificate cannot be made or read; the text says why and what to do. No file was changed."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What a certificate is, for people."""

    file: str
    purpose: str
    """As in "CA of the cluster prod" or "node n1 of the cluster prod"."""
    names: list[str]
    expires: str
    """UTC, to the second."""
    days_left: int
    """Negative once it has expired."""
    signed_by: str
    """The key of the CA that signed it: the first digits of its identifier."""


@dataclass(frozen=True, slots=True)
class _Authority:
    """The CA that signs, the others that ca.crt holds, and the cluster of all."""

    cluster: str
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    all: list[x509.Certificate]


def make_ca(folder: Path, cluster: str, days: int = CA_DAYS) -> None:
    """Write ca.crt and ca.key of a new cluster. The folder is created if there is none, for its owner only.

    Raises:
        CertificatesRefused: the cluster's name is not one DNS label, one of the files exists, or one cannot be written.
    """
    if not CLUSTER_LABEL.fullmatch(cluster):
        raise CertificatesRefused(
            "the cluster's name is not one DNS label: use 1 to 63 of a-z, 0-9 and -, without - at the ends"
        )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(folder):
            for path in (folder / "ca.crt", folder / "ca.key"):
                if path.exists() or path.is_symlink():
                    replace = shlex.join(["quire", "certs", "init", str(folder), "--cluster", cluster, "--next"])
                    raise CertificatesRefused(
                        f"{path} exists: use another folder, or `{replace}` to replace the CA of a running cluster"
                    )
            certificate, key = _new_ca(cluster, days)
            replace_files(
                NewFile(folder / "ca.key", _key_text(key), PRIVATE),
                NewFile(folder / "ca.crt", _text(certificate), PUBLIC),
            )
    except OSError as error:
        raise _not_written(folder, error) from None


def add_ca(folder: Path, cluster: str, days: int = CA_DAYS) -> None:
    """Write a second CA of the cluster before the first one in ca.crt, and its key to ca.key.

    Raises:
        CertificatesRefused: the folder holds no CA of that cluster, or a second one already.
    """
    try:
        with locked(folder):
            old = _authority(folder)
            if old.cluster != cluster:
                raise CertificatesRefused(f"{folder / 'ca.crt'} is of the cluster {old.cluster}, not {cluster}")
            if len(old.all) >= MAX_CAS:
                shown = shlex.quote(str(folder))
                raise CertificatesRefused(
                    f"{folder / 'ca.crt'} holds {len(old.all)} CAs already: finish that replacement with "
                    f"`quire certs node {shown} NODE` for each node and `quire certs retire {shown}`"
                )
            certificate, key = _new_ca(cluster, days)
            # In this order: a key whose certificate is not in ca.crt could sign nothing that anyone accepts.
            replace_files(
                NewFile(folder / "ca.crt", _text(certificate, *old.all), PUBLIC),
                NewFile(folder / "ca.key", _key_text(key), PRIVATE),
            )
    except OSError as error:
        raise _not_written(folder, error) from None


def retire_ca(folder: Path) -> int:
    """Remove from ca.crt every CA but the one that signs; return how many were removed.

    Raises:
        CertificatesRefused: a certificate in the folder is signed by another CA.
    """
    try:
        with locked(folder):
            authority = _authority(folder)
            for path in sorted(folder.glob("*.crt")):
                if path.name != "ca.crt" and not _is_signed(_certificates(path)[0], authority.certificate):
                    sign = shlex.join(["quire", "certs", "node", str(folder), path.stem])
                    raise CertificatesRefused(
                        f"{path} is not signed by the newest CA: run `{sign}` and copy "
                        "both its files to the node, or move the file away if there is no such node any more"
                    )
            if len(authority.all) > 1:
                replace_files(NewFile(folder / "ca.crt", _text(authority.certificate), PUBLIC))
            return len(authority.all) - 1
    except OSError as error:
        raise _not_written(folder, error) from None


def make_node(folder: Path, node: str, hosts: Sequence[str] = (), days: int = NODE_DAYS) -> list[str]:
    """Write NODE.crt and NODE.key, or replace both; return the certificate's names.

    `hosts` are DNS names and IP addresses under which browsers and others reach the node. Without any, the new
    certificate has those of the old one.

    Raises:
        CertificatesRefused: the node's id or a host is not one, the folder has no CA, or a file cannot be written.
    """
    if not NEW_NODE_ID.fullmatch(node):
        raise CertificatesRefused(f"the node's id is not {NODE_ID_FORM}; give the one of `quire serve --node`")
    if node == "ca":
        raise CertificatesRefused("ca.crt and ca.key are the CA's own files: give the node another id")
    path = folder / f"{node}.crt"
    try:
        with locked(folder):
            authority = _authority(folder)
            own = [name_of_node(node, authority.cluster), name_of_cluster(authority.cluster)]
            names = [*map(_host_name, hosts)] if hosts else _hosts_of(path, own)
            if len(names) > MAX_HOSTS:
                raise CertificatesRefused(f"{len(names)} hosts were given, above the limit of {MAX_HOSTS}")
            alternatives = list(dict.fromkeys([*map(x509.DNSName, own), *names]))
            key = ec.generate_private_key(ec.SECP256R1())
            certificate = _new_node(authority, node, alternatives, key, days)
            replace_files(
                NewFile(folder / f"{node}.key", _key_text(key), PRIVATE), NewFile(path, _text(certificate), PUBLIC)
            )
    except OSError as error:
        raise _not_written(folder, error) from None
    return [str(name.value) for name in alternatives]


def show(path: Path) -> list[Shown]:
    """What each certificate of a file is, or of each *.crt of a folder.

    Raises:
        CertificatesRefused: a file cannot be read or holds no certificate.
    """
    files = sorted(path.glob("*.crt")) if path.is_dir() else [path]
    if not files:
        make = f"quire certs init {shlex.quote(str(path))} --cluster NAME"
        raise CertificatesRefused(f"{path} holds no *.crt; make a CA with `{make}`")
    return [_shown(file.name, certificate) for file in files for certificate in _certificates(file)]


def _new_ca(cluster: str, days: int) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(cluster)
    now = datetime.now(UTC)
    builder = _builder(subject, subject, key, now, now + timedelta(days=days))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(ca=True), critical=True)
    return builder.sign(key, SHA256()), key


def _new_node(
    authority: _Authority,
    node: str,
    names: Sequence[x509.GeneralName],
    key: ec.EllipticCurvePrivateKey,
    days: int,
) -> x509.Certificate:
    now, last = datetime.now(UTC), authority.certificate.not_valid_after_utc
    if now >= last:
        raise CertificatesRefused(
            f"the CA expired at {_time_text(last)}: make another with `quire certs init DIR --cluster "
            f"{authority.cluster} --next`"
        )
    until = min(now + timedelta(days=days), last)  # Nobody would accept it for longer.
    builder = _builder(_name(node), authority.certificate.subject, key, now, until)
    for extension, critical in (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(ca=False), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), False),
        (x509.SubjectAlternativeName(names), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), False),
    ):
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(authority.key, SHA256())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, until: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SLACK)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(name: str) -> x509.Name:
    return x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, DOMAIN), x509.NameAttribute(NameOID.COMMON_NAME, name)]
    )


def _usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=ca,
        crl_sign=ca,
        encipher_only=False,
        decipher_only=False,
    )


def _host_name(host: str) -> x509.GeneralName:
    """A host as a name in a certificate. Names under `quire` are those of nodes and clusters: no host may be one."""
    try:
        address: IPv4Address | IPv6Address = ip_address(host)
    except ValueError:
        pass
    else:
        if getattr(address, "scope_id", None) is None:
            return x509.IPAddress(address)
    name = host.lower()
    labels = name.split(".")
    is_name = len(name) <= _MAX_DNS_NAME and all(map(_DNS_LABEL.fullmatch, labels)) and not labels[-1].isdigit()
    if not is_name:
        raise CertificatesRefused(
            f"--host {host[:60]!r} is neither a DNS name nor an IP address; give it without a port"
        )
    if labels[-1] == DOMAIN:
        raise CertificatesRefused(f"--host {name}: names that end in .{DOMAIN} are given by the CA alone; leave it out")
    return x509.DNSName(name)


def _hosts_of(path: Path, own: Sequence[str]) -> list[x509.GeneralName]:
    """The hosts of the node's present certificate; none without one."""
    if not path.exists():
        return []
    names = _names_of(_certificates(path)[0])
    if own[0] not in [name.value for name in names]:
        raise CertificatesRefused(
            f"{path} exists and is not for {own[0]}; move it and its key away, then run this again"
        )
    return [name for name in names if name.value not in own]


def _authority(folder: Path) -> _Authority:
    """The CA of a folder: the certificate in ca.crt that ca.key belongs to."""
    path = folder / "ca.crt"
    certificates = _certificates(path)
    clusters = {_cluster_of_ca(each) for each in certificates}
    cluster = clusters.pop()
    if clusters or cluster is None:
        raise CertificatesRefused(f"{path} does not hold the CAs of one cluster, as `quire certs init` makes them")
    try:
        key = load_pem_private_key(read_bounded(folder / "ca.key", MAX_FILE_BYTES)[0], None)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise CertificatesRefused(
            f"{folder / 'ca.key'} cannot be read: {why}; run this where the CA's key is kept"
        ) from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise CertificatesRefused(
            f"{folder / 'ca.key'} is no key, is cut off or has a password; restore it from where it is kept"
        ) from None
    for each in certificates:
        if isinstance(key, ec.EllipticCurvePrivateKey) and each.public_key() == key.public_key():
            return _Authority(cluster, each, key, certificates)
    raise CertificatesRefused(
        f"{folder / 'ca.key'} is not the key of a CA in {path}; restore the one that belongs to it"
    )


def _certificates(path: Path) -> list[x509.Certificate]:
    """The certificates of a file: at least one."""
    try:
        data, _ = read_bounded(path, MAX_FILE_BYTES)
        if data.count(b"-----BEGIN ") != data.count(b"-----END "):
            raise ValueError(path)  # The parser would leave out the one that is cut off.
        return x509.load_pem_x509_certificates(data)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        advice = "; make a CA with `quire certs init`" if path.name == "ca.crt" else ""
        raise CertificatesRefused(f"{path} cannot be read: {why}{advice}") from None
    except ValueError:
        raise CertificatesRefused(f"{path} holds no certificate, or a part of one; copy it again as a whole") from None


def _cluster_of_ca(certificate: x509.Certificate) -> str | None:
    """The cluster whose CA this is; None if it is none."""
    try:
        is_ca = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, ValueError):
        return None
    named = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(named[0].value) if is_ca and named and certificate.subject == _name(str(named[0].value)) else None


def _is_signed(certificate: x509.Certificate, ca: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _names_of(certificate: x509.Certificate) -> list[x509.GeneralName]:
    try:
        return list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except (x509.ExtensionNotFound, ValueError):
        return []


def _shown(file: str, certificate: x509.Certificate) -> Shown:
    names = [str(name.value) for name in _names_of(certificate)]
    cluster = _cluster_of_ca(certificate)
    last = certificate.not_valid_after_utc
    return Shown(
        file,
        _purpose_of(names) if cluster is None else f"CA of the cluster {cluster}",
        names,
        _time_text(last),
        (last - datetime.now(UTC)).days,
        _signer_of(certificate),
    )


def _purpose_of(names: Sequence[str]) -> str:
    for name in names:
        node, _, rest = name.partition(".")
        if rest in names and rest.endswith(f".{DOMAIN}"):
            return f"node {node} of the cluster {rest.removesuffix(f'.{DOMAIN}')}"
    return "not made by quire certs"


def _signer_of(certificate: x509.Certificate) -> str:
    extensions = certificate.extensions
    try:
        identifier = extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier
    except x509.ExtensionNotFound:
        pass
    else:
        return (identifier or b"").hex()[:16] or "unknown"
    if certificate.issuer != certificate.subject:
        return "unknown"
    return x509.SubjectKeyIdentifier.from_public_key(certificate.public_key()).digest.hex()[:16]


def _text(*certificates: x509.Certificate) -> bytes:
    return b"".join(each.public_bytes(Encoding.PEM) for each in certificates)


def _key_text(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _time_text(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def _not_written(folder: Path, error: OSError) -> CertificatesRefused:
    why = (error.strerror or str(error)).lower()
    return CertificatesRefused(f"{folder} cannot be used: {why}; check that it exists and that you may write to it")
