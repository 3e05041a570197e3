"""The documents of the client's calls have the keys and types that are written down, and no others."""

from collections.abc import AsyncGenerator, Iterator
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

import pytest
import pytest_asyncio

from quire.cluster.client import connect, documents
from quire.log import Value
from tests.cluster.running import RunningCluster, running_cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", name="cluster")
async def _cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[RunningCluster]:
    async with running_cluster(tmp_path_factory.mktemp("documents")) as cluster:
        yield cluster


def differences(value: object, kind: Any, at: str) -> Iterator[str]:
    """What of a value is not as its type says, by its place."""
    if kind == Value:
        return
    if is_typeddict(kind):
        yield from _of_document(value, kind, at)
    elif get_origin(kind) is list and isinstance(value, list):
        for number, each in enumerate(value):
            yield from differences(each, get_args(kind)[0], f"{at}[{number}]")
    elif get_origin(kind) is dict and isinstance(value, dict):
        for key, each in value.items():
            yield from differences(each, get_args(kind)[1], f"{at}[{key!r}]")
    elif get_origin(kind) is UnionType:
        if all(list(differences(value, option, at)) for option in get_args(kind)):
            yield f"{at} is {value!r}, no {kind}"
    elif type(value) is not kind and (kind, type(value)) != (float, int):
        yield f"{at} is {value!r}, no {kind.__name__}"


def _of_document(value: object, kind: Any, at: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{at} is {value!r}, no map"
        return
    hints = get_type_hints(kind)
    yield from (f"{at} has no {key}" for key in sorted(kind.__required_keys__ - value.keys()))
    yield from (f"{at}.{key} is in no type" for key in sorted(value.keys() - hints.keys()))
    for key in value.keys() & hints.keys():
        yield from differences(value[key], hints[key], f"{at}.{key}")


async def test_an_operator_s_documents_are_what_their_types_say(cluster: RunningCluster) -> None:
    leader, follower = cluster.address("n1"), cluster.address("n2")
    found: list[str] = []
    async with connect(leader, session="typed") as client:
        assert await client.apply(["add", 1])
        session = (await client.session()).id
        for server in (leader, follower):
            taken = await client.take_snapshot(server)
            found += differences(taken, documents.SnapshotTaken, "snapshot")
            found += differences(await client.status(server), documents.Status, "status")
            found += differences(await client.expire(server, dry_run=True), documents.SegmentsExpired, "expire")
            found += differences(await client.code.accept(server), documents.CodeAccepted, "code")
        found += differences(await client.members(), documents.Members, "members")
        found += differences(await client.session_status(session), documents.SessionStatus, "session")
        rows = [row async for row in client.sessions()]
        assert [row["session"] for row in rows] == [session]
        found += differences(rows, list[documents.SessionRow], "sessions")
    async with connect(leader) as client:
        found += differences(await client.close_session(session), documents.SessionClosed, "closed")
    assert sorted(set(found)) == []


async def test_a_document_that_differs_from_its_type_is_found() -> None:
    closed = documents.SessionClosed
    assert list(differences({"session": 1, "sequence": 2}, closed, "it")) == []
    assert list(differences({"session": "1", "more": 2}, closed, "it")) == [
        "it has no sequence",
        "it.more is in no type",
        "it.session is '1', no int",
    ]
    assert list(differences([None, "a", 3], list[str | None], "it")) == ["it[2] is 3, no str | None"]
