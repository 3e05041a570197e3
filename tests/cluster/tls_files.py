"""Certificates of a CA that lives as long as a test, in the files that a node and its callers are given."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

from quire.cluster.access.tls import Tls, TlsFiles, load_tls

CLUSTER = "shop"


@dataclass(frozen=True)
class Authority:
    """A CA of a cluster, and a folder for its files."""

    folder: Path
    cluster: str = CLUSTER
    ca: trustme.CA = field(default_factory=lambda: trustme.CA(key_type=trustme.KeyType.ECDSA))

    @property
    def file(self) -> Path:
        """The CA's certificate."""
        path = self.folder / "ca.crt"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            self.ca.cert_pem.write_to_path(path)
        return path

    def issue(self, node: str, *, ended: bool = False) -> TlsFiles:
        """The files of a node; one whose certificate has `ended` cannot load them."""
        now = datetime.now(UTC)
        before, until = now - timedelta(days=2), now + timedelta(days=-1 if ended else 30)
        names = (f"{node}.{self.cluster}.quire", f"{self.cluster}.quire")
        issued = self.ca.issue_cert(*names, not_before=before, not_after=until, key_type=trustme.KeyType.ECDSA)
        files = TlsFiles(self.folder / f"{node}.crt", self.folder / f"{node}.key", self.file)
        issued.private_key_pem.write_to_path(files.key)
        files.certificate.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        return files

    def tls(self, node: str = "n1") -> Tls:
        """What a node with new files is given."""
        return load_tls(self.issue(node), node)
