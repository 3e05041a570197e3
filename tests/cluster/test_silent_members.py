"""Before another history begins the members are dialled: what counts as an answer for `quire restore` and `recover`."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from socket import create_server

import pytest

from quire.cluster.access.credentials import CredentialFiles, Credentials
from quire.cluster.cli.operating.offline import Caller, MayAnswer
from quire.cluster.cli.operating.restore import caller_of
from quire.cluster.data_dir.restoration import RestorePlan
from quire.log import Tail
from quire.replication.net.links import LinkServer
from quire.replication.net.trust import Trust
from tests.cluster.access.issued import Authority, Issuer
from tests.cluster.scripted import broken, foreign, scripted
from tests.ports import HOST, free_port
from tests.replication.loopback import listening, trusting, who
from tests.replication.recorder import Recorder

SECRET, ADVICE = b"a secret of the peers", "stop {node_id}"
PLAN = RestorePlan("c/h/1", "n1", f"{HOST}:1", "lab", Tail(7, 1, 1, 1), bytes(16), 1, bytes(16), bytes(16))
RESTORING = caller_of(PLAN)
RECOVERING = Caller(who("n1"), trusting(None), ADVICE, passes_others=True)
ANOTHER = b"another history."


@asynccontextmanager
async def node(node_id: str, secret: bytes | None, history: bytes = who("n2").cluster_id) -> AsyncGenerator[str]:
    """The address of a node with this secret."""
    trust = Trust(() if secret is None else (secret,), lambda _: True)
    server = LinkServer(Recorder(who(node_id, cluster_id=history)), trust)
    async with listening({"/peer": server.serve}) as address:
        yield address


@asynccontextmanager
async def http(status: int, tls: Path | None = None) -> AsyncGenerator[str]:
    """The address of a server that answers everything with this status, over TLS if a folder for its files is given."""
    context = None if tls is None else Authority("lab").context(tls)
    async with scripted(broken if status == 0 else foreign(status), tls=context) as server:
        yield server.address


async def why_refused(caller: Caller, address: str) -> str:
    """What is said if something at that address refuses."""
    with pytest.raises(MayAnswer) as error:
        await asyncio.to_thread(caller.check_nobody_answers, [("n2", address)], hidden=False)
    return str(error.value)


@pytest.mark.parametrize("status", [0, 200, 401, 403, 404, 421, 503])
async def test_any_answer_refuses_a_restore(status: int) -> None:
    async with http(status) as address:
        assert f"{address}, the address of n2, answers" in await why_refused(RESTORING, address)


async def test_a_server_that_wants_tls_refuses_a_restore(tmp_path: Path) -> None:
    async with http(200, tmp_path) as address:
        assert "nothing was changed" in await why_refused(RESTORING, address)


@pytest.mark.parametrize(
    ("there", "why"),
    [
        (node("n2", None), "n2 answers at"),
        (node("n2", None, ANOTHER), "n2 answers at"),
        (node("n2", SECRET), "the peer secrets of n1"),
        (node("n1", None), "this node is n1, too"),
    ],
    ids=["a member", "of another history", "with a secret", "the node itself"],
)
async def test_a_node_that_runs_refuses_a_restore(there: AbstractAsyncContextManager[str], why: str) -> None:
    async with there as address:
        assert why in await why_refused(RESTORING, address)


@pytest.mark.parametrize("caller", [RESTORING, RECOVERING], ids=["restore", "recover"])
async def test_a_process_that_accepts_and_is_frozen_refuses(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.replication.net.hello.HELLO_TIMEOUT_S", 0.5)
    with create_server((HOST, 0)) as frozen:
        address = f"{HOST}:{frozen.getsockname()[1]}"
        assert "cannot be told apart from a member" in await why_refused(caller, address)


@pytest.mark.parametrize("caller", [RESTORING, RECOVERING], ids=["restore", "recover"])
async def test_nobody_at_an_address_is_told_with_the_reason(caller: Caller, capsys: pytest.CaptureFixture[str]) -> None:
    address = f"{HOST}:{free_port()}"
    await asyncio.to_thread(caller.check_nobody_answers, [("n2", address)], hidden=False)
    assert capsys.readouterr().out.startswith(f"n2 at {address} does not answer: ")


async def test_a_process_that_hangs_up_during_tls_refuses_a_recovery(tmp_path: Path) -> None:
    credentials = Credentials(CredentialFiles(tls=Issuer(tmp_path).issue("n1")), "n1")
    proving = Trust((), lambda _: True, credentials.certificates)

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, HOST, 0) as server:
        address = f"{HOST}:{server.sockets[0].getsockname()[1]}"
        assert "cannot be told apart" in await why_refused(replace(RECOVERING, trust=proving), address)


async def test_another_history_with_this_clusters_secret_refuses_a_recovery_and_another_cluster_does_not() -> None:
    async with node("n2", SECRET, ANOTHER) as address:
        assert "cannot be told apart" in await why_refused(replace(RECOVERING, trust=trusting(SECRET)), address)
    async with node("n2", None, ANOTHER) as address:
        await asyncio.to_thread(RECOVERING.check_nobody_answers, [("n2", address)], hidden=False)
