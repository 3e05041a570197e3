"""The health check of a container: ready, not ready, and a server that is not this cluster's."""

import asyncio
import json
import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import web

from quire.cluster.serve.healthcheck import NodeNotReady, check
from tests.cluster.access.issued import Authority
from tests.cluster.scripted import document, refusing, scripted, silent
from tests.processes.cluster import environment

DOCKERFILE = Path(__file__).resolve().parents[2] / "deploy" / "Dockerfile"
READY = document({"ready": True})


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("shop")


@pytest.fixture
def variables(tmp_path: Path, authority: Authority) -> dict[str, str]:
    """Those of a node with TLS."""
    certificate, key = authority.issue(tmp_path)
    ca = authority.write(tmp_path / "ca.crt")
    return {"QUIRE_TLS_CERT": str(certificate), "QUIRE_TLS_KEY": str(key), "QUIRE_TLS_CA": str(ca)}


def context_of(variables: dict[str, str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(variables["QUIRE_TLS_CERT"], variables["QUIRE_TLS_KEY"])
    return context


async def checked(variables: dict[str, str], address: str) -> None:
    await asyncio.to_thread(check, {**variables, "QUIRE_LISTEN": address})


@pytest.mark.parametrize("wildcard", ["127.0.0.1", "0.0.0.0", ""])
async def test_a_node_that_is_ready_is_healthy_whatever_it_listens_on(wildcard: str) -> None:
    async with scripted(READY) as server:
        await checked({}, server.address.replace("127.0.0.1", wildcard))
        assert [request[:2] for request in server.requests] == [("GET", "/readyz")]


async def test_a_node_with_tls_is_verified(variables: dict[str, str]) -> None:
    async with scripted(READY, tls=context_of(variables)) as server:
        await checked(variables, server.address)
        assert len(server.requests) == 1


async def test_a_server_of_another_ca_is_not_asked(variables: dict[str, str], tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    async with scripted(READY, tls=Authority("shop").context(other)) as server:
        with pytest.raises(NodeNotReady, match="certificate verify failed"):
            await checked(variables, server.address)
        assert server.requests == []


async def test_a_node_that_is_not_ready_is_not_healthy_and_says_why() -> None:
    async with scripted(refusing(503, "not-ready")) as server:
        with pytest.raises(NodeNotReady, match=r"answered 503: .*detail of not-ready"):
            await checked({}, server.address)


async def test_a_node_that_does_not_answer_in_time_is_not_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.cluster.serve.healthcheck.TIMEOUT_S", 0.1)
    async with silent() as address:
        with pytest.raises(NodeNotReady, match="timed out"):
            await checked({}, address)


@pytest.mark.parametrize("missing", ["QUIRE_TLS_CERT", "QUIRE_TLS_KEY", "QUIRE_TLS_CA"])
async def test_a_part_of_the_files_is_not_taken_for_none(missing: str, variables: dict[str, str]) -> None:
    async with scripted(READY) as server:
        with pytest.raises(NodeNotReady, match="set all of them, or none"):
            await checked({**variables, missing: ""}, server.address)
        assert server.requests == []


async def test_a_file_that_cannot_be_used_is_named(variables: dict[str, str]) -> None:
    async with scripted(READY) as server:
        with pytest.raises(NodeNotReady, match="tls_ca absent cannot be read"):
            await checked({**variables, "QUIRE_TLS_CA": "absent"}, server.address)


@pytest.mark.parametrize("listen", ["", "7001x", "n1", "n1:"])
def test_without_an_address_it_says_what_to_set(listen: str) -> None:
    with pytest.raises(NodeNotReady, match="QUIRE_LISTEN is not set to HOST:PORT"):
        check({"QUIRE_LISTEN": listen})


async def test_as_a_command_it_exits_with_0_or_with_1_and_a_sentence() -> None:
    def run(address: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "quire.cluster.serve.healthcheck"]
        return subprocess.run(
            command, env={"QUIRE_LISTEN": address}, capture_output=True, text=True, check=False, timeout=60
        )

    def unwell(_request: web.Request) -> web.Response:
        return web.Response(status=503, text="a\x1b[31m")

    async with scripted(READY, unwell) as server:
        ended = [await asyncio.to_thread(run, server.address) for _ in range(2)]

    assert [(each.returncode, each.stdout) for each in ended] == [(0, ""), (1, "")]
    assert ended[1].stderr == f"quire: {server.address} answered 503: a\\x1b[31m\n"


def test_as_the_image_runs_it_it_imports_nothing_from_the_data_directory(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("from pathlib import Path; Path('imported').touch()")
    (tmp_path / "quire").mkdir()
    shutil.copy(tmp_path / "json.py", tmp_path / "quire" / "__init__.py")
    [line] = [line for line in DOCKERFILE.read_text().splitlines() if line.startswith("HEALTHCHECK")]
    _, *arguments = json.loads(line.partition(" CMD ")[2])

    ended = subprocess.run(
        [sys.executable, *arguments], cwd=tmp_path, env=environment(), capture_output=True, check=False, timeout=60
    )

    assert ended.returncode == 1
    assert b"QUIRE_LISTEN is not set" in ended.stderr
    assert not (tmp_path / "imported").exists()


def test_it_imports_neither_the_node_nor_its_libraries() -> None:
    script = (
        "import sys, quire.cluster.serve.healthcheck;"
        "print([name for name in ('aiohttp', 'asyncio', 'pydantic', 'structlog', 'msgpack') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)

    assert run.stdout == "[]\n"
