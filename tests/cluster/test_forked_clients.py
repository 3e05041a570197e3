"""A client that was open at a fork: the child's calls fail at once, and nothing that the child does reaches the parent.

Each test runs a program that forks between a command and its answer. The server sees one stream, which never ends.
"""

import asyncio
import os
import re
import signal
import ssl
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.cluster.access.issued import Authority
from tests.cluster.streaming import StreamServer, streaming

DEADLINE_S = 60.0

CALLS = """
import asyncio, gc, multiprocessing, os, socket, sys, threading
import quire
from quire.cluster.client import ForkedClient

server, way = sys.argv[1:]

def descriptors():
    found = []
    for each in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{each}"))
        except FileNotFoundError:
            pass
    return found

def refused(call, *arguments):
    try:
        call(*arguments)
    except ForkedClient as error:
        assert str(os.getppid()) in str(error) and "open another client in the child" in str(error), error
    else:
        raise AssertionError(call)

def calls_of(cluster):
    yield from (
        lambda: cluster.apply(1), lambda: cluster.submit(1), lambda: cluster.apply_batch([1]),
        lambda: cluster.submit_batch([1]), cluster.session, lambda: cluster.resume_at(1), lambda: cluster.append(b"x"),
        lambda: cluster.append_batch([1]), lambda: cluster.read(0), lambda: cluster.query(None), cluster.state,
        cluster.status, cluster.transfer, cluster.members, lambda: cluster.membership.promote("n1"),
        lambda: cluster.take_snapshot(server), lambda: cluster.code.accept(server), lambda: cluster.expire(server),
        lambda: cluster.session_status(1), lambda: cluster.close_session(1), lambda: cluster.close_sessions([1]),
        lambda: cluster.ready(server),
    )
"""

BLOCKING = (
    CALLS
    + """
def in_child(cluster, in_flight, answered, records):
    for call in calls_of(cluster):
        refused(call)
    refused(cluster.sessions)
    for listing in (cluster.read_range(0, 9), cluster.tail(0), records):
        refused(next, listing)
    refused(in_flight.result)
    refused(in_flight.exception)
    assert answered.result() == 1
    assert not [each for each in descriptors() if each.startswith(("socket:", "anon_inode:[eventpoll]"))]

def fork(cluster, in_flight, answered, records):
    if way == "multiprocessing":
        child = multiprocessing.get_context("fork").Process(
            target=in_child, args=(cluster, in_flight, answered, records)
        )
        child.start()
        child.join()
        assert child.exitcode == 0, child.exitcode
        return
    if (child := os.fork()) == 0:
        in_child(cluster, in_flight, answered, records)
        if way == "the block's end":
            return "child"
        if way == "another client":
            print("child", flush=True)
            with quire.connect_sync(server) as own:
                assert own.apply("child's") == 3
        if way == "os._exit":
            os._exit(0)
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0

def main():
    with quire.connect_sync(server) as cluster:
        answered = cluster.submit("first")
        assert answered.result() == 1
        cluster.ready(server)
        records = cluster.tail(0)
        in_flight = cluster.submit("in flight")
        print("sent", flush=True)
        if fork(cluster, in_flight, answered, records) == "child":
            return "child"
        print("forked", flush=True)
        assert in_flight.result() == 2
        assert isinstance(cluster.apply("after"), int)
        threads = [threading.Thread(target=cluster.apply, args=(number,)) for number in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()

if main() == "child":
    gc.collect()
    sys.exit(0)
"""
)

CLOSING = (
    CALLS
    + """
cluster = quire.connect_sync(server)
cluster.__enter__()
assert cluster.apply("first") == 1
in_flight = cluster.submit("in flight")
leaving = threading.Thread(target=cluster.__exit__, args=(None, None, None))
leaving.start()
try:
    while True:
        cluster.ready(server)
except RuntimeError:
    pass  # It waits for the answer, and then closes.
print("sent", flush=True)
if (child := os.fork()) == 0:
    refused(cluster.apply, 1)
    refused(in_flight.result)
    assert not [each for each in descriptors() if each.startswith(("socket:", "anon_inode:[eventpoll]"))]
    cluster.__exit__(None, None, None)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
print("forked", flush=True)
assert in_flight.result() == 2
leaving.join()
"""
)

ASYNCIO = (
    CALLS
    + """
async def main():
    before = {each for each in descriptors() if each.startswith("socket:")}  # The loop's own.
    async with quire.connect(server) as cluster:
        assert await cluster.apply("first") == 1
        await cluster.ready(server)
        in_flight = await cluster.submit("in flight")
        print("sent", flush=True)
        await asyncio.sleep(0)
        if (child := os.fork()) == 0:
            assert not {each for each in descriptors() if each.startswith("socket:")} - before
            for call in calls_of(cluster):
                try:
                    await call()
                except ForkedClient as error:
                    assert "open another client in the child" in str(error)
                else:
                    raise AssertionError(call)
            for listing in (cluster.read_range(0, 9), cluster.tail(0), cluster.sessions()):
                try:
                    await anext(listing)
                except ForkedClient:
                    pass
                else:
                    raise AssertionError(listing)
            if way == "the block's end":
                return
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print("forked", flush=True)
        assert await in_flight == 2
        assert isinstance(await cluster.apply("after"), int)

parent = os.getpid()
with asyncio.Runner(loop_factory=LOOP_FACTORY) as runner:
    runner.run(main())
    if os.getpid() != parent:
        os._exit(0)  # To close a copied loop would close the parent's.
"""
)


@asynccontextmanager
async def forking(
    program: str, way: str, tls: ssl.SSLContext | None = None
) -> AsyncGenerator[tuple[StreamServer, asyncio.subprocess.Process], None]:
    """A program that has sent `in flight`, which the server does not answer."""
    async with streaming(tls=tls) as server:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-X", "dev", "-W", "ignore::ResourceWarning", "-c", program, server.address, way),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            yield server, process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # The child, too, which holds the pipes.
            await process.communicate()


async def goes_on_as_if_there_were_no_fork(program: str, way: str, tls: ssl.SSLContext | None = None) -> StreamServer:
    async with forking(program, way, tls) as (server, process), asyncio.timeout(DEADLINE_S):
        assert process.stdout is not None
        assert process.stderr is not None
        await server.heard(1)
        server.answering.clear()
        assert await process.stdout.readline() == b"sent\n", await process.stderr.read()
        if way == "another client":
            assert await process.stdout.readline() == b"child\n", await process.stderr.read()
            server.answering.set()
        assert await process.stdout.readline() == b"forked\n", await process.stderr.read()
        server.answering.set()
        output, errors = await process.communicate()

        assert (process.returncode, output, errors) == (0, b"", b"")
        return server


@pytest.mark.parametrize("way", ["os._exit", "sys.exit", "the block's end", "multiprocessing", "another client"])
async def test_a_blocking_client_fails_at_once_in_a_child_and_goes_on_in_the_parent(way: str) -> None:
    server = await goes_on_as_if_there_were_no_fork(BLOCKING, way)

    own = way == "another client"
    assert server.executed[:2] == ["first", "in flight"]
    assert len(server.streams) == (2 if own else 1)  # No close frame, and no connection that broke.
    assert [method for method, _ in server.calls] == ["POST", *(["POST", "DELETE"] if own else []), "DELETE"]


@pytest.mark.parametrize("factory", ["asyncio.SelectorEventLoop", "__import__('uvloop').new_event_loop"])
@pytest.mark.parametrize("way", ["os._exit", "the block's end"])
async def test_an_asyncio_client_fails_at_once_in_a_child_and_goes_on_in_the_parent(way: str, factory: str) -> None:
    server = await goes_on_as_if_there_were_no_fork(ASYNCIO.replace("LOOP_FACTORY", factory), way)

    assert server.executed == ["first", "in flight", "after"]
    assert len(server.streams) == 1
    assert [method for method, _ in server.calls] == ["POST", "DELETE"]


@pytest.mark.parametrize(
    ("program", "way"),
    [
        (BLOCKING, "sys.exit"),
        (BLOCKING, "the block's end"),
        (ASYNCIO.replace("LOOP_FACTORY", "asyncio.SelectorEventLoop"), "the block's end"),
        (ASYNCIO.replace("LOOP_FACTORY", "__import__('uvloop').new_event_loop"), "the block's end"),
    ],
    ids=["exit", "blocking", "asyncio", "uvloop"],
)
async def test_a_child_ends_no_connection_with_tls_of_its_parent(program: str, way: str, tmp_path: Path) -> None:
    authority = Authority("shop")
    ca = authority.write(tmp_path / "ca.crt")
    program = re.sub(r"(quire\.connect(?:_sync)?)\(server\)", rf"\1(server, ca={str(ca)!r})", program)

    server = await goes_on_as_if_there_were_no_fork(program, way, authority.context(tmp_path))

    assert "ca=" in program
    assert server.executed[:2] == ["first", "in flight"]
    assert len(server.streams) == 1
    assert [method for method, _ in server.calls] == ["POST", "DELETE"]


async def test_a_child_forked_while_a_client_closes_fails_at_once_and_the_client_closes_in_order() -> None:
    server = await goes_on_as_if_there_were_no_fork(CLOSING, "closing")

    assert server.executed == ["first", "in flight"]
    assert len(server.streams) == 1
    assert [method for method, _ in server.calls] == ["POST", "DELETE"]
