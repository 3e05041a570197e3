r"""Compute the arithmetic machine's answer to a file of commands, without quire.

    python examples/classroom_check.py instructions.ndjson          prints the answer, e.g. 9
    python examples/classroom.py | python examples/classroom_check.py -

It reads one JSON command per line (`["add"|"sub"|"mul"|"div", x]`), starts from 42, and prints what quire's arithmetic
machine must answer. It is written from the rules and shares no code with quire; it uses only the standard library.

The rules: x is an int from -2^63 to 2^64-1 (not true or false), or a string of ASCII characters
`-?\d{1,34}(\.\d{1,34})?([eE][+-]?\d{1,4})?` that stands for exactly that number. Each result is rounded to 34 digits,
half to even, with exponents from -6143 to 6144, clamped. Division by zero is not allowed. A result that overflows is
refused: the value stays what it was.

Exit status: 0, or 2 if a line is not a valid command; the error names the line.
"""

import argparse
import decimal
import json
import string
import sys
from collections.abc import Iterable

DIGITS_LIMIT = 34
EXPONENT_DIGITS_LIMIT = 4


class NotAllowed(Exception):
    """A line is not a valid command; the text says why."""


def is_digits(text: str, limit: int) -> bool:
    """Whether the text is 1 to `limit` ASCII digits."""
    return 1 <= len(text) <= limit and all(character in string.digits for character in text)


def spells_a_number(text: str) -> bool:
    """Whether the text is a number by the rules; checked without a regular expression."""
    mantissa, mark, exponent = text.replace("E", "e").partition("e")
    if mark and not is_digits(exponent[1:] if exponent[:1] in ("+", "-") else exponent, EXPONENT_DIGITS_LIMIT):
        return False
    whole, point, fraction = mantissa.removeprefix("-").partition(".")
    if point and not is_digits(fraction, DIGITS_LIMIT):
        return False
    return is_digits(whole, DIGITS_LIMIT)


def number(operand: object) -> decimal.Decimal:
    """The exact number of an operand."""
    if isinstance(operand, bool) or not isinstance(operand, (int, str)):
        raise NotAllowed(f"{operand!r} is neither an int nor a string")
    if isinstance(operand, int):
        if operand < -(2**63) or operand >= 2**64:
            raise NotAllowed(f"{operand} is outside -2^63 to 2^64-1")
    elif not spells_a_number(operand):
        raise NotAllowed(f"{operand!r} is not a number")
    return decimal.Decimal(operand)


def step(value: decimal.Decimal, command: object, context: decimal.Context) -> decimal.Decimal:
    """The value after one command."""
    if not isinstance(command, list) or len(command) != 2:
        raise NotAllowed("a command is [operation, x]")
    operation, x = command[0], number(command[1])
    try:
        if operation == "add":
            return context.add(value, x)
        if operation == "sub":
            return context.subtract(value, x)
        if operation == "mul":
            return context.multiply(value, x)
        if operation == "div":
            if x == 0:
                raise NotAllowed("division by zero")
            return context.divide(value, x)
    except decimal.Overflow:
        return value
    raise NotAllowed(f"{operation!r} is not an operation")


def answer(lines: Iterable[str | bytes], initial: int | str = 42) -> str:
    """The machine's answer after these lines. Raises NotAllowed with the number of the line."""
    context = decimal.Context(
        prec=34,
        rounding=decimal.ROUND_HALF_EVEN,
        Emin=-6143,
        Emax=6144,
        clamp=1,
        capitals=1,
        traps=[decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow],
    )
    value = number(initial)
    for place, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            command = json.loads(line)
        except ValueError as error:
            raise NotAllowed(f"line {place}: not JSON: {error}") from error
        try:
            value = step(value, command, context)
        except NotAllowed as error:
            raise NotAllowed(f"line {place}: {error}") from error
    return context.to_sci_string(value)


def main() -> int:
    """Print the answer or the error; return the exit status."""
    parser = argparse.ArgumentParser(description="Print the answer to a file of arithmetic commands.")
    parser.add_argument("file", help="NDJSON file, or - for stdin")
    parser.add_argument("--initial", default="42", help="initial value (default %(default)s)")
    arguments = parser.parse_args()
    try:
        if arguments.file == "-":
            print(answer(sys.stdin.buffer, arguments.initial))
        else:
            with open(arguments.file, "rb") as lines:
                print(answer(lines, arguments.initial))
    except (NotAllowed, OSError) as error:
        print(f"classroom_check: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
