"""The settings that say who may reach a node or a standalone log: its certificates, its tokens, `insecure`."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, FilePath

from quire.replication.address import host_and_port, is_loopback

from ..access.credentials import CredentialFiles
from ..access.tls import TlsFiles

TlsCert = Annotated[
    FilePath | None,
    Field(
        description="File with this server's certificate, as PEM: `quire certs node` makes one. Connections are then "
        "TLS 1.3, and a cluster's nodes prove to each other who they are. Needs tls_key and tls_ca. The three files "
        "and tokens are read again when they change, and on SIGHUP."
    ),
]
TlsKey = Annotated[FilePath | None, Field(description="File with the key of tls_cert, as PEM, without a password.")]
TlsCa = Annotated[
    FilePath | None,
    Field(
        description="File with the CA's certificate, as PEM. While the CA is rotated, it holds the old one and the new."
    ),
]
Tokens = Annotated[
    FilePath | None,
    Field(
        description="File with the tokens of the clients, the same on all nodes; `quire token new` adds one. Without "
        "it, everyone who reaches the port may do everything. Needs tls_cert, so that no token is sent in plain text."
    ),
]

INSECURE = (
    "--insecure: others can read this server's traffic, or reach it without a token and read, write and administer; "
    "make certificates and tokens (`quire certs`, `quire token`), and start it with --tls-cert, --tls-key, --tls-ca "
    "and --tokens"
)


def credential_files(
    tls_cert: Path | None, tls_key: Path | None, tls_ca: Path | None, tokens: Path | None
) -> CredentialFiles:
    """The files of a server. Raises ValueError: some are missing."""
    named = {"tls_cert": tls_cert, "tls_key": tls_key, "tls_ca": tls_ca}
    missing = [name for name, path in named.items() if path is None]
    if tls_cert is None or tls_key is None or tls_ca is None:
        if len(missing) < len(named):
            raise ValueError(f"tls_cert, tls_key and tls_ca go together; give {' and '.join(missing)}, too")
        if tokens is not None:
            raise ValueError(
                "tokens needs certificates, since a token in plain text can be read on its way; make them with `quire "
                "certs`, and give --tls-cert, --tls-key and --tls-ca"
            )
        return CredentialFiles()
    return CredentialFiles(TlsFiles(tls_cert, tls_key, tls_ca), tokens)


def check_reach(listen: str, files: CredentialFiles, name: str, *, insecure: bool) -> None:
    """Check that a server that other machines can reach admits only those that it knows. Raises ValueError."""
    locked = files.tls is not None and files.tokens is not None
    if insecure and locked:
        raise ValueError("insecure has no effect with certificates and tokens; remove it")
    if locked or insecure or is_loopback(host_and_port(listen)[0]):
        return
    raise ValueError(
        f"other machines can reach listen {listen}, so this server needs certificates and tokens; run `quire certs "
        f"init certs --cluster NAME`, `quire certs node certs {name}` and `quire token new NAME --role admin --file "
        f"tokens`, and start it with `--tls-cert certs/{name}.crt --tls-key certs/{name}.key --tls-ca certs/ca.crt "
        "--tokens tokens` (or with --insecure, if you trust the whole network)"
    )
