"""Words of the command line as values: the table of docs/command-line.md, and what the machines declare."""

import asyncio
import json
import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from quire.cluster.cli.calls.operands import NUMBERS, command_of, json_command_of, number_of
from quire.cluster.cli.commands import app
from quire.sm import ArithmeticMachine, KvMachine
from tests.cluster.streaming import streaming

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"
ROW = re.compile(r"^\| `(quire (?:apply|put) [^`]*)` \| ([a-z ]+) \| `([^`]*)` \|$", re.MULTILINE)
ROWS = ROW.findall(PAGE.read_text())


@pytest.mark.parametrize(("line", "machine", "command"), ROWS)
async def test_a_row_of_the_table_is_what_is_sent(line: str, machine: str, command: str) -> None:
    async with streaming(machine=machine) as server:
        arguments = [*shlex.split(line)[1:], "--server", server.address]
        ended = await asyncio.to_thread(CliRunner().invoke, app, arguments)

    assert ended.exit_code == 0, ended.output
    assert json.dumps(server.executed, separators=(",", ":")) == f"[{command}]"


def test_the_table_is_there() -> None:
    assert len(ROWS) >= 13


def test_the_machines_take_the_numbers_that_are_declared() -> None:
    for machine in (ArithmeticMachine(), KvMachine()):
        for operation, position in NUMBERS[machine.name].items():
            operands = ["key", "3"][-position - 1 :]
            machine.check(command_of(operation, operands, machine.name))


@pytest.mark.parametrize("word", ["-9223372036854775808", "0", "18446744073709551615", "-0", "007"])
def test_a_word_that_spells_an_int_of_64_bits_is_a_number(word: str) -> None:
    assert number_of(word) == int(word)


@pytest.mark.parametrize("word", ["-9223372036854775809", "18446744073709551616", "1_0", "+1", "1e3", "", "٣", "1.0"])
def test_any_other_word_stays_text(word: str) -> None:
    assert number_of(word) == word


@pytest.mark.parametrize("seconds", ["nan", "inf"])
def test_a_time_that_is_not_finite_is_a_usage_error(seconds: str) -> None:
    for line in (f"get a --timeout {seconds}", f"status --wait {seconds}", f"status --watch --interval {seconds}"):
        ended = CliRunner().invoke(app, [*line.split(), "--server", "127.0.0.1:1"])
        assert ended.exit_code == 2
        assert "is no number of seconds" in ended.stderr


@pytest.mark.parametrize(("first", "rest"), [("[1", []), ("take", ["nails"]), ("take", ["1", "01"]), ('["a"]', ["x"])])
def test_an_operand_that_is_not_json_is_a_usage_error(
    first: str, rest: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended:
        json_command_of(first, rest)

    assert ended.value.exit_code == 2
    assert "cannot be sent as JSON" in capsys.readouterr().err
