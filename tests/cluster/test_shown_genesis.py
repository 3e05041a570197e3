"""A genesis that a peer shows to a node that waits to be formed: one that it could not run with is the peer's fault."""

from pathlib import Path
from typing import Any

import pytest

from quire.cluster.config.serve import ServeConfig
from quire.cluster.data_dir.genesis import GenesisInvalid, make_genesis, read_genesis
from quire.log import Kind, decode_system, encode_frame, encode_system, walk_frames
from quire.replication import Members
from quire.replication.core.members import Member, Role
from quire.replication.net.forming import members_of_genesis
from quire.replication.net.wire import BadMessage

MEMBER = Member("n1", b"1" * 16, "127.0.0.1:7001", Role.VOTER)


def shown(epoch: int = 0, **changed: Any) -> bytes:
    config = ServeConfig(node="n1", listen=MEMBER.address, members={"n1": MEMBER.address}, data_dir=Path("unused"))
    [frame] = walk_frames(make_genesis(Members((MEMBER,)), ("arithmetic", 1), 42, config))
    value = {name: given for name, given in (decode_system(frame.payload) | changed).items() if given != "missing"}
    return encode_frame(
        index=0, epoch=epoch, timestamp=1, count=1, prev_crc32c=0, kind=Kind.SYSTEM, payload=encode_system(value)
    )


@pytest.mark.parametrize("value", ["missing", None, 1, "x", b"x", [], {}, [1], [None, None], {"max_frame_bytes": -1}])
@pytest.mark.parametrize("name", ["cluster_id", "machine", "limits", "members"])
def test_a_genesis_with_a_field_of_another_type_is_invalid(name: str, value: Any) -> None:
    with pytest.raises(GenesisInvalid):
        read_genesis(shown(**{name: value}))


@pytest.mark.parametrize("bytes_", [0, 1, (64 << 10) - 1, (256 << 20) + 1, 2**63, 2**64 - 1, 1.5, True, "1"])
def test_a_genesis_with_a_limit_that_no_node_runs_with_is_invalid(bytes_: Any) -> None:
    with pytest.raises(GenesisInvalid):
        read_genesis(shown(limits={"max_frame_bytes": bytes_}))


def test_a_genesis_of_the_cluster_that_is_none_is_invalid() -> None:
    with pytest.raises(GenesisInvalid):
        read_genesis(shown(cluster_id=bytes(16)))


def test_a_genesis_of_another_epoch_than_the_first_is_a_bad_message() -> None:
    members_of_genesis(shown())
    with pytest.raises(BadMessage):
        members_of_genesis(shown(epoch=1))
