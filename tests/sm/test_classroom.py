"""The classroom example: its instructions, the independent answer, and that any changed line is noticed."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from decimal import Decimal
from hashlib import sha256
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.log import pack
from quire.sm import EMPTY_DIGEST, Applier, ArithmeticMachine, check_batch
from tests.sm.commands import EXAMPLES, commands, example, is_zero
from tests.sm.frames import Frames, batches, boundary_at

classroom = example("classroom")
classroom_check = example("classroom_check")

GOLDEN_SHA256 = "7f349083de3a96c59ee365bb60fd1f4bb691851f891880ee9d49f4ea710c85dd"
SAMPLED_LINES = 200
FRAME_COMMANDS = 500


def lines_of(count: int, seed: int = classroom.DEFAULT_SEED) -> list[str]:
    output = StringIO()
    classroom.write_instructions(output, count, seed)
    return output.getvalue().splitlines(keepends=True)


LINES = lines_of(classroom.DEFAULT_COUNT)
INSTRUCTIONS: list[Any] = [json.loads(line) for line in LINES]


def applied(instructions: Sequence[Any], size: int, initial: int | str = 42) -> Applier:
    """An applier after the instructions, in frames of `size`."""
    frames, applier = Frames(), Applier(ArithmeticMachine(initial))
    for batch in batches(instructions, size):
        applier.apply(frames.records(batch))
    return applier


def run_script(name: str, *arguments: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    command = [sys.executable, "-I", str(EXAMPLES / f"{name}.py"), *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, check=False, timeout=60)


def test_the_instructions_of_a_seed_are_always_the_same_bytes() -> None:
    assert sha256("".join(LINES).encode()).hexdigest() == GOLDEN_SHA256
    assert lines_of(100) == LINES[:100]
    assert lines_of(100, seed=1) != LINES[:100]


def test_the_instructions_mix_ints_and_strings_and_all_operations() -> None:
    assert len(INSTRUCTIONS) == 100_000
    assert {operation for operation, _ in INSTRUCTIONS} == {"add", "sub", "mul", "div"}
    assert {type(operand) for _, operand in INSTRUCTIONS} == {int, str}
    assert not any(is_zero(operand) for _, operand in INSTRUCTIONS)
    assert check_batch(ArithmeticMachine(), INSTRUCTIONS) == []


def test_the_magnitude_stays_bounded_from_first_to_last() -> None:
    applier, frames = Applier(ArithmeticMachine()), Frames()
    values: list[Decimal] = []
    for batch in batches(INSTRUCTIONS, 1000):
        outcome = applier.apply(frames.records(batch))
        assert outcome.refused == []
        values += [abs(Decimal(result)) for result in outcome.results]
    assert max(values) < 10**12
    for part in batches(values, 10_000):  # Neither early nor late do the additions dominate or vanish.
        assert 10**4 < sorted(part)[len(part) // 2] < 10**9


def test_the_independent_answer_is_the_applier_s() -> None:
    assert classroom_check.answer(LINES) == applied(INSTRUCTIONS, 100).state()


def test_the_size_of_the_frames_changes_no_answer() -> None:
    states = {applied(INSTRUCTIONS[:5000], size).state() for size in (1, 7, 100, 5000)}
    assert len(states) == 1


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([42, 0, "9e6144", "-1e-6176", "0.5"]), st.lists(commands, max_size=20), st.integers(1, 5))
@pytest.mark.slow
def test_the_independent_answer_is_the_applier_s_for_extreme_instructions(
    initial: int | str, instructions: list[Any], size: int
) -> None:
    lines = [json.dumps(instruction) for instruction in instructions]
    assert classroom_check.answer(lines, initial) == applied(instructions, size, initial).state()


@pytest.mark.parametrize(
    ("instructions", "expected"),
    [
        ([["add", 3], ["div", 5]], "9"),
        ([["mul", "1e9999"], ["add", 1]], "43"),
        ([["div", 9]], "4.666666666666666666666666666666667"),
        ([["mul", "1e-6175"], ["div", 1000]], "0E-6176"),
        ([["mul", "1e6140"]], "4.2" + "0" * 29 + "E+6141"),
        ([["mul", "1e-9999"], ["mul", -1]], "-0E-6176"),
        ([["sub", "41." + "9" * 34]], "1E-34"),
    ],
)
def test_both_give_the_answers_worked_out_by_hand(instructions: list[Any], expected: str) -> None:
    assert classroom_check.answer([json.dumps(instruction) for instruction in instructions]) == expected
    assert applied(instructions, 2).state() == expected


odd_operands = st.one_of(
    st.text("0123456789.eE+-_ \n\u0663x", max_size=12),
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(2**66), 2**66),
    st.booleans(),
    st.none(),
    st.just([1]),
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(["add", "div", "pow"]), odd_operands)
def test_the_independent_check_refuses_exactly_what_the_machine_refuses(operation: str, operand: Any) -> None:
    instruction = [operation, operand]
    refused = check_batch(ArithmeticMachine(), [instruction])
    try:
        answer = classroom_check.answer([json.dumps(instruction)])
    except classroom_check.NotAllowed:
        assert refused
    else:
        assert not refused
        assert answer == applied([instruction], 1).state()


def test_the_scripts_run_on_the_standard_library_alone(tmp_path: Path) -> None:
    file = tmp_path / "instructions.ndjson"
    made = run_script("classroom", "--count", "1000", "--output", str(file))
    assert (made.returncode, made.stdout, made.stderr) == (0, b"", b"")
    assert file.read_text() == "".join(LINES[:1000])
    assert run_script("classroom", "--count", "1000").stdout == file.read_bytes()
    expected = f"{applied(INSTRUCTIONS[:1000], 100).state()}\n".encode()
    assert run_script("classroom_check", str(file)).stdout == expected
    assert run_script("classroom_check", "-", stdin=file.read_bytes()).stdout == expected
    assert run_script("classroom_check", "-", "--initial", "7").stdout == b"7\n"


@pytest.mark.parametrize(
    ("stdin", "word"),
    [
        (b'["add", 1]\n["div", 0]\n', b"line 2: division by zero"),
        (b"[", b"line 1: not JSON"),
        (b'["add", 1.5]', b"1.5"),
    ],
)
def test_the_independent_check_names_a_line_that_is_not_allowed(stdin: bytes, word: bytes) -> None:
    run = run_script("classroom_check", "-", stdin=stdin)
    assert (run.returncode, run.stdout) == (2, b"")
    assert word in run.stderr


@pytest.mark.parametrize("name", ["classroom", "classroom_check"])
def test_a_script_imports_only_the_standard_library(name: str) -> None:
    imported: set[str] = set()
    for node in ast.walk(ast.parse((EXAMPLES / f"{name}.py").read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
    assert imported
    assert {module.partition(".")[0] for module in imported} <= sys.stdlib_module_names


class UnchangedRun:
    """All instructions applied once in frames of FRAME_COMMANDS, with the state before each frame."""

    def __init__(self) -> None:
        self.packed = [pack(instruction) for instruction in INSTRUCTIONS]
        self.before: list[tuple[bytes, int]] = []  # The machine's snapshot and the crc32c of the frame before.
        self.digests = [EMPTY_DIGEST]
        applier, frames = Applier(ArithmeticMachine()), Frames()
        for batch in batches(self.packed, FRAME_COMMANDS):
            self.before.append((b"".join(applier.machine.snapshot()), frames.prev_crc32c))
            applier.apply(frames.payload(array(batch), len(batch)))
            self.digests.append(applier.digest)

    def digests_with(self, place: int, *replacement: bytes) -> Iterator[tuple[bytes, bytes]]:
        """(digest, digest of the unchanged run) after each frame, from the frame with `place` on.

        The replacement stands for the two lines from `place`. Where it has one line less or more, the last frame is
        shorter, or there is one more (compared with the last digest of the unchanged run).
        """
        number = place // FRAME_COMMANDS
        start = number * FRAME_COMMANDS
        snapshot, prev_crc32c = self.before[number]
        machine = ArithmeticMachine()
        machine.restore([snapshot])
        applier = Applier(machine, boundary=boundary_at(start, self.digests[number]))
        frames = Frames(index=start, prev_crc32c=prev_crc32c)
        changed = [*self.packed[start:place], *replacement, *self.packed[place + 2 :]]
        for after, batch in enumerate(batches(changed, FRAME_COMMANDS), start=number + 1):
            applier.apply(frames.payload(array(batch), len(batch)))
            yield applier.digest, self.digests[min(after, len(self.digests) - 1)]


def array(packed: Sequence[bytes]) -> bytes:
    """One msgpack array (of up to 65,535) of values that are packed already."""
    return b"\xdc" + len(packed).to_bytes(2, "big") + b"".join(packed)


@pytest.mark.full
def test_a_dropped_a_doubled_and_a_swapped_line_each_give_another_digest() -> None:
    # What counts is the final digest. Each digest is a hash over the one before it, so two that differ after the
    # changed lines stay different but for a collision of 128 bits. (That the digest before counts has its own test,
    # test_every_part_changes_the_digest.) So most variations run for three frames, which hold both changed lines
    # and go beyond them, and every tenth sampled line runs to the end to show it.
    run = UnchangedRun()
    step = (len(INSTRUCTIONS) - 10) // SAMPLED_LINES
    for sample in range(SAMPLED_LINES):
        # Where a line equals the one after it, the next pair is taken: swapping those would change nothing.
        start = 3 + sample * step
        place = next(at for at in range(start, len(INSTRUCTIONS)) if run.packed[at] != run.packed[at + 1])
        line, following = run.packed[place], run.packed[place + 1]
        frames = None if sample % 10 == 0 else 3
        for change, replacement in {
            "dropped": [following],
            "doubled": [line, line, following],
            "swapped": [following, line],
        }.items():
            pairs = list(islice(run.digests_with(place, *replacement), frames))
            # The first frame may end between the two lines; from the second on, both have been applied.
            same = [digest for digest, unchanged in pairs[1:] if digest == unchanged]
            assert pairs[-1][0] != pairs[-1][1], f"{change} line {place}"
            assert not same, f"{change} line {place}"
        for digest, unchanged in islice(run.digests_with(place, line, following), frames):
            assert digest == unchanged, "the lines as they are give the digest as it is"
