"""The table of `quire status`."""

from io import StringIO

from rich.console import Console

from quire.cluster.cli.status import ANSWER_CHARACTERS, NodeRow, node_table


def shown(answer: str) -> str:
    text = StringIO()
    Console(width=1000, file=text).print(node_table({"n1": NodeRow("a:1", {"role": "leader"}, answer)}))
    return text.getvalue()


def test_an_answer_above_the_limit_is_shortened_and_one_at_the_limit_is_not() -> None:
    longest = "7" * ANSWER_CHARACTERS
    assert longest in shown(longest)
    assert "7" * (ANSWER_CHARACTERS - 3) + "... " in shown(longest + "7")
