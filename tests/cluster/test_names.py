"""Names that a client dials, and nodes before they know each other's ids: what TLS proves is remembered."""

from pathlib import Path

import pytest

from quire.cluster.access.client_credentials import ClientCredentials
from quire.cluster.access.credentials import CredentialFiles, Credentials
from quire.cluster.client import Unavailable
from quire.cluster.client.attempts import NothingWritten
from quire.cluster.client.transport import Transport
from quire.replication.names import Names
from tests.cluster.access.issued import Issuer
from tests.cluster.tls_server import TlsServer, tls_server
from tests.replication.name_server import UNKNOWN, NameServer

NAME = "n1.example"
TOKEN = "quire_" + "a" * 43
CALL_S = 30.0


@pytest.fixture
def authority(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path / "ours")


async def call(server: TlsServer, names: Names, credentials: ClientCredentials | None) -> bytes:
    """The answer that a new client gets. Raises NothingWritten."""
    transport = Transport([f"{NAME}:{server.port}"], CALL_S, credentials, names=names)
    try:
        return (await transport.call_once("GET", "/")).body
    finally:
        await transport.close()


async def test_a_client_with_a_token_dials_a_server_that_proved_the_cluster_s_name_while_names_do_not_resolve(
    authority: Issuer,
) -> None:
    resolver = NameServer()
    names, credentials = Names(resolver.look_up, fresh_s=0.0), ClientCredentials(TOKEN, authority.file)
    async with tls_server(authority.tls()) as server:
        await call(server, names, credentials)
        resolver.answer = UNKNOWN

        assert (await call(server, names, credentials)).startswith(b"<")


async def test_a_client_refuses_and_forgets_an_address_at_which_another_server_answers(
    authority: Issuer, tmp_path: Path
) -> None:
    resolver = NameServer()
    names, credentials = Names(resolver.look_up, fresh_s=0.0), ClientCredentials(TOKEN, authority.file)
    async with (
        tls_server(authority.tls()) as server,
        tls_server(Issuer(tmp_path / "theirs").tls()) as stranger,
    ):
        await call(server, names, credentials)
        resolver.answer = UNKNOWN

        with pytest.raises(Unavailable, match="its certificate is not of the CA that was given"):
            await call(stranger, names, credentials)
        with pytest.raises(NothingWritten, match=r"cannot be reached \(temporary failure in name resolution\)"):
            await call(server, names, credentials)


async def test_a_client_without_a_ca_remembers_nothing() -> None:
    resolver = NameServer()
    names = Names(resolver.look_up, fresh_s=0.0)
    async with tls_server(None) as server:
        await call(server, names, None)
        resolver.answer = UNKNOWN

        with pytest.raises(NothingWritten, match=r"cannot be reached \(temporary failure in name resolution\)"):
            await call(server, names, None)


async def test_a_node_that_joins_remembers_where_the_nodes_that_it_asked_proved_themselves(authority: Issuer) -> None:
    resolver = NameServer()
    names = Names(resolver.look_up, fresh_s=0.0)
    credentials = Credentials(CredentialFiles(tls=authority.issue("n2")), "n2", names)
    async with tls_server(authority.tls()) as server:
        assert await credentials.node_at(f"{NAME}:{server.port}") == "n1"
        resolver.answer = UNKNOWN

        assert await credentials.node_at(f"{NAME}:{server.port}") == "n1"
