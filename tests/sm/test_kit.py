"""The kit for machines: the built-in ones pass it, and each way to be faulty is found and named."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, find, settings
from hypothesis import strategies as st

from quire.sm.testing import RESULT_BYTES, MachineFaulty, check_determinism, check_machine
from tests.sm import commands as arithmetic
from tests.sm import faulty, pairs

TOP = Path(__file__).parents[2]
WORDS = ["to", "be", "or", "not", "to", "be", "that", "is", "the", "question"]
# Without shrinking, which takes seconds and leaves thirty times the simplest command.
DETERMINISTIC = settings(max_examples=100, derandomize=True, database=None, phases=[Phase.generate])


def some(strategy: st.SearchStrategy[Any], count: int) -> list[Any]:
    """Commands that a strategy draws, most of them different."""
    lists = st.lists(strategy, min_size=count, max_size=count)
    return list(find(lists, lambda drawn: len(set(map(repr, drawn))) > count // 2, settings=DETERMINISTIC))


@pytest.mark.parametrize(
    ("machine", "commands", "refused", "queries"),
    [
        (
            "arithmetic",
            [["add", 3], ["div", "7"], ["mul", "1e6000"], ["mul", "1e6000"], *some(arithmetic.commands, 30)],
            [["div", 0], ["pow", 2], "add"],
            [],
        ),
        (
            "kv",
            [
                *([["put", word, [word]] for word in WORDS]),
                *(["incr", "n"], ["incr", "to"], ["cas", "be", ["be"], None], ["delete", "or"], ["get", "not"]),
                *some(pairs.commands, 30),
            ],
            [["put", "a", None], ["get", ""], ["patch", "a", 1]],
            [["get", "to"], ["scan", "t"], ["scan", "", None, 2]],
        ),
        ("log", [1, "two", {"three": [3]}], [], []),
        (f"{faulty.__name__}:Sound", WORDS, [1, None], ["how many"]),
        (f"{faulty.__name__}:Limited", WORDS, [1, None], ["how many"]),
        (f"{faulty.__name__}:Timed", WORDS, [1, None], []),
        (f"{faulty.__name__}:Asked", WORDS, [1, None], ["to", "how many"]),
    ],
)
@pytest.mark.slow
def test_the_built_in_machines_and_a_sound_one_pass(
    machine: str, commands: list[Any], refused: list[Any], queries: list[Any]
) -> None:
    check_machine(machine, commands, refused=refused, queries=queries)


@pytest.mark.parametrize(
    ("machine", "found"),
    [
        ("PassesAnything", "check passed 1, which it should refuse"),
        ("RefusesByState", "check depends on the state"),
        ("ChecksWithEffect", "check changed the state"),
        ("RefusesByNumber", "check refused command 10, 1 with 4, 'a word is text'; code and text must be strings"),
        ("ChecksOtherwiseInBatches", "check_batch does not refuse what check refuses"),
        ("Raises", "apply raised KeyError: 'to' at command 0, 'to'; a replica would stop here"),
        ("RefusesTooLate", "after it changed the state; raise Refused before any change: command 4, 'to'"),
        ("AnswersASet", "the result of command 0, 'to' is not a msgpack value"),
        ("AnswersItsState", "the result of command 0, 'to' was changed by a later command"),
        ("AnswersAtLength", f"has {RESULT_BYTES + 1} bytes as msgpack, above {RESULT_BYTES}"),
        ("BatchesOtherwise", r"apply_batch answered command 4, 'to' with 5, and apply \['KNOWN'"),
        ("BatchesToAnotherState", "apply_batch led to a different state than apply"),
        ("BatchesTooLittle", "apply_batch gave 0 results for 1 commands"),
        ("QueriesWithEffect", "query changed the state at the request None"),
        ("AnswersASetWhenAsked", "the answer to the query None is not a msgpack value"),
        ("SnapshotsText", "snapshot must yield bytes; its chunk 0 is a str"),
        ("SnapshotsAtOnce", "the snapshot's chunk 0 has 16777217 bytes, above 16777216"),
        ("ForgetsInSnapshots", "restored after 5 commands answered command 6, 'that' with 2, and the original 5"),
        ("AddsToWhatItHolds", "gives a different snapshot"),
        ("ForgetsBesides", "a machine restored after 5 commands answered command 5, 'be' with 1, and the original 6"),
        (
            "ForgetsItsLimit",
            "with 1 bytes for its state, a machine restored after 5 commands answered command 5, 'be' with 1, and",
        ),
        ("FillsBeforeItRefuses", "with 1 bytes for its state, apply refused a command after a change: command 0, 'to'"),
        ("Hashes", "in one process and .* in another; look for a clock"),
        ("SnapshotsByHash", "wrote unequal snapshots; look for"),
        ("LooksAtTheClock", "answered '00' in one process and '09' in another"),
        ("DrawsAfterAMinute", r"command 1, 'be' \(1 day, 0:00:00 after the first\) with \d+, and the original \d+"),
        ("DrawsWithinAMinute", r"command 1, 'be' \(0:00:01 after the first\) with \d+, and the original \d+"),
        ("DrawsAfterAPause", r"command 3, 'not' \(0:05:01 after the first\) with \d+, and the original \d+"),
        (
            "DrawsUnderAnotherLeader",
            r"command 1, 'be' \(1 day, 0:00:00 after the first\) with \d+, and the original \d+",
        ),
        ("ForgetsTheTime", r"command 6, 'that' \(0:00:06 after the first\) with \[5, 1000000\], .* \[5, 6000000\]"),
        (
            "RefusesOnceRestored",
            "None was refused with AWAY: the words are away by a machine restored .* answered by the",
        ),
        (
            "RefusesByHash",
            "the query None was refused with UNKNOWN: none of .* in one process and refused with UNKNOWN",
        ),
        ("RefusesQueriesByNumber", "the query None was refused with 4, 'no'; code and text must be strings"),
        ("RaisesWhenAsked", "query raised KeyError: None at the request None; raise Refused for a request without"),
    ],
)
@pytest.mark.slow
def test_each_way_to_be_faulty_is_found_and_named(machine: str, found: str) -> None:
    with pytest.raises(MachineFaulty, match=found):
        check_machine(f"{faulty.__name__}:{machine}", WORDS, refused=[1])


def test_a_machine_that_changes_the_command_it_is_given_is_found() -> None:
    with pytest.raises(MachineFaulty, match="apply changed the command it was given"):
        check_machine(f"{faulty.__name__}:ChangesCommands", [["a", "b"]])


def test_a_result_as_long_as_the_limit_is_fine_and_a_longer_limit_may_be_given() -> None:
    check_machine(f"{faulty.__name__}:AnswersAtLength", ["a"], result_bytes=RESULT_BYTES + 1)


def test_a_command_that_no_log_holds_is_named() -> None:
    with pytest.raises(MachineFaulty, match="command 1 cannot be in a log"):
        check_machine("log", [1, {1, 2}])


def test_a_machine_that_another_process_cannot_load_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module = type(sys)("only_here")
    vars(module)["Sound"] = faulty.Sound
    monkeypatch.setitem(sys.modules, "only_here", module)
    with pytest.raises(MachineFaulty, match=r"could not run only_here:Sound: .*No module named 'only_here'"):
        check_determinism("only_here:Sound", ["a"])


@pytest.mark.slow
def test_the_page_s_example_runs_beside_the_readme_s_machine(tmp_path: Path) -> None:
    for page, name in (("README.md", "stock.py"), ("docs/testing-machines.md", "test_stock.py")):
        [code] = re.findall(rf"^```python {name}\n(.*?)^```$", (TOP / page).read_text(), re.MULTILINE | re.DOTALL)
        (tmp_path / name).write_text(code)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_stock.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert "1 passed" in ran.stdout, ran.stdout + ran.stderr
