"""Every alarm that a node can raise is in the runbook, by words that the code and the page have in common."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
ROOMS = ("cluster", "replication")
NOT_A_NODE = "cluster/simulator"

PASSED_ON: tuple[str, ...] = ()
"""Of a place that makes no sentence of its own."""

PLACES: dict[str, tuple[str, ...]] = {
    "cluster/access/credentials.py Credentials.alarms": (
        "this server's certificate",
        "a CA's certificate",
        "has expired",
        "what was read before stays in force",
        "refuses a token that this node accepts",
    ),
    "cluster/access/tokens.py _alarm_of": ("the token file",),
    "cluster/compaction/retention.py Retention.alarms": ("no longer holds the log",),
    "cluster/compaction/snapshotting.py Snapshotting.alarm": (
        "so the log cannot expire",
        "the snapshots cannot be checked",
    ),
    "cluster/config/secret_file.py _alarm_of": ("peer_secret_file",),
    "cluster/data_dir/file_system.py alarms_of": (
        ", in memory: ",
        ", so that nothing is flushed",
        "is on NFS below version 4.2",
        " and copied on write",
    ),
    "cluster/data_dir/file_system.py file_system_alarms": PASSED_ON,
    "cluster/node/code.py MachineCode.alarms": ("this node ran code", "members run different code of machine"),
    "cluster/node/command_times.py CommandTimes.alarms": ("commands are slow",),
    "cluster/node/digests.py Difference.alarm": ("their states differ",),
    "cluster/node/health.py Health.alarmed": PASSED_ON,
    "cluster/node/node.py Node._digest_compared": PASSED_ON,
    "cluster/node/node.py Node._log_standing_alarms": PASSED_ON,
    "cluster/node/tables/cursor_lag.py CursorLags.alarms": (
        ", and this log begins at",
        "records expired before its consumer read them",
    ),
    "cluster/node/tables/cursors.py CursorWrites.alarms": ("above cursors_hold_bytes",),
    "cluster/node/views/fitness.py fitness_alarms": PASSED_ON,
    "cluster/node/views/status.py alarms": PASSED_ON,
    "cluster/node/views/status.py standing_alarms": ("this node listens on",),
    "cluster/node/views/status.py trust_alarms": PASSED_ON,
    "cluster/node/views/status.py clock_alarms": ("the clock of",),
    "cluster/node/views/status.py room_alarms": ("the machine's state has",),
    "cluster/standalone/service.py LogService._log_alarms": PASSED_ON,
    "replication/core/actions.py Alarm": PASSED_ON,
    "replication/core/belief/leaders.py OwnState.alarm": PASSED_ON,
    "replication/core/belief/leaders.py refuses": (", which this node knows as that of",),
    "replication/core/belief/reaching.py OwnState.alarm": PASSED_ON,
    "replication/core/belief/reaching.py Reaching._may_return": ("out of reach of", "and no longer takes part"),
    "replication/core/election.py Candidate.begin_vote": ("the epochs are used up",),
    "replication/core/state.py State.alarm": PASSED_ON,
    "replication/core/state.py State.measured": PASSED_ON,
    "replication/driver.py Driver._tell_node": PASSED_ON,
    "replication/net/links.py OtherHistory.alarm": ("is of another history",),
    "replication/net/network.py Network._history_met": PASSED_ON,
    "replication/net/network.py Network._removal_claimed": ("says that this node was removed at index",),
    "replication/net/network.py Network.duplicate_refused": ("a second process of",),
    "replication/net/network.py Network.peer_doubted": ("was refused",),
    "replication/ports.py Health.alarmed": PASSED_ON,
}
"""Where alarms come from, with words of each."""

FURTHER = {
    "cluster/config/access.py": ("--insecure: others can read",),
    "cluster/data_dir/genesis.py": ("of this node's configuration has no effect",),
    "cluster/node/addresses.py": ("this node's configuration has the members",),
    "replication/core/fitness/levels.py": (
        "an operator drained this node",
        "its log has rot",
        "a flush takes",
        "committed records wait to be applied",
        "the disk of the log is full",
        "commits nothing of what it appends",
        "the disk has not answered",
    ),
}
"""Sentences that those places take from elsewhere."""


def _raises(node: ast.AST) -> bool:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return "alarm" in name.lower()
        case ast.Call(func=ast.Attribute(attr="alarm" | "alarmed")):
            return True
        case ast.Assign(targets=[ast.Subscript(value=ast.Attribute(attr="alarms"))]):
            return True
        case _:
            return False


def _places(node: ast.AST, name: str = "") -> Iterator[str]:
    """The qualified names of what raises or makes an alarm."""
    for child in ast.iter_child_nodes(node):
        inner = name
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{name}.{child.name}".lstrip(".")
        if _raises(child):
            yield inner
        yield from _places(child, inner)


def _said(module: str) -> str:
    """All constant text of a module."""
    tree = ast.parse((TOP / module).read_text())
    return "\n".join(
        each.value for each in ast.walk(tree) if isinstance(each, ast.Constant) and isinstance(each.value, str)
    )


def _section() -> str:
    runbook = (TOP / "deploy" / "runbook.md").read_text()
    return runbook.split("\n## Alarms of a node\n")[1]


def test_every_place_that_raises_an_alarm_is_known() -> None:
    found = {
        f"{path.relative_to(TOP)} {name}"
        for room in ROOMS
        for path in (TOP / room).rglob("*.py")
        if not str(path.relative_to(TOP)).startswith(NOT_A_NODE)
        for name in _places(ast.parse(path.read_text()))
    }

    assert found == set(PLACES), "a new alarm needs its words here, and its row in deploy/runbook.md"


@pytest.mark.parametrize("place", [*PLACES, *FURTHER])
def test_its_words_are_in_the_code_and_in_the_runbook(place: str) -> None:
    for words in PLACES.get(place, FURTHER.get(place, ())):
        assert words in _said(place.partition(" ")[0])
        assert words.strip(", ") in _section()


def test_every_link_inside_the_runbook_leads_to_a_heading() -> None:
    runbook = (TOP / "deploy" / "runbook.md").read_text()
    headings = re.findall(
        r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", runbook, flags=re.MULTILINE | re.DOTALL), re.MULTILINE
    )
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}

    assert set(re.findall(r"\]\(#([^)]+)\)", runbook)) - anchors == set()


def test_every_task_and_every_section_is_in_the_table_of_contents() -> None:
    runbook = (TOP / "deploy" / "runbook.md").read_text()
    contents, *_ = runbook.split("\n## ", 1)
    sections = re.findall(r"^## (.*)$", runbook, re.MULTILINE)

    assert set(re.findall(r"\| \[([^]]+)\]\(#", contents)) == set(sections)
