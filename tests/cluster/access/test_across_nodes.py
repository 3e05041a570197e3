"""What a node believes of a request that another node has passed on, and of a peer with a certificate."""

import asyncio
from collections.abc import AsyncGenerator, MutableMapping
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from quire.cluster.access.audit import LINES_PER_SECOND
from quire.cluster.access.roles import Role
from quire.cluster.access.tls import TlsFiles, load_client_tls, load_tls
from quire.cluster.access.tokens import add_token, read_tokens
from quire.cluster.http.api import API
from quire.cluster.node.views.status import node_status
from quire.cluster.serve.journal import LineRates
from quire.replication.address import host_and_port
from quire.replication.net.hello import PeerInfo, PeerRefused, dial
from quire.replication.net.sockets import peer_session
from quire.replication.net.trust import Trust
from tests.cluster.access.issued import CLUSTER
from tests.cluster.access.locked import Locked, locked_cluster

DEADLINE_S = 60.0
Lines = list[MutableMapping[str, Any]]
COMMANDS = b'{"commands": [["add", 1]]}'
JSON = {"Content-Type": "application/json"}

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def locked(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Locked, None]:
    async with locked_cluster(tmp_path_factory.mktemp("across"), count=3) as locked:
        yield locked


@pytest.fixture
async def lines() -> AsyncGenerator[Lines]:
    with capture_logs(processors=[LineRates()]) as lines:
        yield lines


@pytest.mark.parametrize(("scheme", "status"), [("https", 200), ("http", 403)])
async def test_a_page_of_the_node_itself_came_over_tls(locked: Locked, scheme: str, status: int) -> None:
    headers = JSON | {"Origin": f"{scheme}://{locked.cluster.address('n1')}"}

    assert (await locked.ask("n1", "POST", "/commands", "write", body=COMMANDS, headers=headers)).status == status


@pytest.mark.parametrize(("host", "status"), [("shop.quire", 200), ("n1.shop.quire", 200), ("market.quire", 403)])
async def test_a_node_is_known_by_the_names_in_its_certificate(locked: Locked, host: str, status: int) -> None:
    assert (await locked.ask("n1", "GET", "/status", "read", headers={"Host": host})).status == status


@pytest.mark.parametrize("at", ["n1", "n2", "n3"])
@pytest.mark.parametrize(("caller", "status"), [("write", 200), ("admin", 200), ("read", 403), (None, 401)])
async def test_a_write_is_decided_by_the_role_wherever_it_is_sent(
    locked: Locked, at: str, caller: str | None, status: int
) -> None:
    reply = await locked.ask(at, "POST", "/commands", caller, body=COMMANDS, headers=JSON)

    assert reply.status == status


async def test_the_leader_checks_a_forwarded_token_against_its_own_file(locked: Locked, tmp_path: Path) -> None:
    node, leader = (locked.cluster.nodes[each].node for each in ("n3", "n1"))
    text = add_token(tmp_path / "another", "only-n3", Role.WRITE, None)
    known = node.credentials.tokens
    node.credentials.tokens = read_tokens(tmp_path / "another")  # As if the file were another one there.
    locked.tokens["only-n3"] = text
    try:
        reply = await locked.ask("n3", "POST", "/commands", "only-n3", body=COMMANDS, headers=JSON)
        assert (reply.status, reply.problem) == (401, "unauthorized")
        assert reply.document["detail"].startswith("n1 does not know the token")
        assert "WWW-Authenticate" in reply.headers
        [alarm] = [alarm for alarm in node_status(node)["alarms"] if "token files differ" in alarm]
        assert alarm.startswith("n1 refuses a token that this node accepts")
        assert not any("token files differ" in alarm for alarm in node_status(leader)["alarms"])
    finally:
        node.credentials.tokens = known
    assert (await locked.ask("n3", "POST", "/commands", "write", body=COMMANDS, headers=JSON)).status == 200
    assert any("token files differ" in alarm for alarm in node_status(node)["alarms"]), "another token proves nothing"
    node.credentials.reload()
    async with asyncio.timeout(DEADLINE_S):
        while any("token files differ" in alarm for alarm in node_status(node)["alarms"]):
            await locked.ask("n3", "GET", "/healthz", None)


async def test_a_client_that_says_it_is_a_node_is_a_client(locked: Locked) -> None:
    reply = await locked.ask(
        "n3", "POST", "/commands", "write", body=COMMANDS, headers=JSON | {"Quire-Forwarded": "n2"}
    )

    assert reply.status == 200, "it was forwarded: otherwise a node forwards nothing that a node forwarded to it"


async def test_a_node_forwards_nothing_that_a_node_has_forwarded_to_it(locked: Locked) -> None:
    context = locked.context_of(locked.authority, "n2")
    headers = locked.header("write") | JSON | {"Quire-Forwarded": "n2"}

    assert (await locked.ask_as_peer("n3", "POST", "/sessions", context, headers)).problem == "not-leader"


async def test_a_carried_stream_counts_against_the_node_that_carries_it(locked: Locked) -> None:
    opened = await locked.ask("n1", "POST", "/sessions", "write")
    tls, path = load_client_tls(locked.ca), f"/commands/stream?session={opened.document['session']}"
    origins: dict[str, list[str]] = {}
    headers = locked.header("write") | {"Quire-Forwarded": "n2"}
    async with locked.cluster.session.ws_connect(
        locked.cluster.url("n3") + path, ssl=tls.context, server_hostname=tls.server_name, headers=headers
    ):
        for at in ("n1", "n3"):
            app = locked.cluster.nodes[at].runner.app
            assert app is not None
            origins[at] = [stream.origin for stream in app[API].streams]

    assert origins == {"n1": ["member n3"], "n3": ["127.0.0.1"]}


async def test_the_status_of_the_others_is_asked_with_the_caller_s_token(locked: Locked) -> None:
    nodes = (await locked.ask("n2", "GET", "/cluster", "read")).document["nodes"]

    assert {node_id: row["failure"] for node_id, row in nodes.items()} == dict.fromkeys(("n1", "n2", "n3"))
    assert all(row["status"]["certificate"]["cluster"] == CLUSTER for row in nodes.values())


async def test_each_admin_call_each_refusal_and_a_token_s_first_use_is_a_line(locked: Locked, lines: Lines) -> None:
    request_id = {"Quire-Request-Id": "of-this-test"}
    await locked.ask("n2", "POST", "/admin/snapshot", "admin", headers=request_id)
    await locked.ask("n2", "POST", "/admin/snapshot", "admin", headers=request_id)
    await locked.ask("n2", "POST", "/admin/snapshot", "write", headers=request_id)
    await locked.ask("n2", "GET", "/status", None, headers=request_id)

    audit = [line for line in lines if line.get("log") == "quire.audit" and line["request_id"] == "of-this-test"]
    what = {"what": "POST /admin/snapshot", "address": "127.0.0.1", "request_id": "of-this-test", "log": "quire.audit"}
    called = [line for line in audit if line["event"] == "admin call"]
    assert [(line["who"], line["status"]) for line in called] == [("admin", 200), ("admin", 200)]
    assert all(what.items() <= line.items() for line in called)
    refused = [(line["who"], line["why"], line["what"]) for line in audit if line["event"] == "refused"]
    assert refused == [
        ("write", "forbidden", "POST /admin/snapshot"),
        ("nobody", "unauthorized", "GET /status"),
    ]
    used = [line["who"] for line in audit if line["event"] == "token used from a new address"]
    assert len(used) == len(set(used)), "each is told once"


async def test_an_admin_hides_no_change_of_its_own_behind_other_calls(locked: Locked) -> None:
    with capture_logs(processors=[LineRates(lambda: 0.0)]) as lines:
        for _ in range(LINES_PER_SECOND + 1):
            assert (await locked.ask("n1", "GET", "/admin/genesis", "admin")).status == 200
        assert (await locked.ask("n1", "DELETE", "/members/unknown", "admin")).status == 404
        assert (await locked.ask("n1", "POST", "/admin/snapshot", "admin")).status == 200

    called = [line["what"] for line in lines if line["event"] == "admin call" and line["who"] == "admin"]
    assert called == ["GET /admin/genesis"] * LINES_PER_SECOND + ["POST /admin/snapshot"]


async def test_refused_calls_of_an_operator_s_route_fill_no_journal(locked: Locked, lines: Lines) -> None:
    for _ in range(200):
        assert (await locked.ask("n1", "POST", "/admin/expire", None)).status == 401
        assert (await locked.ask("n1", "POST", "/admin/expire", "read")).status == 403

    audit = [line["event"] for line in lines if line.get("log") == "quire.audit"]
    assert "admin call" not in audit
    assert len(audit) < 100


async def test_two_tokens_of_which_another_node_refuses_one_are_one_alarm(locked: Locked) -> None:
    credentials, told = locked.cluster.nodes["n2"].node.credentials, list[list[str]]()
    credentials.on_change(lambda: told.append([alarm for alarm in credentials.alarms() if "files differ" in alarm]))

    for _ in range(10):
        credentials.answered("n1", "unknown-there", refuses=True)
        credentials.answered("n1", "known-there", refuses=False)
    assert [len(alarms) for alarms in told] == [1]
    credentials.answered("n1", "unknown-there", refuses=False)
    assert [len(alarms) for alarms in told] == [1, 0]


def spellings(text: str) -> dict[str, str]:
    """A token as it may stand in a URL."""
    each = "".join(f"%{ord(character):02x}" for character in text)
    return {
        "plain": text,
        "the mark": text.replace("_", "%5F"),
        "the mark, in small letters": text.replace("_", "%5f"),
        "the first letter": f"%71{text[1:]}",
        "all": each,
        "twice": quote(each),
        "three times": quote(quote(each)),
        "half of each escape": text.replace("_", "%%35%46"),
        "capitals": f"QUIRE_{text[6:]}",
        "too often to tell": reduce(lambda spelled, _: quote(spelled), range(40), each),
    }


@pytest.mark.parametrize("spelling", spellings(""))
@pytest.mark.parametrize(
    "target",
    [
        *("/status?x=TOKEN", "/status?TOKEN=x", "/status?x=a+TOKEN", "/records/TOKEN", "/TOKEN", "/cursors/a/TOKEN"),
        *("/status#TOKEN", "/index_bounds?x=1;TOKEN", "http://TOKEN/status", "http://x:TOKEN@localhost/status"),
        *("/peer?x=TOKEN", "/healthz?TOKEN"),
    ],
)
async def test_a_token_in_a_url_is_found_in_every_spelling_and_written_nowhere(
    locked: Locked, lines: Lines, spelling: str, target: str
) -> None:
    text = locked.tokens["write"]
    spelled = spellings(text)[spelling]
    status, answer = await sent(locked, "n2", f"GET {target.replace('TOKEN', spelled)} HTTP/1.1\r\nHost: localhost")

    assert status == 400
    for secret in (text[6:], spelled):
        assert secret not in f"{lines}{answer}"


@pytest.mark.parametrize("name", ["token", "%74oken", "TOKEN", "access%5Ftoken", "+token", "%2574oken"])
async def test_a_parameter_that_is_meant_for_a_token_is_refused_in_every_spelling(locked: Locked, name: str) -> None:
    assert (await sent(locked, "n1", f"GET /status?{name}=x HTTP/1.1\r\nHost: localhost"))[0] == 400


@pytest.mark.parametrize(
    "head",
    [
        "GET /status HTTP/1.1\r\nHost: localhost\r\nUser-Agent: TOKEN\r\nCookie: a=TOKEN\r\nReferer: /?TOKEN",
        "GET /status HTTP/1.1\r\nHost: localhost\r\nQuire-Request-Id: TOKEN",
        "GET /status HTTP/1.1\r\nHost: TOKEN",
        "GET /status HTTP/1.1\r\nHost: localhost\r\nOrigin: TOKEN",
        "GET /status HTTP/1.1\r\nHost: localhost\r\nExpect: TOKEN",
        "GET /status HTTP/1.1\r\nHost: localhost\r\nTOKEN: 1",
        "GET /status HTTP/1.1\r\nHost: localhost\r\nQuire-TOKEN: 1",
        "GET /status HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic TOKEN",
        # None of these can be read as HTTP.
        "GET /status?TOKEN HTTP/9.9\r\nHost: localhost",
        "TOKEN /status HTTP/1.1\r\nHost: localhost",
        "GET /TOKEN TOKEN HTTP/1.1\r\nHost: localhost",
        "GET http://x:99999/TOKEN HTTP/1.1\r\nHost: localhost",
        "GET /status HTTP/1.1\r\nHost: localhost\r\nTOKEN",
        "GET /status HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer TOKEN\x01",
        "GET /status HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer TOKEN" + "x" * 9000,
        "GET /status HTTP/1.1\r\nHost: localhost\r\nContent-Length: TOKEN",
        "GET /status HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: TOKEN",
        "GET /TOKEN" + "x" * 9000 + " HTTP/1.1\r\nHost: localhost",
    ],
)
async def test_a_token_elsewhere_in_a_request_is_written_nowhere(locked: Locked, lines: Lines, head: str) -> None:
    text = locked.tokens["write"]
    _, answer = await sent(locked, "n1", head.replace("TOKEN", text))

    assert text[6:] not in f"{lines}{answer}"


async def sent(locked: Locked, node_id: str, head: str) -> tuple[int, str]:
    """The status of the answer to a request with this head, which a stranger sends as it is, and the whole answer."""
    context = load_client_tls(locked.ca).context
    host, port = host_and_port(locked.cluster.address(node_id))
    reader, writer = await asyncio.open_connection(
        host, port, ssl=context, server_hostname=load_client_tls(locked.ca).server_name
    )
    try:
        async with asyncio.timeout(DEADLINE_S):
            writer.write(f"{head}\r\nConnection: close\r\n\r\n".encode("latin-1"))
            answer = (await reader.read()).decode()
    finally:
        writer.close()
    return int(answer.split()[1]), answer


async def test_no_token_is_in_the_journal_or_in_an_answer(locked: Locked, lines: Lines) -> None:
    text = locked.tokens["write"]
    told: list[str] = []
    for path in (
        f"/status?token={text}",
        f"/records?from={text}",
        f"/records/{text}",
        f"/status?x={text}",
        "/status?access_token=x",
    ):
        reply = await locked.ask("n1", "GET", path, "write")
        assert (reply.status, reply.problem) == (400, "malformed")
        assert "must not hold a token" in reply.document["detail"]
        told.append(reply.body.decode())
    locked.tokens["longer"] = text + "x"
    told.append((await locked.ask("n1", "GET", "/status", "longer")).body.decode())
    told.append((await locked.ask("n1", "GET", "/status", "read")).body.decode())

    assert text not in f"{told} {lines}"
    assert text not in repr(locked.cluster.nodes["n1"].node.credentials.tokens)


async def test_a_name_that_only_begins_as_a_token_does_is_no_token(locked: Locked) -> None:
    assert (await locked.ask("n1", "GET", "/sessions?prefix=quire_billing", "read")).status == 200


async def test_a_member_that_shows_another_s_certificate_is_refused_and_told_of(locked: Locked) -> None:
    n1 = locked.cluster.nodes["n1"].node
    n3 = locked.cluster.nodes["n3"].node
    me = n3.components.replica.network.me()
    await locked.cluster.stop("n3")
    issued = TlsFiles(*locked.authority.issue(locked.folder / "data", "n2"), locked.ca)
    tls = load_tls(issued)

    class OfN2:
        def dialling(self, node_id: str) -> tuple[object, str]:
            return tls.dialling, f"{node_id}.{CLUSTER}.quire"

    def claim() -> PeerInfo:
        return replace(me, incarnation=7)

    trust = Trust((), lambda _: True, OfN2())  # type: ignore[arg-type]
    async with peer_session() as session:
        for purpose in ("peer", "stream", "snapshot"):
            with pytest.raises(PeerRefused, match=r"^certificate: it says that it is n3 and shows .* of n2"):
                await dial(session, locked.cluster.address("n1"), claim, "n1", purpose, trust, None)
    failures = n1.components.replica.network.reports.failures
    assert "shows the certificate of n2" in failures["link from n3"]
    async with asyncio.timeout(DEADLINE_S):
        assert (await locked.ask("n1", "POST", "/commands", "write", body=COMMANDS, headers=JSON)).status == 200
