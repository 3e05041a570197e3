"""What a browser gets at `/`: a page that says what the server is, and nothing that a stranger may not know."""

import re
import time
from collections.abc import AsyncGenerator, Mapping
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp.test_utils import make_mocked_request

from quire import __version__
from quire.cluster.access.roles import Role
from quire.cluster.access.tls import load_client_tls
from quire.cluster.http.app import ROUTES as NODE_ROUTES
from quire.cluster.http.front_page import DOCUMENTED, FrontPage, front_page
from quire.cluster.http.routes.status import MAIN_CALLS
from quire.cluster.standalone.app import CALLS
from quire.cluster.standalone.app import ROUTES as LOG_ROUTES
from tests.cluster.access.locked import Locked, locked_cluster
from tests.cluster.logs import served
from tests.cluster.running import Reply, RunningCluster, running_cluster
from tests.packed import unpacked

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOP = Path(__file__).parents[2]
BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", "Sec-Fetch-Site": "none"}
PLAIN_TAGS = {"html", "head", "meta", "title", "body", "h1", "h2", "p", "dl", "dt", "dd", "a", "code"}


class Page(HTMLParser):
    """The tags of a page, its links and its text."""

    def __init__(self, reply: Reply) -> None:
        super().__init__()
        assert reply.status == 200
        assert reply.headers["Content-Type"] == "text/html; charset=utf-8"
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.text = ""
        self.feed(reply.body.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        given = dict(attrs)
        assert set(given) <= {"href", "lang", "charset"}, "no style and no handler"
        if (link := given.get("href")) is not None:
            self.links.append(link)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[RunningCluster, None]:
    async with running_cluster(tmp_path_factory.mktemp("front"), 1) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def locked(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Locked, None]:
    async with locked_cluster(tmp_path_factory.mktemp("locked")) as locked:
        locked.add("expired", Role.ADMIN, time.time() - 1)
        yield locked


async def test_a_browser_gets_a_page_that_names_the_node_its_version_and_where_its_calls_are_described(
    cluster: RunningCluster,
) -> None:
    page = Page(await cluster.ask("n1", "GET", "/", headers=BROWSER))

    assert "quire node n1" in page.text
    assert f"version {__version__}" in page.text
    assert all(f"{call}{does}" in page.text for call, does in MAIN_CALLS.items())
    assert all(name in page.text for name in DOCUMENTED)
    assert all((TOP / name).is_file() for name in DOCUMENTED)


async def test_its_links_are_calls_that_answer_as_they_stand(cluster: RunningCluster) -> None:
    page = Page(await cluster.ask("n1", "GET", "/", headers=BROWSER))

    assert set(page.links) > {"/status", "/readyz", "/healthz", "/metrics", "/state", "/records"}
    for link in page.links:
        assert (await cluster.ask("n1", "GET", link, headers=BROWSER)).status == 200


async def test_it_has_no_script_no_style_no_form_and_no_cookie_and_its_policy_refuses_them(
    cluster: RunningCluster,
) -> None:
    reply = await cluster.ask("n1", "GET", "/", headers=BROWSER)

    assert Page(reply).tags == PLAIN_TAGS
    assert reply.headers["Content-Security-Policy"].startswith("default-src 'none';")
    assert reply.headers["X-Content-Type-Options"] == "nosniff"
    assert "Set-Cookie" not in reply.headers


async def test_a_head_has_the_headers_of_the_page_and_no_body(cluster: RunningCluster) -> None:
    page = await cluster.ask("n1", "GET", "/", headers=BROWSER)
    head = await cluster.ask("n1", "HEAD", "/", headers=BROWSER)

    assert (head.status, head.body) == (200, b"")
    for name in ("Content-Type", "Content-Length", "Content-Security-Policy", "Vary"):
        assert head.headers[name] == page.headers[name]


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ({}, "text/html"),
        ({"Accept": "*/*"}, "text/html"),
        ({"Accept": "application/json"}, "application/json"),
        ({"Accept": "application/msgpack"}, "application/msgpack"),
        ({"Accept": "text/html, application/json"}, "text/html"),
    ],
)
async def test_a_caller_that_asks_for_a_document_gets_the_same_as_a_document(
    cluster: RunningCluster, accept: Mapping[str, str], content_type: str
) -> None:
    reply = await cluster.ask("n1", "GET", "/", headers=accept)

    assert reply.headers["Content-Type"].partition(";")[0] == content_type
    assert reply.headers["Vary"] == "Accept"
    if content_type != "text/html":
        document = reply.document if content_type.endswith("json") else unpacked(reply.body)
        assert (document["server"], document["version"], document["calls"]) == (
            "quire node n1",
            __version__,
            MAIN_CALLS,
        )


@pytest.mark.parametrize("headers", [{"Host": "stranger.example"}, {"Origin": "null"}])
async def test_a_stranger_s_page_is_refused_here_too(cluster: RunningCluster, headers: Mapping[str, str]) -> None:
    assert (await cluster.ask("n1", "GET", "/", headers=headers)).status == 403


@pytest.mark.parametrize("caller", [None, "expired", "admin"])
async def test_where_tokens_are_needed_anybody_gets_the_page_and_nobody_the_version(
    locked: Locked, caller: str | None
) -> None:
    page = await locked.ask("n1", "GET", "/", caller, headers=BROWSER)
    document = await locked.ask("n1", "GET", "/", caller, headers={"Accept": "application/json"})

    assert "quire node n1" in Page(page).text
    assert set(document.document) == {"server", "about", "calls", "documentation"}
    assert __version__.encode() not in page.body + document.body


async def test_a_standalone_log_has_such_a_page_with_all_its_calls(tmp_path: Path) -> None:
    async with served(tmp_path) as log:
        page = Page(await log.call("GET", "/", headers=BROWSER))
        document = await log.call("GET", "/", headers={"Accept": "application/json"})

    assert "a standalone log" in page.text
    assert (document.document["calls"], document.document["version"]) == (CALLS, __version__)
    assert set(CALLS) == {f"{route.method} {route.path}" for route in LOG_ROUTES} - {"GET /"}


async def test_a_standalone_log_with_tokens_leaves_its_version_out(tmp_path: Path) -> None:
    files = Locked(tmp_path)
    files.make()
    tls = load_client_tls(files.ca)
    async with served(tmp_path / "data", **files.settings_of("log")) as log:
        reply = await log.call("GET", "/", ssl=tls.context, server_hostname=tls.server_name)

    assert "a standalone log" in Page(reply).text
    assert __version__.encode() not in reply.body


async def test_every_call_that_the_page_names_is_a_route() -> None:
    assert set(MAIN_CALLS) <= {f"{route.method} {route.path}" for route in NODE_ROUTES}


async def test_a_title_and_a_call_are_escaped() -> None:
    evil = '<script>alert("1")</script>'
    reply = front_page(make_mocked_request("GET", "/"), FrontPage(evil, evil, {f"GET /{evil}": evil}, is_open=True))

    assert evil not in (reply.text or "")
    assert len(re.findall(re.escape(evil), unescape(reply.text or ""))) == 6
