"""What docs/architecture.md says about the files that a command visits, held against a real leader and follower."""

import re
from pathlib import Path

import pytest

from quire import connect_sync
from tests.processes.cluster import Clusters, NeverCame
from tests.processes.traced import Traced

PAGE = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()
HOP = re.compile(r"^\| \d+ \| `([\w/]+\.py)` \|", re.MULTILINE)
BESIDE = re.compile(r"^- `([\w/]+\.py)`", re.MULTILINE)
MOST_FILES = (35, 30)
"""On the leader, and on a follower: those that handle a command, and those that are consulted."""
COMMANDS = 20
BUSY_RECORDINGS = 3

Functions = frozenset[tuple[str, str]]


def _section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


PAGES = [_section(f"The files that a command visits on {where}") for where in ("the leader", "a follower")]


def called(traced: Traced) -> Functions:
    """The functions that were recorded."""
    return frozenset((file, name) for file, name in traced.recorded["functions"])


@pytest.mark.full
def test_a_command_visits_the_files_that_the_page_lists_and_no_others(clusters: Clusters, tmp_path: Path) -> None:
    """Of a file that is not listed, no function may run for a command that does not run without one, too."""
    cluster = clusters.make()
    leader, follower = [Traced(node, tmp_path) for node in cluster][:2]
    cluster.start()

    def recorded(commands: int) -> tuple[Functions, Functions]:
        with connect_sync(leader.node.address) as client:
            client.apply(["add", 1])  # opens the stream and its session
            leader.begin()
            follower.begin()
            for _ in range(commands):
                client.apply(["add", 1])
            cluster.wait_for_equal()
            leader.end()
            follower.end()
            cluster.wait_until("the recordings are written", lambda: leader.ended() and follower.ended())
        return called(leader), called(follower)

    # What a node does now and then, as a look at what expires, falls into one recording or another: what runs for
    # commands is in every busy one and in no idle one.
    busy = [recorded(COMMANDS) for _ in range(BUSY_RECORDINGS)]
    idle: list[tuple[Functions, Functions]] = []

    def unlisted() -> list[set[str]]:
        """Per node, the files not listed of which a function ran in each busy recording and in no idle one."""
        return [
            {file for file, _ in frozenset.intersection(*ran).difference(*without)}
            - set(HOP.findall(page))
            - set(BESIDE.findall(page))
            for page, ran, without in zip(PAGES, zip(*busy, strict=True), zip(*idle, strict=True), strict=True)
        ]

    def all_listed() -> bool:
        if idle:
            busy.append(recorded(COMMANDS))
        idle.append(recorded(0))
        return not any(unlisted())

    try:
        cluster.wait_until("all files that commands visit are listed", all_listed)
    except NeverCame as error:
        raise AssertionError(f"these ran for commands and are not listed (leader, follower): {unlisted()}") from error
    for page, ran in zip(PAGES, zip(*busy, strict=True), strict=True):
        visited = {file for file, _ in frozenset.union(*ran)}
        assert set(HOP.findall(page)) - visited == set(), "listed as a hop, and nothing of it ran"


@pytest.mark.parametrize(("page", "most"), [*zip(PAGES, MOST_FILES, strict=True)], ids=["leader", "follower"])
def test_few_files_handle_a_command_and_the_node_is_none_of_them(page: str, most: int) -> None:
    files = [*HOP.findall(page), *BESIDE.findall(page)]
    assert len(set(files)) == len(files)
    assert 0 < len(files) <= most
    assert "cluster/node/node.py" not in files
