"""What nodes answer, compared with a replay: servers that tell the truth, a falsehood, or nothing that is compared."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from quire.log import FrameInvalid, walk_frames
from quire.pipeline.errors import ClusterUnavailable, ForeignLog
from quire.pipeline.jobs import ReplaySummary, replay
from quire.pipeline.replay.answers import NODE_TIMEOUT_S
from quire.pipeline.source.options import SourceOptions
from quire.sm import Applier, ArithmeticMachine, KvMachine, StateMachine
from tests.pipeline.logs import CLUSTER
from tests.pipeline.servers import SILENT, Told, serving
from tests.pipeline.test_archive import expire
from tests.pipeline.test_replay import KV_GENESIS, Nearly, put, run_cluster, snapshot_indices, write_genesis

END = 1000
FALSE_DIGEST = "ff" * 16
FALSE = {"state": "12345", "digest": FALSE_DIGEST}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """END records, ten a frame from index 5 on, and four snapshots: 205, 405, 605, 805."""
    path = tmp_path_factory.mktemp("replayed") / "n1"
    run_cluster(path, ArithmeticMachine(42))
    return path


def answer_at(path: Path, index: int, machine: StateMachine | None = None) -> dict[str, Any]:
    """What a node whose log is that at `path` answers once it has applied it up to a frame's boundary."""
    applier = Applier(machine or ArithmeticMachine(42))
    for store in sorted((path / "log").glob("*.store")):
        try:
            for frame in walk_frames(memoryview(store.read_bytes())[64:]):
                if applier.applied_index < index:
                    applier.apply(frame)
        except FrameInvalid:  # Behind the last frame of a write segment there may be zeros.
            break
    assert applier.applied_index == index
    return {"state": applier.machine.query(None), "applied_index": index, "digest": applier.digest.hex()}


def node(answer: dict[str, Any]) -> dict[str, Told]:
    """A server's answers."""
    status = {"cluster_id": CLUSTER.hex()} | answer
    return {"/status": (200, json.dumps(status).encode()), "/state": (200, json.dumps(answer).encode())}


def node_of_large_state(answer: dict[str, Any], status: int) -> dict[str, Told]:
    """The same, but that it refuses to tell its state."""
    return node(answer) | {"/state": (status, b'{"detail": "above the limit"}')}


def asked(path: Path, *answers: dict[str, Any], key_parts: int = 1) -> tuple[ReplaySummary, list[str]]:
    """A replay beside nodes that answer so, and what it tells of each."""
    with ExitStack() as servers:
        addresses = [servers.enter_context(serving(node(answer))) for answer in answers]
        summary = replay(SourceOptions(path=str(path)), servers=addresses, key_parts=key_parts)
    return summary, [summary.live[address] for address in addresses]


@pytest.mark.parametrize("index", [105, 205, 505, 805, END])
def test_a_node_that_answers_what_the_log_says_is_equal(log: Path, index: int) -> None:
    summary, told = asked(log, answer_at(log, index))

    assert told == ["equal"]
    assert summary.is_proven
    assert (summary.checked, summary.stretches) == (5, 5)
    assert summary.compared_to == max(index, 805)


@pytest.mark.parametrize("index", [105, 205, 505, 805, END])
@pytest.mark.parametrize(
    ("false", "says"),
    [
        ({"digest": FALSE_DIGEST}, "the digests differ"),
        ({"state": "12345"}, "every result is equal, but the answer differs"),
    ],
)
def test_a_node_that_answers_something_else_is_told(log: Path, index: int, false: dict[str, Any], says: str) -> None:
    summary, told = asked(log, answer_at(log, index) | false)

    assert told == [f"differs at index {index}"]
    assert not summary.is_proven
    assert summary.difference is not None
    assert (summary.difference.boundary, summary.difference.source) == (index, *summary.live)
    assert says in summary.difference.reason
    assert summary.verdict == "NOT proven"


def test_a_node_that_answers_at_no_boundary_of_the_log_is_told(log: Path) -> None:
    summary, told = asked(log, answer_at(log, 505) | {"applied_index": 500})

    assert told == ["differs at index 500"]
    assert summary.difference is not None
    assert "not a frame boundary" in summary.difference.reason


def test_what_one_node_answers_does_not_stand_for_another(log: Path) -> None:
    right, wrong = answer_at(log, 505), answer_at(log, 455) | FALSE

    summary, told = asked(log, right, wrong, answer_at(log, 405), answer_at(log, END))

    assert told == ["equal", "differs at index 455", "equal", "equal"]
    assert summary.checked == 4 + 3
    assert not summary.is_proven


def test_a_node_that_follows_from_a_wrong_snapshot_is_not_equal(tmp_path: Path) -> None:
    machine = Nearly(42)
    machine.wrong_at = 300
    applier = run_cluster(tmp_path / "n1", machine)

    end = {"state": applier.machine.query(None), "applied_index": END, "digest": applier.digest.hex()}
    summary, told = asked(tmp_path / "n1", end)

    assert told == ["follows from a state that differs from index 300 on"]
    assert not summary.is_proven


def test_a_node_that_lags_behind_the_replay_s_start_is_not_compared(tmp_path: Path) -> None:
    log = tmp_path / "n1"
    run_cluster(log, ArithmeticMachine(42))
    right = answer_at(log, 405)
    write_genesis(log)
    expire(log, 500)

    for answer in (FALSE | {"applied_index": 105}, right):
        summary, told = asked(log, answer)
        assert summary.from_index == 405
        assert told == [f"not compared: it has applied {answer['applied_index']}, but the replay starts at 405"]
        assert not summary.is_proven
        assert summary.verdict == "NOT proven: not every node was compared"


def test_a_node_that_is_ahead_of_the_log_is_told_to_be(log: Path) -> None:
    summary, [told] = asked(log, FALSE | {"applied_index": END + 1})

    assert told == f"it has applied {END + 1}, but the log here ends at {END}: try again in a moment"
    assert not summary.is_proven


def test_a_log_of_which_nothing_is_applied_again_proves_nothing(tmp_path: Path) -> None:
    log = tmp_path / "n1"
    run_cluster(log, ArithmeticMachine(42), records=505, snapshots=0)
    write_genesis(log)
    run_cluster(tmp_path / "longer", ArithmeticMachine(42), snapshots=1)
    [index] = snapshot_indices(tmp_path / "longer")
    (tmp_path / "longer" / "snapshots").rename(log / "snapshots")
    assert index == 505
    expire(log, 400)

    summary, told = asked(log, FALSE | {"applied_index": 505})

    assert (summary.stretches, summary.records, summary.checked) == (0, 0, 0)
    assert told == ["not compared: it has applied 505, but the replay starts at 505"]
    assert not summary.is_proven
    assert not replay(SourceOptions(path=str(log))).is_proven


def test_a_replay_that_compares_nothing_proves_nothing(tmp_path: Path) -> None:
    run_cluster(tmp_path / "n1", ArithmeticMachine(42), snapshots=0)

    summary, _ = asked(tmp_path / "n1")

    assert (summary.stretches, summary.records, summary.checked) == (1, END, 0)
    assert not summary.is_proven
    assert summary.verdict == "NOT proven: there is nothing to compare with, no snapshot and no node's answer"


def test_the_verdict_says_how_far_it_goes(log: Path) -> None:
    assert asked(log)[0].verdict == f"proven up to index 805: nothing was compared from there to {END}"
    assert asked(log, answer_at(log, END))[0].verdict == "proven: all of it follows from the log"


@pytest.mark.parametrize("index", [335, END])
@pytest.mark.parametrize("false", [{}, {"digest": FALSE_DIGEST}, {"state": {}}])
def test_nodes_are_compared_where_kv_is_replayed_key_by_key(tmp_path: Path, index: int, false: dict[str, Any]) -> None:
    log = tmp_path / "n1"
    run_cluster(log, KvMachine(), genesis=KV_GENESIS, command=put, snapshots=2)
    assert 335 in snapshot_indices(log)
    answer = answer_at(log, index, KvMachine())

    summary, told = asked(log, answer | false, key_parts=2)

    assert told == [f"differs at index {index}" if false else "equal"]
    assert summary.is_proven == (not false)
    assert summary.compared_keys > 0
    assert summary.records == END


@pytest.mark.parametrize("refusal", [413, 422])
def test_a_node_whose_state_is_too_large_is_compared_by_its_digest(log: Path, refusal: int) -> None:
    right, began = answer_at(log, 505), time.monotonic()
    with ExitStack() as servers:
        both = [
            servers.enter_context(serving(node_of_large_state(answer, refusal)))
            for answer in (right, right | {"digest": FALSE_DIGEST})
        ]
        summary = replay(SourceOptions(path=str(log)), servers=both)
        proven = replay(SourceOptions(path=str(log)), servers=both[:1])

    assert time.monotonic() - began < NODE_TIMEOUT_S
    assert [summary.live[server] for server in both] == [
        "equal by its digest: it does not return its whole state",
        "differs at index 505",
    ]
    assert not summary.is_proven
    assert proven.is_proven


@pytest.mark.parametrize("answer", [SILENT, (200, b"{}"), (500, b"{}")])
def test_a_node_that_does_not_tell_its_state_for_another_reason_is_unavailable(
    log: Path, monkeypatch: pytest.MonkeyPatch, answer: Told
) -> None:
    monkeypatch.setattr("quire.pipeline.replay.answers.NODE_TIMEOUT_S", 0.1)

    with serving(node(answer_at(log, 505)) | {"/state": answer}) as server, pytest.raises(ClusterUnavailable):
        replay(SourceOptions(path=str(log)), servers=[server])


def test_a_node_that_refuses_its_state_and_tells_no_digest_is_unavailable(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.pipeline.replay.answers.NODE_TIMEOUT_S", 1.0)
    answers = node_of_large_state(answer_at(log, 505), 422)
    answers["/status"] = (200, json.dumps({"cluster_id": CLUSTER.hex()}).encode())

    with serving(answers) as server, pytest.raises(ClusterUnavailable, match="its status has no digest"):
        replay(SourceOptions(path=str(log)), servers=[server])


def test_a_node_of_another_cluster_is_refused(log: Path) -> None:
    answers = node(answer_at(log, 505))
    answers["/status"] = (200, json.dumps({"cluster_id": "78" * 16}).encode())

    with serving(answers) as server, pytest.raises(ForeignLog):
        replay(SourceOptions(path=str(log)), servers=[server])


def test_a_state_that_is_told_where_the_replay_s_is_too_large_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_cluster(tmp_path / "n1", KvMachine(), genesis=KV_GENESIS, command=put, snapshots=0)
    answer = answer_at(tmp_path / "n1", END, KvMachine())
    keys = len(answer["state"])

    monkeypatch.setattr("quire.sm.machines.kv.WHOLE_KEYS", keys)
    assert asked(tmp_path / "n1", answer)[1] == ["equal"]
    monkeypatch.setattr("quire.sm.machines.kv.WHOLE_KEYS", keys - 1)
    summary, told = asked(tmp_path / "n1", answer)
    assert told == [f"differs at index {END}"]
    assert summary.difference is not None
    assert f"{keys} keys, above the limit of {keys - 1}" in summary.difference.reason
