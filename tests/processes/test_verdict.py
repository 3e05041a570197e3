"""The verdict passes what is right, and fails for each planted fault."""

from collections.abc import Sequence

import pytest

from quire.log import Kind, encode_frame, encode_records, encode_system
from tests.processes.load import Acknowledged, Command, Load, unique_commands
from tests.processes.verdict import check_logs, check_results

EPOCH = 1
A, B, C, D = ([["add", 10 * batch], ["add", 10 * batch + 1]] for batch in range(1, 5))
RESULTS = {0: ["52", "63"], 1: ["83", "104"], 2: ["134", "165"], 3: ["205", "246"]}


def log_of(*batches: Sequence[Command], epoch: int = EPOCH) -> bytes:
    """A log of a system frame and one frame a batch."""
    system = encode_system({"type": "epoch_start", "node_id": "n1"})
    shared = {"epoch": epoch, "timestamp": 1, "prev_crc32c": 0}
    frames = [encode_frame(index=0, count=1, kind=Kind.SYSTEM, payload=system, **shared)]
    index = 1
    for batch in batches:
        frames.append(
            encode_frame(index=index, count=len(batch), kind=Kind.RECORDS, payload=encode_records(batch), **shared)
        )
        index += len(batch)
    return b"".join(frames)


@pytest.fixture
def load() -> Load:
    """Client 0 was told of A and C, client 1 of D; of B nobody knows."""
    made = Load("127.0.0.1:1", 0, unique_commands, 1)
    made.acknowledged = [
        Acknowledged(0, A, 1, EPOCH, RESULTS[0]),
        Acknowledged(0, C, 5, EPOCH, RESULTS[2]),
        Acknowledged(1, D, 7, EPOCH, RESULTS[3]),
    ]
    made.unknown = [B]
    return made


def test_a_log_with_all_that_was_acknowledged_passes_with_an_unknown_batch_or_without(load: Load) -> None:
    raw = log_of(A, B, C, D)

    held = check_logs({"n1": raw, "n2": raw}, load)

    assert [record.command for record in held] == [*A, *B, *C, *D]
    check_results(held, load)
    load.acknowledged[1:] = [Acknowledged(0, C, 3, EPOCH, []), Acknowledged(1, D, 5, EPOCH, [])]
    check_logs({"n1": log_of(A, C, D)}, load)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (log_of(A, B, C), "acknowledged and lost: indices 7 to 8"),
        (log_of(A, B, C, [D[0]]), "acknowledged and lost: indices 8 to 8"),
        (log_of(A, B, D, C), "other commands stand"),
        (log_of(A, B, C[::-1], D), "other commands stand"),
        (log_of(A, B, C, D, epoch=2), "other commands stand"),
        (log_of(A, B, C, D, D), "nobody sent this so, or twice"),
        (log_of(A, B, C, D, B), "nobody sent this so, or twice"),
        (log_of(A, B[::-1], C, D), "nobody sent this so, or twice"),
        (log_of(A, B, C, D, [["add", 99]]), "nobody sent this so, or twice"),
    ],
    ids=["lost", "cut", "swapped", "turned", "epoch", "doubled", "unknown-doubled", "unknown-turned", "invented"],
)
def test_a_log_that_is_not_what_clients_were_told_fails(load: Load, raw: bytes, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check_logs({"n1": raw}, load)


def test_half_of_a_batch_of_unknown_outcome_fails(load: Load) -> None:
    load.acknowledged = load.acknowledged[:1]
    with pytest.raises(AssertionError, match="nobody sent this so"):
        check_logs({"n1": log_of(A, B[:1])}, load)


def test_logs_that_differ_fail(load: Load) -> None:
    with pytest.raises(AssertionError, match="the logs of n1"):
        check_logs({"n1": log_of(A, B, C, D), "n2": log_of(A, B, C, D)[:-1]}, load)


def test_a_client_whose_batches_stand_in_another_order_fails(load: Load) -> None:
    load.acknowledged = [load.acknowledged[1], load.acknowledged[0], load.acknowledged[2]]
    with pytest.raises(AssertionError, match="client 0 was reordered"):
        check_logs({"n1": log_of(A, B, C, D)}, load)


def test_one_index_told_to_two_clients_fails(load: Load) -> None:
    load.acknowledged.append(Acknowledged(2, A, 1, EPOCH, RESULTS[0]))
    with pytest.raises(AssertionError, match="two batches were told index 1"):
        check_logs({"n1": log_of(A, B, C, D)}, load)


def test_a_result_that_the_log_does_not_give_fails(load: Load) -> None:
    held = check_logs({"n1": log_of(A, B, C, D)}, load)
    load.acknowledged[1] = Acknowledged(0, C, 5, EPOCH, ["114", "145"])
    with pytest.raises(AssertionError, match="wrong results for client 0 at index 5"):
        check_results(held, load)
