"""A setting that has no effect is an alarm with both values: in the journal and in the status."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from quire.cluster.config.access import INSECURE
from quire.cluster.config.secret_file import write_new_secret
from quire.cluster.config.serve import MIB, ServeConfig
from quire.cluster.data_dir.genesis import FIXED_LIMITS, Genesis, ignored_settings, make_genesis, read_genesis
from quire.cluster.node.node import Node
from quire.cluster.node.views.status import node_status
from quire.log import FEATURES
from quire.replication import Member, Members, Role
from tests.cluster.running import free_addresses
from tests.replication.loopback import until
from tests.tuned import tuned

MEMBER = Member("n1", b"1" * 16, "h:1", Role.VOTER)
GIVEN = {"max_frame_bytes": 16 * MIB, "session_ttl_s": 1000, "state_bytes": 2000}


ADDRESSES: dict[Path, list[str]] = {}
"""Of the node in each folder: its log names it."""


def config_of(data_dir: Path, **settings: Any) -> ServeConfig:
    [address] = ADDRESSES.setdefault(data_dir, free_addresses(1))
    given: dict[str, Any] = {"node": "n1", "listen": address, "members": {"n1": address}, "data_dir": data_dir}
    return tuned(ServeConfig, **(given | settings))


def genesis_of(config: ServeConfig, features: frozenset[str] = FEATURES) -> Genesis:
    return read_genesis(make_genesis(Members((MEMBER,)), ("arithmetic", 1), 42, config, features))


@asynccontextmanager
async def running(config: ServeConfig, *, forms: bool = True) -> AsyncGenerator[tuple[Node, list[str]]]:
    """A node, and the alarms that it has logged."""
    node = Node(config)
    with capture_logs() as lines:
        await node.start()
        try:
            if forms:
                await until(lambda: node.formed)
            yield node, [line["text"] for line in lines if line["event"] == "alarm"]
        finally:
            await node.stop()


def test_a_limit_that_a_formed_cluster_has_another_value_of_is_told_with_both_values() -> None:
    genesis = genesis_of(config_of(Path("n1")))

    told = ignored_settings(genesis, config_of(Path("n1"), **GIVEN))

    assert len(told) == len(FIXED_LIMITS) == len(GIVEN)
    for name, text in zip(FIXED_LIMITS, told, strict=True):
        assert text.startswith(f"{name} {GIVEN[name]} of this node's configuration has no effect")
        assert f"was formed with {genesis.limits[name]}" in text
        assert f"leave --{name.replace('_', '-')} out" in text


def test_a_limit_that_nobody_gave_or_that_is_the_cluster_s_is_no_alarm() -> None:
    genesis = genesis_of(config_of(Path("n1"), **GIVEN))

    assert ignored_settings(genesis, config_of(Path("n1"))) == []
    assert ignored_settings(genesis, config_of(Path("n1"), **GIVEN)) == []


async def test_a_node_tells_of_what_it_ignores_while_it_is_configured_so(tmp_path: Path) -> None:
    async with running(config_of(tmp_path, session_ttl_s=1000)) as (node, told):
        assert (node_status(node)["alarms"], told) == ([], [])
    async with running(config_of(tmp_path, session_ttl_s=2000, state_bytes=0)) as (node, told):
        assert [alarm.split(" of ")[0] for alarm in node_status(node)["alarms"]] == [
            "session_ttl_s 2000",
            "state_bytes 0",
        ]
        assert told == node_status(node)["alarms"]
    async with running(config_of(tmp_path)) as (node, told):
        assert (node_status(node)["alarms"], told) == ([], [])


@pytest.mark.parametrize("nodes", [1, 2], ids=["formed", "not formed"])
async def test_a_node_that_listens_where_nobody_looks_for_it_tells_both_addresses(tmp_path: Path, nodes: int) -> None:
    listen, *addresses = free_addresses(1 + nodes)
    members = {f"n{number}": address for number, address in enumerate(addresses, 1)}
    async with running(config_of(tmp_path, listen=listen, members=members), forms=nodes == 1) as (node, told):
        [alarm] = node_status(node)["alarms"]
        assert f"listens on {listen}, but others dial it at {members['n1']}" in alarm
        assert told == [alarm]


async def test_a_node_that_listens_on_every_address_has_no_alarm_of_its_address(tmp_path: Path) -> None:
    [address] = free_addresses(1)
    port = address.rpartition(":")[2]
    secret = tmp_path / "peer-secret"
    write_new_secret(secret)
    settings = {"listen": f"0.0.0.0:{port}", "members": {"n1": address}, "peer_secret_file": secret, "insecure": True}
    async with running(config_of(tmp_path / "n1", **settings)) as (node, told):
        assert (node_status(node)["alarms"], told) == ([INSECURE], [INSECURE])
