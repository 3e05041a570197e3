"""A member of an earlier version whose id begins with - goes on; no new cluster has one."""

from pathlib import Path

import pytest

from quire.cluster.config.serve import ServeConfig, load_config
from quire.cluster.data_dir import genesis
from quire.cluster.node.node import Node
from quire.replication import NODE_ID
from tests.cluster.running import free_addresses
from tests.replication.loopback import until
from tests.tuned import tuned

FLAGS = {"node": "n1", "listen": "127.0.0.1:1", "data_dir": "n1"}


def config_of(data_dir: Path) -> ServeConfig:
    [address] = free_addresses(1)
    return tuned(ServeConfig, node="-a", listen=address, members={"-a": address}, data_dir=data_dir)


async def run(config: ServeConfig) -> Node:
    """A node that has stopped after its cluster was formed, or could not be."""
    node = Node(config)
    await node.start()
    await until(lambda: node.formed or node.health.failure)
    await node.stop()
    return node


async def test_a_node_of_an_earlier_version_whose_id_begins_with_a_hyphen_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tmp_path)
    with monkeypatch.context() as earlier:
        earlier.setattr(genesis, "NEW_NODE_ID", NODE_ID)
        await run(config)

    assert (await run(config)).health.failure is None


async def test_a_cluster_is_not_formed_of_a_node_whose_id_begins_with_a_hyphen(tmp_path: Path) -> None:
    node = await run(config_of(tmp_path))

    assert "initial_members (--initial-members) names '-a'" in str(node.health.failure)
    assert not (tmp_path / "identity").exists()


def test_every_node_may_name_a_member_whose_id_begins_with_a_hyphen() -> None:
    config = load_config(FLAGS | {"members": "n1=127.0.0.1:1,-a=b:1", "initial_members": "n1,-a", "link": "-a=c:1"})

    assert config.initial_members == ("n1", "-a")
