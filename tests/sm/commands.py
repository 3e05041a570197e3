"""Hypothesis strategies for arithmetic commands, plain and extreme, and the classroom's scripts as modules."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from hypothesis import strategies as st

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

digits = st.text("0123456789", min_size=1, max_size=34)
spelled_numbers = st.builds(
    lambda sign, whole, fraction, exponent: sign + whole + fraction + exponent,
    st.sampled_from(["", "-"]),
    digits,
    st.one_of(st.just(""), digits.map(lambda text: "." + text)),
    st.one_of(
        st.just(""),
        st.builds(
            lambda mark, sign, exponent: f"{mark}{sign}{exponent}",
            st.sampled_from("eE"),
            st.sampled_from(["", "+", "-"]),
            st.one_of(st.integers(0, 40), st.integers(6050, 6250), st.integers(0, 9999)),
        ),
    ),
)
ints = st.integers(-(2**63), 2**64 - 1)
operands = st.one_of(ints, st.integers(-9, 9), spelled_numbers)


def is_zero(operand: int | str) -> bool:
    if isinstance(operand, int):
        return operand == 0
    return not any(digit in "123456789" for digit in operand.lower().partition("e")[0])


commands = (
    st.tuples(st.sampled_from(["add", "sub", "mul", "div"]), operands)
    .map(list)
    .filter(lambda command: not (command[0] == "div" and is_zero(command[1])))
)


def example(name: str) -> ModuleType:
    """The script examples/<name>.py, imported."""
    spec = importlib.util.spec_from_file_location(f"quire_examples_{name}", EXAMPLES / f"{name}.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
