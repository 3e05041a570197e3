"""The arithmetic machine against the rules at the top of its module, sentence by sentence."""

import _pydecimal
import decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.sm import ArithmeticMachine, CommandFailed, Context, Contexts, InitialInvalid, Refused, SnapshotInvalid
from quire.sm.machine import check_one_by_one
from quire.sm.machines.arithmetic import KNOWN_OPERANDS
from tests.sm.commands import commands, ints, spelled_numbers

HERE = Context(index=7, epoch=1, timestamp=1_700_000_000_000_000)
ARABIC_THREE = "\N{ARABIC-INDIC DIGIT THREE}"


def run(initial: int | str, *instructions: list[Any]) -> str:
    """The state after the instructions, applied one by one; refusals leave it as it is."""
    machine = ArithmeticMachine(initial)
    for instruction in instructions:
        machine.check(instruction)
        try:
            machine.apply(instruction, HERE)
        except Refused:
            continue
    return machine.query(None)


def test_42_add_3_is_45_and_div_5_is_9() -> None:
    machine = ArithmeticMachine()
    assert machine.query(None) == "42"
    assert machine.apply(["add", 3], HERE) == "45"
    assert machine.apply(["div", 5], HERE) == "9"
    assert machine.query(None) == "9"


@pytest.mark.parametrize(
    ("initial", "instruction", "expected"),
    [
        (42, ["sub", 43], "-1"),
        (42, ["mul", "0.5"], "21.0"),
        (1, ["div", 3], "0." + "3" * 34),
        (2, ["div", 3], "0." + "6" * 33 + "7"),
        (0, ["mul", -1], "-0"),
        (0, ["add", 2**64 - 1], "18446744073709551615"),
        (0, ["add", -(2**63)], "-9223372036854775808"),
        (0, ["add", "1e6144"], "1." + "0" * 33 + "E+6144"),  # Clamped: the exponent is at most 6111.
        (0, ["add", "1e-6176"], "1E-6176"),
        (0, ["add", "1e-6177"], "0E-6176"),
        (0, ["add", "-1e-9999"], "-0E-6176"),
        (0, ["mul", "1e9999"], "0E+6111"),
        (0, ["add", "-0"], "0"),
        ("-0", ["add", "-0"], "-0"),
        (1, ["add", "007"], "8"),
        (1, ["mul", "12E-1"], "1.2"),
        (1, ["mul", "1E3"], "1E+3"),
        ("1.50", ["mul", 2], "3.00"),
    ],
)
def test_a_result_is_written_as_str_of_a_decimal_is(initial: int | str, instruction: list[Any], expected: str) -> None:
    assert run(initial, instruction) == expected


def test_operands_are_exact_and_only_results_are_rounded() -> None:
    ten_to_33 = "1" + "0" * 33
    long = ten_to_33 + "." + "5" * 34  # 68 digits; rounded to 34 first, the difference would be 1.
    assert run(ten_to_33, ["sub", long]) == "-0." + "5" * 34
    assert run("-" + ten_to_33, ["add", long]) == "0." + "5" * 34
    assert run(0, ["add", long], ["sub", ten_to_33]) == "1"
    # In two steps, first to one position, 0.49... would become a half and more; in one it stays below.
    assert run(ten_to_33, ["add", "0." + "4" + "9" * 33]) == ten_to_33


@pytest.mark.parametrize(("odd", "expected"), [("2", "2"), ("3", "4")])
def test_a_half_is_rounded_to_even(odd: str, expected: str) -> None:
    assert run("1" + "0" * 32 + odd, ["add", "0.5"]) == "1" + "0" * 32 + expected


@pytest.mark.parametrize(
    "instruction",
    [["mul", 10], ["mul", "-1e9999"], ["add", "9.5e6144"], ["sub", "-1e9999"], ["div", "1e-9999"], ["div", "0.1"]],
)
def test_an_overflow_is_refused_by_apply_and_changes_nothing(instruction: list[Any]) -> None:
    machine = ArithmeticMachine("9e6144")
    machine.check(instruction)
    with pytest.raises(Refused) as refusal:
        machine.apply(instruction, HERE)
    assert refusal.value.code == "OVERFLOW"
    assert machine.query(None) == "9E+6144"
    assert machine.apply(["div", "9e6144"], HERE) == "1"


def test_a_batch_goes_on_after_an_overflow_from_the_value_before_it() -> None:
    machine = ArithmeticMachine(7)
    results = machine.apply_batch([["add", 1], ["mul", "1e9999"], ["add", 1]], Contexts(0, 3, 1, 0))
    assert [results[0], results[2]] == ["8", "9"]
    assert isinstance(results[1], Refused)
    assert results[1].code == "OVERFLOW"


@pytest.mark.parametrize(
    ("command", "code", "word"),
    [
        (["pow", 2], "OPERATION_UNKNOWN", "pow"),
        (["ADD", 2], "OPERATION_UNKNOWN", "ADD"),
        ([b"add", 2], "OPERATION_UNKNOWN", "add"),
        ([["add"], 2], "OPERATION_UNKNOWN", "['add']"),
        ([None, 2], "OPERATION_UNKNOWN", "None"),
        ([{}, 2], "OPERATION_UNKNOWN", "{}"),
        ([], "COMMAND_INVALID", "not 0"),
        (["add"], "COMMAND_INVALID", "not 1"),
        (["add", 1, 2], "COMMAND_INVALID", "not 3"),
        ("ad", "COMMAND_INVALID", "'ad'"),
        ({"add": 1, "x": 2}, "COMMAND_INVALID", "add"),
        (None, "COMMAND_INVALID", "None"),
        (5, "COMMAND_INVALID", "5"),
        (["add", 1.0], "OPERAND_INVALID", "float 1.0"),
        (["add", True], "OPERAND_INVALID", "bool True"),
        (["add", False], "OPERAND_INVALID", "bool False"),
        (["add", None], "OPERAND_INVALID", "NoneType"),
        (["add", [1]], "OPERAND_INVALID", "list [1]"),
        (["add", {"a": 1}], "OPERAND_INVALID", "dict"),
        (["add", b"1"], "OPERAND_INVALID", "bytes"),
        (["add", decimal.Decimal(1)], "OPERAND_INVALID", "Decimal"),
        (["add", 2**64], "OPERAND_INVALID", "65 bits"),
        (["add", -(2**63) - 1], "OPERAND_INVALID", "64 bits"),
        (["div", 0], "DIVISION_BY_ZERO", "0"),
        (["div", "0"], "DIVISION_BY_ZERO", "'0'"),
        (["div", "0.0"], "DIVISION_BY_ZERO", "'0.0'"),
        (["div", "-0"], "DIVISION_BY_ZERO", "'-0'"),
        (["div", "0e5"], "DIVISION_BY_ZERO", "'0e5'"),
        (["div", "-0.00E-9999"], "DIVISION_BY_ZERO", "E-9999"),
    ],
)
def test_a_bad_command_is_refused_with_what_is_wrong(command: Any, code: str, word: str) -> None:
    machine = ArithmeticMachine()
    with pytest.raises(Refused) as refusal:
        machine.check(command)
    assert refusal.value.code == code
    assert word in refusal.value.text
    assert machine.check_batch([["add", 1], command]) == [[1, code, refusal.value.text]]


@pytest.mark.parametrize(
    "operand",
    [
        "",
        " 1",
        "1 ",
        "1\n",
        "+1",
        "--1",
        "1.",
        ".5",
        "1e",
        "1e+",
        "1e12345",
        "1_000",
        "1,5",
        "0x10",
        "NaN",
        "sNaN",
        "Infinity",
        "-inf",
        "1" * 35,
        "1." + "1" * 35,
        ARABIC_THREE,
        "1." + ARABIC_THREE,
        "1e" + ARABIC_THREE,
        "\N{FULLWIDTH DIGIT ONE}",
        "\N{MINUS SIGN}1",
        "1\0",
    ],
)
def test_a_string_that_spells_no_number_is_refused(operand: str) -> None:
    machine = ArithmeticMachine()
    for operation in ("add", "sub", "mul", "div"):
        with pytest.raises(Refused) as refusal:
            machine.check([operation, operand])
        assert refusal.value.code == "OPERAND_INVALID"
        assert machine.check_batch([[operation, operand]]) == [[0, "OPERAND_INVALID", refusal.value.text]]


@pytest.mark.parametrize(
    "operand", ["0", "-0", "1" * 34, "1." + "1" * 34, "-" + "9" * 34 + "." + "9" * 34 + "E-9999", "1e0005", "00", 0]
)
def test_the_longest_and_oddest_allowed_operands_pass(operand: int | str) -> None:
    machine = ArithmeticMachine()
    machine.check(["add", operand])
    assert machine.check_batch([["add", operand]]) == []


def test_a_refusal_text_is_short_however_long_the_operand() -> None:
    for command in (["add", "9" * 1_000_000], ["x" * 1_000_000, 1], [[0] * 1_000_000, 1], ["add", "x", "y" * 10_000]):
        [[_, _, text]] = ArithmeticMachine().check_batch([command])
        assert len(text) < 200


wild = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
nearly = st.tuples(st.sampled_from(["add", "div", "mod", b"add", 1]), st.one_of(wild, ints, spelled_numbers)).map(list)


@settings(deadline=None)
@given(st.lists(st.one_of(commands, nearly, wild), max_size=8))
def test_the_fast_check_refuses_what_the_plain_one_refuses(batch: list[Any]) -> None:
    machine = ArithmeticMachine()
    expected = check_one_by_one(ArithmeticMachine(), batch)
    assert machine.check_batch(batch) == expected
    assert machine.check_batch(batch) == expected  # Once more, with the operands known.


@settings(deadline=None)
@given(st.sampled_from([0, 1, -7, "1e6144", "1e-6176", "0.1"]), st.lists(commands, max_size=12))
def test_a_batch_answers_as_single_commands_do(initial: int | str, batch: list[Any]) -> None:
    single, batched = ArithmeticMachine(initial), ArithmeticMachine(initial)
    expected: list[str | None] = []
    for command in batch:
        try:
            expected.append(single.apply(command, HERE))
        except Refused:
            expected.append(None)
    results = batched.apply_batch(batch, Contexts(0, len(batch), 1, 0))
    assert [None if isinstance(result, Refused) else result for result in results] == expected
    assert batched.query(None) == single.query(None)


def rounded(exact: Fraction) -> Fraction | None:
    """The exact number rounded to decimal128 by whole-number arithmetic, or None if it overflows."""
    if exact == 0:
        return exact
    size = abs(exact)
    exponent = (size.numerator.bit_length() - size.denominator.bit_length()) * 30103 // 100000 - 36
    while size / Fraction(10) ** exponent >= 10**34:
        exponent += 1
    exponent = max(exponent, -6176)
    result = round(size / Fraction(10) ** exponent) * Fraction(10) ** exponent  # round() is half to even.
    return None if result >= Fraction(10) ** 6145 else result * (1 if exact > 0 else -1)


@settings(max_examples=200, deadline=None)
@given(commands, commands)
def test_each_result_is_the_exact_one_rounded_once(first: list[Any], second: list[Any]) -> None:
    machine, value = ArithmeticMachine(3), Fraction(3)
    for operation, operand in (first, second):
        number = Fraction(decimal.Decimal(operand))
        match operation:
            case "add":
                exact = value + number
            case "sub":
                exact = value - number
            case "mul":
                exact = value * number
            case _:
                exact = value / number
        expected = rounded(exact)
        try:
            result = machine.apply([operation, operand], HERE)
        except Refused:
            assert expected is None
        else:
            assert expected is not None
            value = expected
            assert Fraction(decimal.Decimal(result)) == value


@settings(max_examples=200, deadline=None)
@given(st.lists(commands, max_size=6))
def test_the_answers_are_those_of_the_decimal_module_in_pure_python(batch: list[Any]) -> None:
    context = _pydecimal.Context(
        prec=34,
        rounding=_pydecimal.ROUND_HALF_EVEN,
        Emin=-6143,
        Emax=6144,
        capitals=1,
        clamp=1,
        flags=[],
        traps=[_pydecimal.Overflow],
    )
    machine, value = ArithmeticMachine(), _pydecimal.Decimal(42)
    steps = {"add": context.add, "sub": context.subtract, "mul": context.multiply, "div": context.divide}
    for operation, operand in batch:
        try:
            value = steps[operation](value, _pydecimal.Decimal(operand))
        except _pydecimal.Overflow:
            with pytest.raises(Refused):
                machine.apply([operation, operand], HERE)
        else:
            assert machine.apply([operation, operand], HERE) == str(value)


def test_nothing_depends_on_the_ambient_decimal_context() -> None:
    batch: list[list[Any]] = [["add", "1e40"], ["div", 3], ["mul", "1.5e-50"], ["sub", "12345678.9"], ["mul", "1e9999"]]
    expected = run(42, *batch)
    with decimal.localcontext() as ambient:
        ambient.prec, ambient.rounding, ambient.capitals, ambient.clamp = 3, decimal.ROUND_UP, 0, 0
        ambient.Emax, ambient.Emin = 5, -5
        for signal in ambient.traps:
            ambient.traps[signal] = True
        assert run(42, *batch) == expected
        assert run("1e99", ["add", 0]) == "1." + "0" * 33 + "E+99"
        machine = ArithmeticMachine("1e99")
        machine.restore(machine.snapshot())
        assert machine.query(None) == "1E+99"


@pytest.mark.parametrize(
    "command", [["add", 1.5], ["add", True], ["add", None], ["add", "x"], ["pow", 2], ["add"], ["div", 0], ["div", "0"]]
)
def test_an_unchecked_command_fails_at_its_position_and_changes_nothing(command: Any) -> None:
    machine = ArithmeticMachine()
    with pytest.raises(CommandFailed) as failure:
        machine.apply_batch([["add", 1], command, ["add", 1]], Contexts(0, 3, 1, 0))
    assert failure.value.position == 1
    assert machine.query(None) == "42"


def test_the_operands_that_are_known_stay_below_their_limit() -> None:
    machine = ArithmeticMachine(0)
    machine.check_batch([["add", f"{position}.5"] for position in range(KNOWN_OPERANDS)])
    assert len(machine.known) == KNOWN_OPERANDS
    machine.check(["add", "0.25"])
    assert list(machine.known) == ["0.25"]


def test_more_operands_than_the_cache_holds_change_no_answer() -> None:
    count = KNOWN_OPERANDS + 10
    machine = ArithmeticMachine(0)
    batch = [["add", f"{position}.5"] for position in range(count)]
    assert machine.check_batch(batch) == []
    results = machine.apply_batch(batch, Contexts(0, count, 1, 0))
    assert results[-1] == f"{count * (count - 1) // 2 + count // 2}.0"


@pytest.mark.parametrize("initial", [1.5, True, None, "x", [1], 2**64, "1e6145", "1" * 34 + ".1", "1e-6177"])
def test_an_initial_value_that_decimal128_does_not_hold_is_refused(initial: Any) -> None:
    with pytest.raises(InitialInvalid) as invalid:
        ArithmeticMachine(initial)
    assert invalid.value.machine == "arithmetic"
    assert invalid.value.initial == initial


def test_a_query_other_than_null_is_refused() -> None:
    with pytest.raises(Refused) as refusal:
        ArithmeticMachine().query(["get", "k"])
    assert refusal.value.code == "QUERY_UNKNOWN"


@settings(deadline=None)
@given(st.lists(commands, max_size=4), st.integers(1, 20))
def test_a_restored_machine_goes_on_as_the_original(batch: list[Any], cut: int) -> None:
    original, restored = ArithmeticMachine(), ArithmeticMachine(5)
    original.apply_batch(batch, Contexts(0, len(batch), 1, 0))
    snapshot = b"".join(original.snapshot())
    restored.restore(snapshot[start : start + cut] for start in range(0, len(snapshot), cut))
    assert restored.query(None) == original.query(None)
    assert b"".join(restored.snapshot()) == snapshot
    assert restored.apply(["div", 3], HERE) == original.apply(["div", 3], HERE)


def test_the_longest_initial_values_survive_a_snapshot() -> None:
    for initial in ("1." + "0" * 34, "9" * 34 + "." + "0" * 34, "0." + "0" * 33 + "1", "1." + "0" * 34 + "e-6", "-0"):
        machine, restored = ArithmeticMachine(initial), ArithmeticMachine()
        restored.restore(machine.snapshot())
        assert restored.query(None) == machine.query(None)


def test_a_snapshot_is_of_the_moment_it_was_asked_for() -> None:
    machine = ArithmeticMachine()
    snapshot = machine.snapshot()
    machine.apply(["add", 1], HERE)
    assert b"".join(snapshot) == b"42"


@pytest.mark.parametrize(
    "chunks", [[], [b""], [b"x"], [b"1\n"], [b"NaN"], [b"Infinity"], [b"1e5"], [b"1E+6145"], [b"1" * 35], [b"1"] * 129]
)
def test_a_damaged_snapshot_is_refused_and_changes_nothing(chunks: list[bytes]) -> None:
    machine = ArithmeticMachine()
    with pytest.raises(SnapshotInvalid):
        machine.restore(chunks)
    assert machine.query(None) == "42"
