"""Each caller sends each request of docs/http.md, and gets the answer that the page says."""

import asyncio
import re
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import ClientConnectionError, web

from quire.cluster.access.credentials import Credentials
from quire.cluster.access.roles import Role
from quire.cluster.http.admission.authorization import Authorization, Route
from quire.cluster.standalone.app import ROUTES as LOG_ROUTES
from tests.cluster.access.callers import ANSWERED, CALLERS, NOT_CONNECTED, OF_NODE, answer_to, page
from tests.cluster.access.issued import CLUSTER, Authority
from tests.cluster.access.locked import Locked, locked_cluster
from tests.cluster.running import Reply

PAGE = Path(__file__).parents[3] / "docs" / "http.md"
FILES_MISSING = "files_missing"
WRONG = "quire_" + "A" * 43
REFUSED = {(401, "unauthorized"): "401", (403, "forbidden"): "403"}

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def locked(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Locked, None]:
    async with locked_cluster(tmp_path_factory.mktemp("callers")) as locked:
        locked.tokens["wrong"] = WRONG
        locked.add("expired", Role.ADMIN, time.time() - 1)
        node = locked.cluster.nodes["n1"].node
        node.credentials.reload()
        await until_known(node.credentials, "expired")
        yield locked


async def until_known(credentials: Credentials, name: str) -> None:
    """Wait until the node has read a token."""
    while credentials.tokens is None or credentials.tokens.by_name(name) is None:
        await next_reading(credentials)


async def next_reading(credentials: Credentials) -> None:

    read = asyncio.Event()
    credentials.on_change(read.set)
    async with asyncio.timeout(60):
        await read.wait()


def outcome(reply: Reply) -> str:
    """The cell of an answer."""
    if reply.status not in (401, 403):
        return ANSWERED
    assert ("WWW-Authenticate" in reply.headers) == (reply.status == 401)
    assert "Quire-Leader" not in reply.headers
    return REFUSED[reply.status, reply.problem]


async def answer(locked: Locked, caller: str, route: Route) -> str:
    path = re.sub(r"{\w+}", "1", route.path)
    match caller:
        case "peer certificate":
            context = locked.context_of(locked.authority, "n2")
        case "foreign certificate":
            context = locked.context_of(Authority(CLUSTER), "n2")
        case _:
            return outcome(await locked.ask("n1", route.method, path, None if caller == "no token" else caller))
    try:
        return outcome(await locked.ask_as_peer("n1", route.method, path, context))
    except ClientConnectionError:
        return NOT_CONNECTED


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("route", OF_NODE, ids=lambda route: f"{route.method} {route.path}")
async def test_a_caller_gets_the_answer_of_its_cell(locked: Locked, caller: str, route: Route) -> None:
    assert await answer(locked, caller, route) == answer_to(caller, route.role)


async def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run python -m tests.cluster.access.callers > docs/http.md"


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_a_stranger_gets_the_names_of_the_reasons_why_a_node_has_halted(tmp_path: Path, path: str) -> None:
    async with locked_cluster(tmp_path) as locked:
        health = locked.cluster.nodes["n1"].node.health
        health.missing_files = lambda: f"{tmp_path}/data was removed; cp /proc/1/fd/N"
        health.halted("its files are missing")
        stranger = await locked.ask("n1", "GET", path, None)
        reader = await locked.ask("n1", "GET", path, "read")
        status = (await locked.ask("n1", "GET", "/status", "read")).document

    assert (stranger.status, stranger.document["reasons"], stranger.document["detail"]) == (
        503,
        [FILES_MISSING],
        FILES_MISSING,
    )
    assert str(tmp_path) in reader.document["detail"]
    assert status["reasons"] == reader.document["reasons"]


async def test_a_stranger_gets_no_address_of_a_node(tmp_path: Path) -> None:
    async with locked_cluster(tmp_path, 2, election_timeout_ms=500) as locked:
        addresses = [running.config.listen for running in locked.cluster.nodes.values()]
        for path in ("/", "/healthz", "/readyz", "/nowhere", "/status?token=x"):
            reply = await locked.ask("n2", "GET", path, None)
            assert not any(address in f"{reply.headers}{reply.body!r}" for address in addresses), reply
        assert (await locked.ask("n2", "GET", "/healthz", "read")).headers["Quire-Leader"] == f"n1={addresses[0]}"
        await locked.cluster.stop("n1")
        async with asyncio.timeout(60):
            while (reply := await locked.ask("n2", "GET", "/readyz", None)).status == 200:
                pass
            while "no_leader" not in reply.document["reasons"]:
                reply = await locked.ask("n2", "GET", "/readyz", None)
        assert all(re.fullmatch("[a-z_]+", reason) for reason in reply.document["reasons"])


@pytest.mark.parametrize("caller", ["no token", "wrong", "expired"])
async def test_what_matches_no_route_is_told_to_nobody_without_a_token(locked: Locked, caller: str) -> None:
    name = None if caller == "no token" else caller

    assert outcome(await locked.ask("n1", "GET", "/nothing", name)) == "401"
    assert outcome(await locked.ask("n1", "PUT", "/commands", name)) == "401"
    assert (await locked.ask("n1", "GET", "/nothing", "read")).status == 404


async def test_a_route_without_a_role_does_not_start() -> None:
    async def forgotten(_: web.Request) -> web.Response:
        return web.Response()

    app = web.Application()
    Authorization(Credentials(), "n1").add_routes(app, LOG_ROUTES[:1])
    app.router.add_get("/forgotten", forgotten)
    runner = web.AppRunner(app)

    with pytest.raises(RuntimeError, match=r"/forgotten.* has no role"):
        await runner.setup()
