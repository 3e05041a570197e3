"""The table of `quire status`."""

from io import StringIO
from typing import Any, cast

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
