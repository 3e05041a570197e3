"""A stranger's web page: what a browser sends for it is refused before anything is done, and what others send is not.

The table is every kind of request with every `Host`, `Origin` and `Sec-Fetch-...`; `allowed` is the rule for all of it.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest
import pytest_asyncio
from aiohttp import ClientSession, DummyCookieJar
from aiohttp.test_utils import make_mocked_request

from quire.cluster.client import BadRequest, connect
from quire.cluster.client.attempts import NothingWritten
from quire.cluster.client.transport import Transport
from quire.cluster.config.serve import ServeConfig
from quire.cluster.http.admission.browsers import HEALTH_PATHS, STREAM_PATH
from quire.cluster.http.forwarding import hop_headers
from quire.cluster.http.request import REQUEST_ID_KEY
from quire.replication.address import host_and_port
from quire.replication.net.hello import PEER_PATHS
from tests.cluster.hop import Call, cluster_with_hop
from tests.cluster.logs import served
from tests.cluster.running import RunningCluster, free_addresses, started

pytestmark = pytest.mark.asyncio(loop_scope="module")

DEADLINE_S = 30.0
DOWN = "127.0.0.1:9"
MEMBER, BALANCER, PAGE = "quire-2", "balancer.example.org", "https://page.example.org"
UPGRADE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)

# The cells' four sides. {at} is the node's address, {host} the request's Host, {session} an open session.

GET, POST, STREAM, PEER, HEALTH = "GET", "POST", "WebSocket", "/peer", "/healthz"
KINDS = {
    GET: ("GET /status", ""),
    POST: ("POST /records", "Content-Length: 1\r\n"),  # An untyped blob, as a page can send it.
    STREAM: ("GET /commands/stream?session={session}", UPGRADE),
    PEER: ("GET /peer", UPGRADE),
    HEALTH: ("GET /healthz", ""),
}
HOSTS = {
    "{at}": True,
    "[::1]:7001": True,
    "LocalHost.": True,
    f"{MEMBER.upper()}:7001": True,
    BALANCER: True,
    None: True,
    "stranger.example:7001": False,
    f"x@{MEMBER}": False,
    "": False,
}
OWN, ALLOWED, FOREIGN = "own", "allowed", "foreign"
ORIGINS = {
    None: None,
    "http://{host}": OWN,
    "{PAGE}:443": ALLOWED,
    "null": FOREIGN,
    "http://stranger.example": FOREIGN,
    "http://127.0.0.1:1": FOREIGN,  # Another port of this machine.
    "https://{host}": FOREIGN,
    "{PAGE}.stranger.example": FOREIGN,
}
HERE, ELSEWHERE, LINK = "here", "elsewhere", "a link"
NAVIGATES = "\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: "
FOLLOWED = f"cross-site{NAVIGATES}document"
SITES = {
    None: HERE,
    "same-origin": HERE,
    "none": HERE,
    "cross-site": ELSEWHERE,
    "same-site": ELSEWHERE,
    f"cross-site{NAVIGATES}iframe": ELSEWHERE,
    FOLLOWED: LINK,
}


def allowed(kind: str, host: str | None, origin: str | None, site: str | None) -> bool:
    """The rule."""
    if kind == HEALTH:
        return True
    if kind == PEER:
        return origin is None and site is None
    if not HOSTS[host] or ORIGINS[origin] == FOREIGN or (ORIGINS[origin] == OWN and host is None):
        return False
    return ORIGINS[origin] == ALLOWED or SITES[site] == HERE or (SITES[site] == LINK and kind == GET)


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return orjson.loads(self.body)

    @property
    def refusal(self) -> str:
        """The problem of a 403; empty for another status."""
        if self.status != 403:
            return ""
        assert self.headers["content-type"].startswith("application/problem+json")
        return str(self.document["type"]).removeprefix("urn:quire:problem:")


class Caller:
    """Sends requests byte by byte, over one connection as long as it serves."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._writer: asyncio.StreamWriter | None = None
        self._reader: asyncio.StreamReader

    async def send(self, head: str, body: bytes = b"") -> Answer:
        async with asyncio.timeout(DEADLINE_S):
            if self._writer is None:
                self._reader, self._writer = await asyncio.open_connection(*host_and_port(self.address))
            self._writer.write(head.encode("latin-1") + b"\r\n" + body)
            first, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            has_body = not head.startswith("HEAD ")
            found = await self._reader.readexactly(int(headers.get("content-length", 0)) if has_body else 0)
        answer = Answer(int(first.split()[1]), headers, found)
        if answer.status == 101 or headers.get("connection") == "close":
            self.close()
        return answer

    def close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None


async def sent_once(address: str, head: str) -> Answer:
    caller = Caller(address)
    try:
        return await caller.send(head)
    finally:
        caller.close()


def head_of(line: str, host: str | None, *headers: str) -> str:
    """Without a Host it is HTTP/1.0."""
    version, first = ("1.1", f"Host: {host}") if host is not None else ("1.0", "Connection: keep-alive")
    return "".join(f"{text}\r\n" for text in (f"{line} HTTP/{version}", first, *headers))


@dataclass
class Site:
    """A node with a member that it never reaches, a load balancer, and a page that may use it."""

    cluster: RunningCluster
    caller: Caller
    session: int

    @property
    def at(self) -> str:
        return self.cluster.address("n1")

    def tail(self) -> int:
        """Where its log ends."""
        parts = self.cluster.nodes["n1"].node.formed
        assert parts is not None
        return parts.log.bounds.highest_index

    async def get(self, *headers: str, host: str = "localhost", path: str = "/index_bounds") -> Answer:
        return await self.caller.send(head_of(f"GET {path}", host, *headers))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Site, None]:
    [address] = free_addresses(1)
    config = ServeConfig(
        node="n1",
        listen=address,
        members={"n1": address, "n2": f"{MEMBER}:7001"},
        link={"n2": DOWN},
        initial_members=("n1",),
        machine="log",
        data_dir=tmp_path_factory.mktemp("browsers"),
        allow=(BALANCER, PAGE),
    )
    async with ClientSession(cookie_jar=DummyCookieJar()) as session:
        cluster = RunningCluster(session, {"n1": await started(config)})
        caller = Caller(address)
        try:
            await cluster.ready()
            opened = await cluster.ask("n1", "POST", "/sessions", b"{}", "application/json")
            yield Site(cluster, caller, opened.document["session"])
        finally:
            caller.close()
            await cluster.stop("n1")


@pytest.mark.parametrize(("kind", "host"), list(product(KINDS, HOSTS)))
async def test_every_cell_of_the_table_is_answered_by_the_rule(site: Site, kind: str, host: str | None) -> None:
    line, more = KINDS[kind]
    sent = None if host is None else host.format(at=site.at)
    before, taken, wrong = site.tail(), 0, {}
    for origin, from_site in product(ORIGINS, SITES):
        headers = [] if origin is None else [f"Origin: {origin.format(host=sent, PAGE=PAGE)}"]
        headers += [] if from_site is None else [f"Sec-Fetch-Site: {from_site}"]
        head = head_of(line.format(session=site.session), sent, *headers) + more

        answer = await site.caller.send(head, b"x" if kind == POST else b"")

        expected = allowed(kind, host, origin, from_site)
        taken += expected
        if expected != (answer.refusal == "") or answer.status not in (200, 101, 403):
            wrong[origin, from_site] = answer
    assert wrong == {}
    assert site.tail() - before == (taken if kind == POST else 0)


async def test_the_refusal_names_the_flag_to_set_with_what_was_sent(site: Site) -> None:
    host = await site.get(host="quire.corp.example:7001")
    origin = await site.get("Origin: https://wiki.corp.example")

    assert (host.refusal, host.document["host"]) == ("host-refused", "'quire.corp.example:7001'")
    assert "start it with --allow quire.corp.example" in host.document["detail"]
    assert (origin.refusal, origin.document["origin"]) == ("origin-refused", "'https://wiki.corp.example'")
    assert origin.document["detail"].endswith("start it with --allow https://wiki.corp.example")


@pytest.mark.parametrize("value", ["a;$(b)\x9b[31m", "x" * 5000, "\xff", "a b", "[::1", "a/../b"])
async def test_what_is_no_name_is_shown_escaped_and_shortened_and_never_as_a_flag_to_copy(
    site: Site, value: str
) -> None:
    for answer in (await site.get(host=value), await site.get(f"Origin: {value}")):
        detail = answer.document["detail"]

        assert answer.refusal
        assert detail.isascii()
        assert detail.isprintable()
        assert len(detail) < 400
        assert detail.endswith(("--allow NAME", "--allow ORIGIN"))


async def test_a_refused_request_learns_nothing_of_the_cluster(site: Site) -> None:
    accepted, refused = await site.get(), await site.get(host="stranger.example")

    assert "quire-leader" in accepted.headers
    assert refused.refusal
    assert "quire-leader" not in refused.headers
    assert site.at not in str(refused)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET http://stranger.example/status HTTP/1.1\r\nHost: localhost\r\n", 403),
        ("GET http://stranger.example/status HTTP/1.0\r\n", 403),
        ("GET http://localhost/status HTTP/1.1\r\nHost: stranger.example\r\n", 403),
        ("GET http://localhost:7001/status HTTP/1.1\r\nHost: localhost\r\n", 200),
        ("GET http://[::1]:7001/status HTTP/1.1\r\nHost: localhost\r\n", 200),
        ("CONNECT stranger.example:1 HTTP/1.1\r\nHost: localhost\r\n", 403),
        ("OPTIONS * HTTP/1.1\r\nHost: localhost\r\n", 404),
        ("GET /status HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n", 400),
        ("GET /status HTTP/1.0\r\nHost: localhost\r\nHost: stranger.example\r\n", 400),
        ("GET /status HTTP/1.1\r\nHost: localhost:\r\n", 200),
        ("GET /status HTTP/1.1\r\nHost: localhost:70011\r\n", 200),
        ("GET /status HTTP/1.1\r\nHost: localhost:x\r\n", 403),
        ("GET /status HTTP/1.1\r\nHost: localhost..\r\n", 403),
        ("GET /status HTTP/1.1\r\nHost: localhost, stranger.example\r\n", 403),
        ("GET /status HTTP/1.1\r\nHost: localhost.localhost\r\n", 403),
        ("GET /healthz/../status HTTP/1.1\r\nHost: stranger.example\r\n", 403),
        ("GET /%68ealthz HTTP/1.1\r\nHost: stranger.example\r\n", 200),
        ("GET /status HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\nOrigin: null\r\n", 403),
        ("GET /status HTTP/1.1\r\nHost: localhost:80\r\nOrigin: http://LOCALHOST\r\n", 200),
        ("GET /status HTTP/1.1\r\nHost: localhost\r\nOrigin: \r\n", 403),
        ("GET /status HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: Cross-Site\r\n", 403),
        ("GET /status HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: \r\n", 403),
        ("HEAD /status HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: cross-site\r\n", 403),
        (f"GET {STREAM_PATH}?session=1 HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: {FOLLOWED}\r\n", 403),
        (f"POST /admin/snapshot HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: {FOLLOWED}\r\n", 403),
    ],
)  # fmt: skip
async def test_another_spelling_changes_nothing(site: Site, head: str, status: int) -> None:
    assert (await sent_once(site.at, head)).status == status


async def test_no_route_is_left_out_and_no_get_has_an_effect_or_an_answer_for_another_page(site: Site) -> None:
    routes = site.cluster.nodes["n1"].runner.app.router.routes()
    paths = {
        (route.method, route.resource.canonical.format(session=site.session, index=0, chunk=0, node="n9", name="a"))
        for route in routes
        if route.resource is not None and route.resource.canonical not in HEALTH_PATHS | PEER_PATHS
    }
    assert len(paths) > 30
    for method, path in sorted(paths):
        before = site.tail()
        for host, header in (("stranger.example", "Accept: */*"), ("localhost", "Origin: null")):
            assert (await sent_once(site.at, head_of(f"{method} {path}", host, header))).status == 403
        if method == "GET":
            assert (await site.get(path=path)).headers["cross-origin-resource-policy"] == "same-origin"
        assert site.tail() == before


async def test_a_refused_request_s_body_is_not_waited_for(site: Site) -> None:
    answer = await sent_once(site.at, head_of("POST /records", "localhost", "Origin: null", "Content-Length: 99999"))

    assert answer.refusal == "origin-refused"


async def test_a_page_of_an_allowed_origin_may_ask_first_and_read_the_answer(site: Site) -> None:
    asks = (f"Origin: {PAGE}", "Access-Control-Request-Method: POST", "Access-Control-Request-Headers: quire-session")
    before = site.tail()

    preflight = await site.caller.send(head_of("OPTIONS /commands", "localhost", *asks))
    answer = await site.get(f"Origin: {PAGE}", "Sec-Fetch-Site: cross-site")
    problem = await site.get(f"Origin: {PAGE}", path="/nowhere")

    assert preflight.status == 204
    assert preflight.headers["access-control-allow-methods"] == "GET, HEAD, POST, PUT, PATCH, DELETE"
    sendable = preflight.headers["access-control-allow-headers"].split(", ")
    assert sendable == [
        "authorization",
        "content-type",
        "accept",
        "quire-history",
        "quire-request-id",
        "quire-sequence",
        "quire-session",
    ]
    assert (answer.status, problem.status) == (200, 404)
    for each in (preflight, answer, problem):
        assert each.headers["access-control-allow-origin"] == PAGE
        assert each.headers["access-control-expose-headers"] == "*"
        assert each.headers["vary"] == "Origin"
    assert site.tail() == before


async def test_no_other_page_may_ask_first_or_read_an_answer(site: Site) -> None:
    asks = head_of("OPTIONS /commands", "localhost", "Origin: null", "Access-Control-Request-Method: POST")
    answers = [await site.caller.send(asks), await site.get("Origin: null"), await site.get("Origin: http://localhost")]

    assert [answer.status for answer in answers] == [403, 403, 200]
    assert all("access-control-allow-origin" not in answer.headers for answer in [*answers, await site.get()])


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (head_of("GET /status", "localhost"), 200),
        (head_of("GET /status", "stranger.example"), 403),
        (head_of("GET /nowhere", "localhost"), 404),
        (head_of("GET /status", "localhost", "Expect: banana"), 417),
        (head_of("GET /peer", "localhost") + UPGRADE, 101),
        ("NONSENSE\r\n", 400),
        ("GET /status HTTP/1.1\r\n", 400),
    ],
)
async def test_no_answer_names_the_program_that_sends_it(site: Site, head: str, status: int) -> None:
    answer = await sent_once(site.at, head)

    assert answer.status == status
    assert "server" not in answer.headers
    assert "aiohttp" not in str(answer).lower()


async def test_a_client_that_dials_an_unknown_name_is_told_the_flag(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, resolve = host_and_port(site.at)[1], socket.getaddrinfo

    def resolves(host: Any, *arguments: Any, **named: Any) -> Any:
        return resolve("127.0.0.1" if host == "quire.corp.example" else host, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", resolves)

    async with connect(f"quire.corp.example:{port}") as client:
        with pytest.raises(BadRequest, match=r"start it with --allow quire\.corp\.example$"):
            await client.append(b"never written")
    async with connect(f"quire.corp.example:{port},{site.at}") as client:  # Another node may know the name, or has one.
        assert await client.append(b"written") == site.tail() - 1
    for servers in ([f"quire.corp.example:{port}", DOWN], [DOWN, f"quire.corp.example:{port}"]):
        transport = Transport(servers, DEADLINE_S)
        with pytest.raises(NothingWritten, match="refuses connections"):  # One that is down may come back, and know it.
            await transport.call_once("GET", "/status")
        await transport.close()


async def test_a_name_that_only_the_log_s_members_have_is_accepted(tmp_path: Path) -> None:
    [address] = free_addresses(1)
    [port] = [address.rpartition(":")[2]]
    formed = ServeConfig(node="n1", listen=address, members={"n1": f"old-name:{port}"}, data_dir=tmp_path)
    running = await started(formed)
    async with ClientSession(cookie_jar=DummyCookieJar()) as session:
        cluster = RunningCluster(session, {"n1": running})
        await cluster.ready()
        await cluster.stop("n1")
        cluster.nodes["n1"] = running = await started(formed.model_copy(update={"members": {"n1": address}}))
        try:
            await cluster.ready()
            asks = [head_of("GET /status", f"{name}:{port}") for name in ("old-name", "older-name")]
            statuses = [(await sent_once(address, ask)).status for ask in asks]
            request = make_mocked_request("GET", "/status")
            request[REQUEST_ID_KEY] = "1"
            hop = hop_headers(running.node, request, "n1")
        finally:
            await cluster.stop("n1")

    assert statuses == [200, 403]
    assert hop["Host"] == f"old-name:{port}", "which a member accepts whose configuration is still the old one"


async def test_a_page_that_asks_for_transfers_again_and_again_moves_no_leader_and_links_carry_the_member_s_own_name(
    tmp_path: Path,
) -> None:
    async with cluster_with_hop(tmp_path) as (cluster, hop):
        heads: list[bytes] = []

        async def seen(call: Call) -> None:
            heads.append(call.head)
            await call.pass_on()

        hop.dies = seen
        epoch = cluster.nodes["n1"].node.leadership.role.epoch
        for node_id in ("n1", "n2", "n3") * 10:
            reply = await cluster.ask(node_id, "POST", "/admin/transfer", headers={"Origin": "http://stranger.example"})
            assert reply.problem == "origin-refused"
        opened = await cluster.ask("n2", "POST", "/sessions", b"{}", "application/json")
        url = f"http://{cluster.address('n2')}{STREAM_PATH}?session={opened.document['session']}"
        async with cluster.session.ws_connect(url):
            asked = await cluster.ask("n2", "GET", "/cluster")

        assert (opened.status, asked.document["nodes"]["n1"]["failure"]) == (200, None)
        assert {running.node.leadership.leader_id for running in cluster.nodes.values()} == {"n1"}
        assert {running.node.leadership.role.epoch for running in cluster.nodes.values()} == {epoch}
        assert [head.split()[1].partition(b"?")[0] for head in heads] == [b"/sessions", b"/commands/stream", b"/status"]
        assert hop.address != cluster.address("n1")
        assert all(b"\r\nHost: %s\r\n" % cluster.address("n1").encode() in head for head in heads)


async def test_a_standalone_log_has_the_same_guard(tmp_path: Path) -> None:
    async with served(tmp_path, allow=(BALANCER, PAGE)) as log:
        taken = [{"Host": BALANCER}, {"Origin": PAGE}, {"Origin": log.url}]
        refused = [{"Host": "stranger.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}]
        good = [await log.call("POST", "/records", data=b"x", headers=headers) for headers in taken]
        bad = [await log.call("POST", "/records", data=b"x", headers=headers) for headers in refused]
        health = [await log.call("GET", "/healthz", headers=headers) for headers in refused]

        assert [reply.status for reply in good] == [200] * 3
        assert good[1].headers["Access-Control-Allow-Origin"] == PAGE
        assert [reply.problem for reply in bad] == ["host-refused", "origin-refused", "origin-refused"]
        assert [reply.status for reply in health] == [200] * 3
        assert log.log.bounds.highest_index == len(good)
        assert all("Server" not in reply.headers for reply in (*good, *bad, *health))
