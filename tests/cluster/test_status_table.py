"""The table of `quire status`."""

from io import StringIO
from typing import Any, cast

import pytest
from rich.console import Console

from quire.cluster.cli.nodes.rows import NodeRow
from quire.cluster.cli.nodes.table import ANSWER_CHARACTERS, node_table
from quire.cluster.client import Status


def shown(answer: str) -> str:
    text, status = StringIO(), cast("Status", {"role": "leader"})
    Console(width=1000, file=text).print(node_table({"n1": NodeRow("a:1", status, answer)}))
    return text.getvalue()


def test_an_answer_above_the_limit_is_shortened_and_one_at_the_limit_is_not() -> None:
    longest = "7" * ANSWER_CHARACTERS
    assert longest in shown(longest)
    assert "7" * (ANSWER_CHARACTERS - 3) + "... " in shown(longest + "7")


def test_what_was_not_received_and_what_is_not_applied_have_rows_of_their_own() -> None:
    text = StringIO()
    status: Any = {
        "role": "follower",
        "lag": {"records": 3, "bytes": 192, "seconds": 0.5},
        "apply_lag": {"records": 12_981, "seconds": 40.0},
    }
    Console(width=1000, file=text).print(node_table({"n1": NodeRow("a:1", status)}))
    shown = [line.split() for line in text.getvalue().splitlines()]
    at = shown.index(["lag", "3", "records"])
    assert shown[at : at + 5] == [
        ["lag", "3", "records"],
        ["192", "bytes"],
        ["0.50", "s"],
        ["apply_lag", "12,981", "records"],
        ["40.00", "s"],
    ]


@pytest.mark.parametrize("per_second", [92_919.84, 0.0])
def test_a_leader_s_commands_have_a_row_whether_there_were_any_lately_or_none(per_second: float) -> None:
    text = StringIO()
    times = {"per_second": per_second, "p50_ms": 14.2, "p99_ms": 20.84}
    status: Any = {"role": "leader", "commands": times}
    other: Any = {"role": "follower", "commands": times}
    Console(width=1000, file=text).print(node_table({"n1": NodeRow("a:1", other), "n2": NodeRow("a:2", status)}))
    shown = [line.split() for line in text.getvalue().splitlines()]
    at = shown.index(["commands", f"{per_second:,.1f}/s"])
    assert shown[at + 1 : at + 3] == [["p50", "14.2", "ms"], ["p99", "20.8", "ms"]]


def digests(*answers: tuple[int, str]) -> list[str]:
    """The cells of the digests of nodes with these applied_index and digest."""
    text = StringIO()
    rows = {
        f"n{number}": NodeRow("a:1", cast("Status", {"role": "follower", "applied_index": index, "digest": digest}))
        for number, (index, digest) in enumerate(answers, 1)
    }
    Console(width=1000, file=text).print(node_table(rows))
    shown = text.getvalue()
    return shown[shown.index("digest") :].split()[1:]


def test_digests_at_unequal_indices_have_their_index_and_those_at_one_index_have_none() -> None:
    assert digests((7, "aa"), (7, "bb")) == ["aa", "bb"]
    assert digests((7, "aa"), (1_208, "bb")) == ["aa", "bb", "at", "7", "at", "1,208"]


def test_before_the_first_command_there_is_no_digest() -> None:
    assert digests((1, "0" * 32), (1, "0" * 32)) == []
