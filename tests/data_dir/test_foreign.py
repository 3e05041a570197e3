"""Directories and files of other nodes and other clusters in the place of a node's own."""

import pytest

from .damage import disk_of, parts_of
from .history import LIVES, Life, history
from .verdict import Kind, Verdict, verdict

OTHER_CLUSTER = 2


@pytest.mark.parametrize("life", LIVES, ids=str)
def test_a_node_that_is_given_another_nodes_whole_directory_refuses_it(life: Life) -> None:
    lived = history(life)
    for tree in (lived.behind, lived.ahead):
        result = verdict(disk_of(tree).directory(), lived)

        assert result.kind is Kind.REFUSES
        assert "it belongs to node" in result.text


DERIVED = {"log/ a segment's index"}
"""Made anew from other files."""


@pytest.mark.parametrize("life", LIVES, ids=str)
def test_a_file_of_another_cluster_is_refused_by_a_node_of_the_same_name_and_history(life: Life) -> None:
    lived, theirs = history(life), history(life, OTHER_CLUSTER).now
    for part in parts_of(lived.now):
        if part.name in DERIVED or part.of(theirs) == part.of(lived.now):  # Equal states have equal chunks.
            continue
        tree = {path: data for path, data in lived.now.items() if not part.holds(path)} | part.of(theirs)

        result = verdict(disk_of(tree).directory(), lived)

        assert result.kind is Kind.REFUSES, f"{part.name}: {result}"


def test_the_genesis_of_another_cluster_is_refused_by_a_node_without_snapshots() -> None:
    life = Life(stops=True, expires=False)
    lived, theirs = history(life), history(life, OTHER_CLUSTER).now
    tree = {path: data for path, data in lived.now.items() if not path.startswith("snapshots/")}
    assert verdict(disk_of(tree).directory(), lived).kind is Kind.WHOLE

    result = verdict(disk_of({**tree, "genesis": theirs["genesis"]}).directory(), lived)

    assert result == Verdict(Kind.REFUSES, "its genesis file is of cluster …, its identity of cluster …")
