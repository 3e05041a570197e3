"""Rule 0: how a cluster begins, and how it does not."""

import pytest

from quire.log import Kind, encode_frame, encode_records, encode_system
from quire.replication.core import Identity, Member, Members, Role
from quire.replication.core.membership.formation import Formation
from quire.replication.net.forming import members_of_genesis
from quire.replication.net.wire import BadMessage
from tests.replication.world import genesis_frame, voters

INITIAL = ["n3", "n1", "n2"]


def disk(number: int) -> bytes:
    return bytes([number]) * 16


def formation(node_id: str, number: int, initial: list[str] | None = None) -> Formation:
    return Formation(Identity(node_id, disk(number), 1), f"{node_id}:1", INITIAL if initial is None else initial)


def link(formation: Formation, node_id: str, number: int, *, formatted: bool = False) -> None:
    formation.linked(node_id, disk(number), f"{node_id}:1", formatted=formatted)


def voter(node_id: str, number: int) -> Member:
    return Member(node_id, disk(number), f"{node_id}:1", Role.VOTER)


def test_the_lowest_id_forms_the_cluster_of_all_initial_members_with_their_disks() -> None:
    lowest = formation("n1", 1)
    link(lowest, "n2", 2)
    link(lowest, "n3", 3)

    assert lowest.awaited() == []
    members = lowest.members()
    assert members is not None
    assert set(members.members) == {voter("n1", 1), voter("n2", 2), voter("n3", 3)}


def test_no_other_than_the_lowest_id_forms_it() -> None:
    for node_id, number in (("n2", 2), ("n3", 3)):
        other = formation(node_id, number)
        for peer, peer_number in (("n1", 1), ("n2", 2), ("n3", 3)):
            if peer != node_id:
                link(other, peer, peer_number)

        assert other.awaited() == []
        assert other.members() is None


def test_a_majority_is_not_enough_to_form_a_cluster() -> None:
    # *A wiped majority forms an empty cluster*, beside the disk that holds the data.
    lowest = formation("n1", 1)
    link(lowest, "n2", 2)

    assert lowest.awaited() == ["n3"]
    assert lowest.members() is None


def test_nothing_is_formed_while_one_member_has_a_cluster_already() -> None:
    lowest = formation("n1", 1)
    link(lowest, "n2", 2)
    link(lowest, "n3", 3, formatted=True)

    assert lowest.members() is None


def test_a_member_that_was_formatted_since_it_linked_counts_no_longer() -> None:
    lowest = formation("n1", 1)
    link(lowest, "n3", 3)
    link(lowest, "n3", 3, formatted=True)
    link(lowest, "n2", 2)

    assert lowest.members() is None


def test_a_member_that_left_is_awaited_again() -> None:
    lowest = formation("n1", 1)
    link(lowest, "n3", 3)
    lowest.unlinked("n3")
    link(lowest, "n2", 2)

    assert lowest.awaited() == ["n3"]
    assert lowest.members() is None


def test_a_member_that_came_back_with_another_disk_is_formed_in_with_that_one() -> None:
    lowest = formation("n1", 1, ["n1", "n2"])
    link(lowest, "n2", 2)
    link(lowest, "n2", 9)

    members = lowest.members()
    assert members is not None
    assert voter("n2", 9) in members.members
    assert voter("n2", 2) not in members.members


def test_a_peer_that_is_no_initial_member_is_not_formed_in() -> None:
    lowest = formation("n1", 1, ["n1", "n2"])
    link(lowest, "n2", 2)
    link(lowest, "n9", 9)

    members = lowest.members()
    assert members is not None
    assert {member.node_id for member in members.members} == {"n1", "n2"}


def test_a_node_alone_forms_its_cluster_at_once() -> None:
    assert formation("n1", 1, ["n1"]).members() == Members((voter("n1", 1),))


def test_a_genesis_that_names_this_disk_is_taken_before_it_is_committed() -> None:
    shown = Members((voter("n1", 1), voter("n2", 2)))

    assert formation("n2", 2).accepts(shown, committed=False)


def test_a_genesis_that_names_this_node_with_another_disk_is_taken_only_once_committed() -> None:
    shown = Members((voter("n1", 1), voter("n2", 2)))
    wiped = formation("n2", 9)

    assert not wiped.accepts(shown, committed=False)
    assert wiped.accepts(shown, committed=True)


def test_the_members_of_a_genesis_frame_are_those_that_it_names() -> None:
    assert members_of_genesis(genesis_frame(voters("n1", "n2"))) == voters("n1", "n2")


def system_frame(value: dict[str, object], *, index: int = 0, epoch: int = 0) -> bytes:
    return encode_frame(
        index=index, epoch=epoch, timestamp=1, count=1, prev_crc32c=0, kind=Kind.SYSTEM, payload=encode_system(value)
    )


def refused(raw: bytes) -> bool:
    """Whether these bytes are refused as no genesis."""
    try:
        members_of_genesis(raw)
    except BadMessage:
        return True
    return False


def test_bytes_that_are_not_a_genesis_frame_are_refused_as_a_peers_fault() -> None:
    whole = genesis_frame(voters("n1"))
    flipped = bytearray(whole)
    flipped[-1] ^= 1
    records = encode_frame(
        index=0, epoch=0, timestamp=1, count=1, prev_crc32c=0, kind=Kind.RECORDS, payload=encode_records(["a"])
    )

    others = [
        b"",
        whole[:-1],
        whole + whole,
        bytes(flipped),
        records,
        system_frame({"type": "epoch_start", "node_id": "n1"}),
        system_frame({"type": "genesis"}),
        system_frame({"type": "genesis", "members": 5}),
        system_frame({"type": "genesis", "members": []}, index=1),
        system_frame({"type": "genesis", "members": [["n1", bytes(16), "n1:1", "voter"]]}, epoch=2**63),
    ]
    assert [raw for raw in others if not refused(raw)] == []


@pytest.mark.parametrize(
    "row",
    [
        ["n1", bytes(16), "n1:1"],
        ["n1", bytes(16), "n1:1", "emperor"],
        "n1",
        7,
        ["n1", 16, "n1:1", "voter"],
        [5, bytes(16), "n1:1", "voter"],
        ["n1", bytes(15), "n1:1", "voter"],
        ["n1", bytes(16), None, "voter"],
    ],
)
def test_a_member_that_is_not_node_disk_address_and_role_is_refused(row: object) -> None:
    assert refused(system_frame({"type": "genesis", "members": [row]}))
