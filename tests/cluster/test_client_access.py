"""Clients of locked servers: what is verified before anything is sent, refusals, rotations without a failed call."""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from quire.cluster.access.tls import TlsRefused
from quire.cluster.client import (
    BadRequest,
    Client,
    Forbidden,
    NotFound,
    SessionError,
    Unauthorized,
    Unavailable,
    connect,
    connect_sync,
)
from tests.cluster.access.issued import Authority
from tests.cluster.access.known import KnownTokens, unauthorized
from tests.cluster.conftest import TOKEN
from tests.cluster.scripted import Step, appended, broken, document, refusing, scripted
from tests.cluster.streaming import Fault, streaming
from tests.replication.loopback import until

NEXT = "quire_" + "b" * 43
DEADLINE_S = 30

CURSOR = {
    "name": "mail",
    "index": 7,
    "next_index": 7,
    "hold_bytes": 0,
    "owner": "alice",
    "taken": True,
    "token": None,
    "lag": {"records": 0, "seconds": 0.0},
    "lost": 0,
}

Call = Callable[[Client], Awaitable[object]]
CALLS: list[Call] = [lambda client: client.append(1), lambda client: client.apply(1), lambda client: client.read(1)]


@pytest.fixture
def tls(tmp_path: Path, authority: Authority) -> ssl.SSLContext:
    return authority.context(tmp_path)


def written(path: Path, token: str) -> Path:
    path.write_text(token + "\n")
    return path


def showing(token: str, step: Step) -> Step:
    """A step that answers 401 unless a token is shown."""
    return lambda request: (
        step(request) if request.headers.get("Authorization") == f"Bearer {token}" else unauthorized(request)
    )


async def test_requests_and_streams_show_the_token_to_a_server_that_proved_its_name(
    tls: ssl.SSLContext, ca: Path
) -> None:
    known = KnownTokens(TOKEN)
    async with streaming(tls=tls, middlewares=[known.middleware]) as server:
        async with connect(server.address, token=TOKEN, ca=ca) as client:
            assert await client.apply("a") == 1
        assert known.refused == 0
        assert ("DELETE", "/sessions/10") in server.calls


async def test_the_blocking_client_shows_its_token_too(tls: ssl.SSLContext, ca: Path, token_file: Path) -> None:
    def call(address: str) -> int:
        with connect_sync(address, token=token_file, ca=str(ca), cluster="shop") as client:
            return client.append(1)

    async with scripted(showing(TOKEN, appended(7)), tls=tls) as server:
        assert await asyncio.to_thread(call, server.address) == 7


async def test_a_server_that_the_header_names_must_prove_the_same_name(
    tls: ssl.SSLContext, ca: Path, tmp_path: Path
) -> None:
    foreign = Authority("other").context(tmp_path, "n2")
    async with scripted(appended(7), tls=foreign) as other, scripted(appended(3, other.address), tls=tls) as server:
        async with connect(server.address, token=TOKEN, ca=ca) as client:
            assert [await client.append(1), await client.append(2)] == [3, 3]
        assert other.requests == []
        assert len(server.requests) == 2


@pytest.mark.parametrize("call", CALLS)
async def test_a_certificate_of_another_cluster_is_refused_at_once_and_nothing_is_sent(
    call: Call, ca: Path, tmp_path: Path
) -> None:
    async with (
        scripted(appended(7), tls=Authority("other").context(tmp_path)) as server,
        connect(server.address, token=TOKEN, ca=ca) as client,
    ):
        async with asyncio.timeout(DEADLINE_S / 2):
            with pytest.raises(Unavailable, match=f"{server.address} is not a server of the cluster shop: .* CA"):
                await call(client)
        assert server.requests == []


async def test_a_certificate_of_the_ca_for_another_name_is_refused(tls: ssl.SSLContext, ca: Path) -> None:
    async with scripted(appended(7), tls=tls) as server, connect(server.address, ca=ca, cluster="store") as client:
        with pytest.raises(Unavailable, match=r"not a server of the cluster store: .* name store\.quire"):
            await client.append(1)
        assert server.requests == []


@pytest.mark.parametrize(("days", "what"), [((-5, -1), "has expired"), ((1, 5), "is not valid yet")])
async def test_a_certificate_that_is_out_of_time_is_refused(
    days: tuple[int, int], what: str, authority: Authority, ca: Path, tmp_path: Path
) -> None:
    context = authority.context(tmp_path, from_day=days[0], to_day=days[1])
    async with scripted(appended(7), tls=context) as server, connect(server.address, ca=ca) as client:
        with pytest.raises(Unavailable, match=f"the certificate of {server.address} {what}"):
            await client.append(1)
        assert server.requests == []


async def test_another_server_answers_if_one_does_not_prove_its_name(
    tls: ssl.SSLContext, ca: Path, tmp_path: Path
) -> None:
    foreign = Authority("other").context(tmp_path, "n2")
    async with scripted(appended(1), tls=foreign) as other, scripted(appended(7), tls=tls) as server:
        async with connect([other.address, server.address], ca=ca) as client:
            assert await client.append(1) == 7
        assert other.requests == []


async def test_a_server_without_tls_is_named_with_the_flags_that_it_lacks(ca: Path) -> None:
    async with scripted(appended(7)) as server, connect(server.address, token=TOKEN, ca=ca) as client:
        with pytest.raises(Unavailable, match=f"{server.address} does not speak TLS; start it with --tls-cert"):
            await client.append(1)
        assert server.requests == []


async def test_a_client_without_a_ca_learns_that_the_server_speaks_tls() -> None:
    async with scripted(refusing(400, "tls-required")) as server, connect(server.address) as client:
        with pytest.raises(BadRequest, match=f"{server.address} speaks TLS; give its CA with --ca") as refused:
            await client.append(1)

    assert refused.value.type == "urn:quire:problem:tls-required"


@pytest.mark.parametrize("call", CALLS)
async def test_a_token_that_no_server_knows_fails_the_call_after_each_was_asked_once(
    call: Call, tls: ssl.SSLContext, ca: Path
) -> None:
    async with scripted(unauthorized, tls=tls) as one, scripted(unauthorized, tls=tls) as two:
        async with connect([one.address, two.address], token=TOKEN, ca=ca) as client:
            with pytest.raises(Unauthorized, match="answered 401: the token is not known") as refused:
                await call(client)
        assert [len(one.requests), len(two.requests)] == [1, 1]

    assert (refused.value.status, refused.value.type) == (401, "urn:quire:problem:unauthorized")
    assert TOKEN not in str(refused.value) + repr(refused.value) + repr(vars(refused.value))


async def test_a_token_that_one_server_does_not_know_yet_is_shown_to_the_next(tls: ssl.SSLContext, ca: Path) -> None:
    async with scripted(unauthorized, tls=tls) as one, scripted(appended(7), tls=tls) as two:
        async with connect([one.address, two.address], token=TOKEN, ca=ca) as client:
            assert await client.append(1) == 7
        assert len(one.requests) == 1


async def test_what_another_server_answers_counts_more_than_a_refused_token(tls: ssl.SSLContext, ca: Path) -> None:
    async with (
        scripted(unauthorized, tls=tls) as one,
        scripted(refusing(404, "not-found"), tls=tls) as two,
        connect([one.address, two.address], token=TOKEN, ca=ca) as client,
    ):
        with pytest.raises(NotFound):
            await client.read(7)


async def test_a_client_without_a_token_learns_how_to_give_one(tls: ssl.SSLContext, ca: Path) -> None:
    async with scripted(unauthorized, tls=tls) as server, connect(server.address, ca=ca) as client:
        with pytest.raises(Unauthorized, match="give a token with --token-file, QUIRE_TOKEN_FILE or token="):
            await client.append(1)


@pytest.mark.parametrize("call", CALLS)
async def test_a_role_that_does_not_suffice_fails_the_call_at_once(call: Call, tls: ssl.SSLContext, ca: Path) -> None:
    async with scripted(refusing(403, "forbidden"), tls=tls) as server:
        async with connect(server.address, token=TOKEN, ca=ca) as client:
            with pytest.raises(Forbidden, match="answered 403: detail of forbidden") as refused:
                await call(client)
        assert len(server.requests) == 1

    assert refused.value.type == "urn:quire:problem:forbidden"


MOVES: dict[str, Call] = {
    "set": lambda client: client.cursors.set("mail", 8),
    "delete": lambda client: client.cursors.delete("mail"),
    "consume": lambda client: anext(client.consume("mail")),
}


@pytest.mark.parametrize(
    ("status", "kind", "raises"), [(403, "cursor-owned", Forbidden), (409, "cursors-full", BadRequest)]
)
@pytest.mark.parametrize("what", MOVES)
async def test_a_refused_change_of_a_cursor_fails_at_once_after_one_server_was_asked_once(
    what: str, status: int, kind: str, raises: type[BadRequest]
) -> None:
    def answered(request: web.Request) -> web.Response | None:
        return (document(CURSOR) if request.method == "GET" else refusing(status, kind))(request)

    async with scripted(answered) as one, scripted(answered) as two:
        async with connect([one.address, two.address], timeout_s=DEADLINE_S) as client:
            async with asyncio.timeout(DEADLINE_S / 2):
                with pytest.raises(raises, match=f"detail of {kind}") as refused:
                    await MOVES[what](client)
        asked = [*one.requests, *two.requests]
        assert len(asked) == (2 if what == "consume" else 1), "it reads the cursor first"

    assert (refused.value.status, refused.value.type) == (status, f"urn:quire:problem:{kind}")


async def test_a_session_of_another_token_is_refused_with_its_code() -> None:
    async with scripted(refusing(403, "session-owned")) as server, connect(server.address, session="s") as client:
        with pytest.raises(SessionError) as refused:
            await client.apply(1)

    assert refused.value.code == "SESSION_OWNED"


async def test_a_token_is_rotated_without_a_failed_call(tls: ssl.SSLContext, ca: Path, token_file: Path) -> None:
    known = KnownTokens(TOKEN)
    async with streaming(tls=tls, middlewares=[known.middleware]) as server:
        async with connect(server.address, token=token_file, ca=ca) as client:
            assert await client.apply("a") == 1
            known.tokens = {TOKEN, NEXT}
            written(token_file, NEXT)
            known.tokens = {NEXT}
            server.faults[:] = [Fault.NOT_ANSWERED]  # The stream ends, as that of a revoked token does.
            assert await client.apply("b") == 2
            assert await client.ready(server.address)
        assert server.executed == ["a", "b"]


async def test_a_server_that_does_not_know_the_new_token_yet_is_asked_again(
    tls: ssl.SSLContext, ca: Path, token_file: Path
) -> None:
    known = KnownTokens(TOKEN)
    async with (
        streaming(tls=tls, middlewares=[known.middleware]) as server,
        connect(server.address, token=token_file, ca=ca) as client,
    ):
        assert await client.apply("a") == 1
        known.tokens = set()
        written(token_file, NEXT)
        calls = [asyncio.create_task(client.apply("b")), asyncio.create_task(client.ready(server.address))]
        server.faults[:] = [Fault.NOT_TAKEN]
        await until(lambda: known.refused >= 3)
        known.tokens = {NEXT}
        assert await asyncio.gather(*calls) == [2, True]


async def test_a_revoked_token_fails_what_was_not_sent_and_the_client_recovers_with_another(
    tls: ssl.SSLContext, ca: Path, token_file: Path
) -> None:
    known = KnownTokens(TOKEN)
    async with (
        streaming(tls=tls, middlewares=[known.middleware]) as server,
        connect(server.address, token=token_file, ca=ca) as client,
    ):
        assert await client.apply("a") == 1
        known.tokens = set()
        server.faults[:] = [Fault.CLOSED]
        in_flight = await client.submit("b")
        await until(lambda: known.refused > 0)
        with pytest.raises(Unauthorized):
            await client.apply("c")
        known.tokens = {NEXT}
        written(token_file, NEXT)
        assert await in_flight == 2  # It was in doubt, so it waited.
        assert server.executed == ["a", "b"]


async def test_a_ca_and_certificates_are_rotated_without_a_failed_call(
    tls: ssl.SSLContext, ca: Path, authority: Authority, tmp_path: Path
) -> None:
    follower = Authority("shop")
    async with streaming(tls=tls) as server, connect(server.address, ca=ca) as client:
        assert await client.apply("a") == 1
        written(ca, (follower.pem + authority.pem).decode())
        tls.load_cert_chain(*follower.issue(tmp_path))  # New connections get it.
        server.faults[:] = [Fault.NOT_ANSWERED]
        assert await client.apply("b") == 2
        follower.write(ca)
        assert await client.apply("c") == 3


async def test_a_long_lived_client_waits_for_a_ca_that_comes_late(
    tls: ssl.SSLContext, ca: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    follower = Authority("shop")
    async with scripted(document(7), broken, document(8), tls=tls) as server, connect(server.address, ca=ca) as client:
        assert await client.read(0) == 7
        tls.load_cert_chain(*follower.issue(tmp_path))
        with caplog.at_level(logging.DEBUG, "quire.client"):
            call = asyncio.create_task(client.read(1))
            await until(lambda: "is not a server of the cluster shop" in caplog.text)
        follower.write(ca)
        assert await call == 8


def test_a_token_without_a_ca_is_refused_before_anything_is_opened(ca: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs the cluster's CA"):
        connect("n1:7001", token=TOKEN)
    with pytest.raises(ValueError, match="needs the cluster's CA"):
        connect_sync("n1:7001", token=TOKEN)
    with pytest.raises(TlsRefused, match="cannot be read"):
        connect("n1:7001", ca=tmp_path / "absent")


async def test_no_token_is_logged(tls: ssl.SSLContext, ca: Path, caplog: pytest.LogCaptureFixture) -> None:
    steps = [refusing(503, "no-leader"), unauthorized]
    with caplog.at_level(logging.DEBUG):
        async with scripted(*steps, tls=tls) as server, connect(server.address, token=TOKEN, ca=ca) as client:
            for call in CALLS:
                with pytest.raises(Unauthorized):
                    await call(client)

    assert "waiting" in caplog.text
    assert TOKEN[6:] not in caplog.text
