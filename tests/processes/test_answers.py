"""Three processes, one log, one answer."""

import json
from pathlib import Path

import pytest

from quire.log import walk_frames
from tests.processes.cluster import Clusters, Node, run_quire
from tests.processes.load import COMMANDS, Classroom, classroom, classroom_check
from tests.verdict.verdict import Executed, Replay

LOAD_TIMEOUT_S = 300.0


def executed(node: Node) -> list[Executed]:
    return [*Replay(Classroom()).take(walk_frames(node.raw_frames())).records.values()]


def test_42_add_3_div_5_gives_9_on_every_node_through_leader_and_follower_alike(clusters: Clusters) -> None:
    cluster = clusters.formed()

    through_leader = cluster["n1"].apply(["add", 3])
    through_follower = cluster["n2"].apply(["div", 5])

    assert (through_leader["results"], through_follower["results"]) == (["45"], ["9"])
    cluster.wait_for_equal()
    for node in cluster:
        assert node.get("/state")["state"] == node.local_state()["state"] == "9"
        records = executed(node)
        assert [record.command for record in records] == [["add", 3], ["div", 5]]
        assert [record.index for record in records] == [through_leader["index"], through_follower["index"]]


@pytest.mark.full
def test_a_classroom_loaded_through_a_follower_is_answered_alike_everywhere_and_as_by_the_independent_script(
    clusters: Clusters, tmp_path: Path
) -> None:
    cluster = clusters.formed()
    file = tmp_path / "instructions.ndjson"
    with file.open("w") as output:
        classroom.write_instructions(output, COMMANDS, classroom.DEFAULT_SEED)
    with file.open() as lines:
        expected = classroom_check.answer(lines)

    loaded = run_quire("load", str(file), "--server", cluster["n2"].address, "--json", timeout_s=LOAD_TIMEOUT_S)

    assert loaded.code == 0, loaded.stderr
    summary = json.loads(loaded.stdout)
    assert (summary["commands"], summary["refused"], summary["answer"]) == (COMMANDS, 0, expected)
    statuses = cluster.wait_for_equal(deadline_s=LOAD_TIMEOUT_S)
    session_closed = summary["applied_index"] + 1  # the load's own session is closed behind its last command
    assert {status["applied_index"] for status in statuses.values()} == {session_closed}
    assert {node.local_state()["state"] for node in cluster} == {expected}
    for node in cluster:
        commands = [record.command for record in executed(node)]
        assert commands == list(classroom.instructions(COMMANDS, classroom.DEFAULT_SEED))
