"""An answer that comes twice is never that of the next request on its connection."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from quire.cluster.access.client_credentials import ClientCredentials
from quire.cluster.cli.nodes.asking import NodeCaller, NotReached
from quire.cluster.client import BadRequest, OutcomeUnknown
from quire.cluster.client.transport import Transport
from quire.cluster.request_id import OTHER_ANSWER, REQUEST_ID
from tests.cluster.doubling import DoublingRelay, doubling_relay
from tests.cluster.running import RunningCluster, free_addresses, running_cluster

JSON = "application/json"
TIMEOUT_S = 30.0


def adding(number: int) -> bytes:
    return orjson.dumps({"commands": [["add", number]]})


@asynccontextmanager
async def relayed(directory: Path, **settings: Any) -> AsyncGenerator[tuple[RunningCluster, DoublingRelay]]:
    """Three nodes, of which n2 reaches the leader n1 only by a relay."""
    addresses = free_addresses(3)
    async with doubling_relay(addresses[0]) as relay:
        links = {"n2": {"n1": relay.address}}
        async with running_cluster(directory, addresses=addresses, links=links, **settings) as cluster:
            yield cluster, relay


@pytest.mark.parametrize("headers", [{}, {REQUEST_ID: "trace:1"}], ids=["ids of the node", "one id of the callers"])
async def test_a_forwarded_write_does_not_get_the_answer_to_another(tmp_path: Path, headers: dict[str, str]) -> None:
    async with relayed(tmp_path) as (cluster, relay):
        relay.doubles = True
        answers = [await cluster.ask("n2", "POST", "/commands", adding(n), JSON, headers) for n in (3, 100, 1000)]

        assert [answer.document.get("results") for answer in answers] == [["45"], None, ["1145"]]
        assert (answers[1].status, answers[1].problem) == (504, "outcome-unknown")
        assert OTHER_ANSWER in answers[1].document["detail"]


async def test_a_forwarded_read_does_not_get_the_answer_to_another_and_is_sent_again(tmp_path: Path) -> None:
    async with relayed(tmp_path) as (cluster, relay):
        relay.doubles = True
        first = await cluster.ask("n2", "GET", "/state")
        await cluster.commands("n1", ["add", 3])
        second, third = [await cluster.ask("n2", "GET", "/state") for _ in range(2)]

        assert [read.document["state"] for read in (first, second, third)] == ["42", "45", "45"]


async def test_a_status_that_comes_twice_is_not_taken_for_a_later_one(tmp_path: Path) -> None:
    async with relayed(tmp_path) as (cluster, relay):
        relay.doubles = True
        nodes = [(await cluster.ask("n2", "GET", "/cluster")).document["nodes"]["n1"] for _ in range(3)]

        assert [node["status"] is not None for node in nodes] == [True, False, True]
        assert nodes[1]["failure"] == OTHER_ANSWER


async def test_a_client_s_call_does_not_get_the_answer_to_another(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster, doubling_relay(cluster.address("n1")) as relay:
        transport = Transport([relay.address], TIMEOUT_S)
        headers = {"Content-Type": JSON, "Accept": JSON}
        relay.doubles = True

        async def add(number: int) -> Any:
            body = adding(number)
            reply = await transport.call(
                "POST", "/commands", writes=True, body=body, headers=headers, server=relay.address
            )
            return orjson.loads(reply.body)["results"]

        async def read() -> Any:
            reply = await transport.call("GET", "/state", headers=headers, server=relay.address)
            return orjson.loads(reply.body)["state"]

        try:
            assert await add(3) == ["45"]
            with pytest.raises(OutcomeUnknown, match=OTHER_ANSWER):
                await add(100)
            assert await add(1000) == ["1145"]
            assert await read() == "1145"  # The first attempt gets the answer to the write.
            await cluster.commands("n1", ["add", 5])
            assert await read() == "1150"
        finally:
            await transport.close()


async def test_a_request_that_cannot_be_read_is_refused_at_once_although_its_id_was_not_read(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1) as cluster:
        transport = Transport([cluster.address("n1")], TIMEOUT_S)
        try:
            with pytest.raises(BadRequest, match="cannot be read as HTTP"):
                await transport.call("GET", "/cursors/" + "x" * 10_000)
        finally:
            await transport.close()


async def test_a_command_line_that_watches_nodes_does_not_show_a_status_twice(tmp_path: Path) -> None:
    async with (
        running_cluster(tmp_path) as cluster,
        doubling_relay(cluster.address("n1")) as relay,
        NodeCaller(ClientCredentials()) as caller,
    ):
        relay.doubles = True
        await caller.get(relay.address, "/status", TIMEOUT_S)
        with pytest.raises(NotReached, match=OTHER_ANSWER):
            await caller.get(relay.address, "/status", TIMEOUT_S)
        assert (await caller.get(relay.address, "/status", TIMEOUT_S))["node_id"] == "n1"
