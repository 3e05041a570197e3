"""Who counts, and how many of them are a majority."""

import pytest

from quire.replication import Member, Members, Role
from tests.sim.world import disk_id, voters

NAMES = ["n1", "n2", "n3", "n4", "n5"]


@pytest.mark.parametrize(("count", "majority"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_a_majority_is_more_than_half(count: int, majority: int) -> None:
    members = voters(*NAMES[:count])

    assert members.majority() == majority
    agreed = [members.is_majority(lambda member: member.node_id in NAMES[:number]) for number in range(count + 1)]  # noqa: B023
    assert agreed == [2 * number > count for number in range(count + 1)]


@pytest.mark.parametrize(
    ("held", "reached"),
    [([7], 7), ([9, 4], 4), ([9, 4, 6], 6), ([9, 9, 1, 1], 1), ([9, 9, 5, 1], 5), ([9, 8, 7, 0, 0], 7)],
)
def test_what_a_majority_holds_is_the_greatest_value_that_more_than_half_have_reached(
    held: list[int], reached: int
) -> None:
    values = dict(zip(NAMES, held, strict=False))

    assert voters(*NAMES[: len(held)]).held_by_majority(lambda member: values[member.node_id]) == reached


def test_observers_count_for_nothing() -> None:
    observers = tuple(Member(name, disk_id(name), f"{name}:1", Role.OBSERVER) for name in ("n2", "n3", "n4"))
    members = Members((*voters("n1").members, *observers))

    assert members.majority() == 1
    assert members.held_by_majority(lambda member: 5 if member.node_id == "n1" else 99) == 5
    assert not members.is_voter("n2", disk_id("n2"))


def test_a_voter_with_another_disk_is_no_voter() -> None:
    members = voters("n1", "n2")

    assert members.is_voter("n1", disk_id("n1"))
    assert not members.is_voter("n1", bytes(16))
    assert not members.is_voter("n2", disk_id("n1"))


def test_members_come_back_from_a_record_as_they_went() -> None:
    members = Members((*voters("n1").members, Member("n9", bytes(16), "elsewhere:1", Role.OBSERVER)))
    assert Members.from_record(members.to_record()) == members
