"""The types of what the client's calls return, async and blocking."""

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping
from concurrent.futures import Future
from typing import assert_type

import quire
from quire.cluster.client import (
    BadRequest,
    BatchReply,
    BlockingClient,
    Client,
    ClientError,
    CommandRefused,
    Consistency,
    Members,
    NotFound,
    Problem,
    Record,
    Refusal,
    SegmentsExpired,
    Session,
    SessionClosed,
    SessionError,
    SessionFenced,
    SessionStatus,
    SnapshotTaken,
    State,
    Status,
)
from quire.log import Bounds, Value


async def commands(cluster: Client) -> None:
    """Commands, one by one, in batches, and pipelined."""
    assert_type(await cluster.apply(["add", 3]), Value)
    assert_type(await cluster.apply_batch([["add", 3], ["sub", 1]]), BatchReply)
    assert_type(await cluster.submit(["add", 3]), asyncio.Future[Value])
    future = await cluster.submit_batch([["add", 3]])
    assert_type(future, asyncio.Future[BatchReply])
    reply = await future
    assert_type(reply.index, int | None)
    assert_type(reply.repeated, bool)
    assert_type(reply.epoch, int)
    assert_type(reply.results, list[Value])
    assert_type(reply.refused, list[Refusal])


async def records(cluster: Client) -> None:
    """Appending and reading records."""
    assert_type(await cluster.append({"any": "value"}), int)
    assert_type(await cluster.append_batch([b"bytes", None]), int)
    assert_type(await cluster.read(7), Value)
    assert_type(await cluster.bounds(), Bounds)
    assert_type(cluster.read_range(1, 5), AsyncGenerator[Record, None])
    assert_type(cluster.tail(), AsyncGenerator[Record, None])
    async for record in cluster.tail(from_index=0):
        assert_type(record, Record)
        assert_type(record.index, int)
        assert_type(record.timestamp, int)
        assert_type(record.headers, Mapping[str, str])
        assert_type(record.value, Value)


async def reads(cluster: Client, consistency: Consistency) -> None:
    """The machine's state and answers, and the nodes' status."""
    assert_type(await cluster.query({"get": "key"}), Value)
    assert_type(await cluster.query(None, "local", server="127.0.0.1:7001"), Value)
    state = await cluster.state(consistency)
    assert_type(state, State)
    assert_type(state.applied_index, int)
    assert_type(state.digest, str)
    assert_type(await cluster.status(), Status)
    assert_type(await cluster.ready("127.0.0.1:7001"), bool)


async def administration(cluster: Client) -> None:
    """Sessions, leadership, members, snapshots and expiry."""
    session = await cluster.session()
    assert_type(session, Session)
    assert_type(session.name, str | None)
    assert_type(session.sequence, int)
    assert_type(await cluster.resume_at(session.sequence), Session)
    assert_type(await cluster.session_status(session.id), SessionStatus)
    assert_type(await cluster.close_session(session.id), SessionClosed)
    assert_type(await cluster.transfer(), str)
    assert_type(await cluster.members(), Members)
    assert_type(await cluster.membership.promote("n3"), list[int])
    assert_type(await cluster.take_snapshot("127.0.0.1:7001"), SnapshotTaken)
    assert_type(await cluster.expire("127.0.0.1:7001", dry_run=True), SegmentsExpired)


async def connecting() -> None:
    """`connect` takes one string or a sequence, and gives the client itself."""
    assert_type(quire.connect("127.0.0.1:7001,127.0.0.1:7002"), Client)
    async with quire.connect(["127.0.0.1:7001"], session="billing", timeout_s=5, halt_on_failure=True) as cluster:
        assert_type(cluster, Client)
    assert_type(quire.connect_sync("127.0.0.1:7001"), BlockingClient)
    with quire.connect_sync(("127.0.0.1:7001",), session="billing") as blocking:
        assert_type(blocking, BlockingClient)


def blocking(cluster: BlockingClient) -> None:
    """The blocking client: the same results without `await`; futures that any thread may wait for."""
    assert_type(cluster.apply(["add", 3]), Value)
    assert_type(cluster.apply_batch([["add", 3]]), BatchReply)
    assert_type(cluster.submit(["add", 3]), Future[Value])
    assert_type(cluster.submit_batch([["add", 3]]), Future[BatchReply])
    assert_type(cluster.submit_batch([["add", 3]]).result(5.0), BatchReply)
    assert_type(cluster.append("value"), int)
    assert_type(cluster.append_batch(["value"]), int)
    assert_type(cluster.read(7), Value)
    assert_type(cluster.bounds(), Bounds)
    assert_type(cluster.read_range(1, 5), Generator[Record, None, None])
    tail = cluster.tail(0)
    assert_type(next(tail), Record)
    tail.close()
    assert_type(cluster.query(None, "leader"), Value)
    assert_type(cluster.state(), State)
    assert_type(cluster.status(), Status)
    assert_type(cluster.session(), Session)
    assert_type(cluster.transfer("n2"), str)
    assert_type(cluster.membership.promote("n3"), list[int])
    assert_type(cluster.ready("127.0.0.1:7001"), bool)


def errors(error: ClientError) -> None:
    """What the errors tell; every error of a session is one class, and a missing record is a bad request."""
    match error:
        case CommandRefused():
            assert_type(error.code, str)
            assert_type(error.position, int)
            assert_type(error.index, int | None)
            assert_type(error.refused, list[Refusal])
        case BadRequest():
            assert_type(error.status, int)
            assert_type(error.type, str)
            assert_type(error.problem, Problem)
        case SessionError():
            assert_type(error.code, str)
        case _:
            pass
    kinds: list[type[BadRequest | SessionError]] = [NotFound, SessionFenced]
    assert_type(kinds[0], type[BadRequest] | type[SessionError])
