r"""The `arithmetic` machine: one decimal number, and the commands `["add"|"sub"|"mul"|"div", x]`.

The rules, all of which an independent program can follow (examples/classroom_check.py does):

- x is an int (no bool) from -2^63 to 2^64-1, or an ASCII string
  `-?\d{1,34}(\.\d{1,34})?([eE][+-]?\d{1,4})?`. It means exactly the number it spells.
- A result is rounded to 34 digits, half to even, exponents from -6143 to 6144, clamped (IEEE 754 decimal128,
  with subnormal numbers). Only results are rounded, never operands.
- Dividing by zero, however it is spelled, is refused by `check`. A result that overflows is refused by `apply`,
  and the number stays what it was.
- Results and the state are strings, as Python's `str(Decimal)` writes them.

Nothing depends on the thread's ambient decimal context: even writing a number would (`capitals`), so the
machine's own context writes them.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import ROUND_HALF_EVEN, Decimal, DivisionByZero, InvalidOperation, Overflow
from decimal import Context as DecimalContext
from reprlib import repr as short_repr
from typing import Any

from ..errors import InitialInvalid, PlaceFailed, SnapshotInvalid, reason_of
from ..machine import Context, Refused

INT_LOWEST = -(2**63)
INT_HIGHEST = 2**64 - 1
KNOWN_OPERANDS = 65_536  # About 12 MB; a full cache is emptied, which costs less than keeping an order.
SNAPSHOT_LIMIT_BYTES = 128  # The longest state is below 90: an initial value of 68 digits and six zeros before them.

OPERATIONS = frozenset(("add", "sub", "mul", "div"))

# Not possessive, though that were faster: Python 3.11.2's matches wrongly, and nodes must not differ by their Python.
_OPERAND = re.compile(r"-?[0-9]{1,34}(?:\.[0-9]{1,34})?(?:[eE][+-]?[0-9]{1,4})?")
_STATE = re.compile(rb"-?[0-9]{1,68}(?:\.[0-9]{1,74})?(?:E[+-][0-9]{1,4})?")


def decimal_context() -> DecimalContext:
    """A decimal context of the machine's own; every field is given, so no default of the process matters."""
    return DecimalContext(
        prec=34,
        rounding=ROUND_HALF_EVEN,
        Emin=-6143,
        Emax=6144,
        capitals=1,
        clamp=1,
        flags=[],
        traps=[InvalidOperation, DivisionByZero, Overflow],
    )


class ArithmeticMachine:
    """One decimal number under add, sub, mul and div; 42 unless genesis says otherwise."""

    name = "arithmetic"
    version = 1
    default_initial = 42

    def __init__(self, initial: int | str = 42) -> None:
        context = decimal_context()
        self._plus = context.plus
        self._write: Callable[[Decimal], str] = context.to_sci_string
        self._operations: dict[str, Callable[[Decimal, Decimal | int], Decimal]] = {
            "add": context.add,
            "sub": context.subtract,
            "mul": context.multiply,
            "div": context.divide,
        }
        # Operands seen lately, each the number it spells. Zeros stay out: the fast check takes what is here as
        # safe to divide by.
        self.known: dict[str, Decimal] = {}
        self._value = self._initial_value(initial)

    def check(self, command: Any) -> None:
        """Refuse what is not exactly an operation and an operand, and division by zero."""
        if not isinstance(command, (list, tuple)):
            raise Refused("COMMAND_INVALID", f"a command is [operation, operand], not {short_repr(command)}")
        if len(command) != 2:
            raise Refused("COMMAND_INVALID", f"a command is [operation, operand]: 2 values, not {len(command)}")
        operation, operand = command
        if not isinstance(operation, str) or operation not in OPERATIONS:
            raise Refused("OPERATION_UNKNOWN", f"operation is add, sub, mul or div, not {short_repr(operation)}")
        if type(operand) is int:
            if not INT_LOWEST <= operand <= INT_HIGHEST:
                bits = operand.bit_length()
                raise Refused("OPERAND_INVALID", f"an int is from -2^63 to 2^64-1; this one has {bits} bits")
            is_zero = operand == 0
        elif type(operand) is str:
            is_zero = not self._number(operand)
        else:
            what = f"{type(operand).__name__} {short_repr(operand)}"
            raise Refused("OPERAND_INVALID", f"an operand is an int or a string that spells a number, not {what}")
        if is_zero and operation == "div":
            raise Refused("DIVISION_BY_ZERO", f"cannot divide by {short_repr(operand)}")

    def check_batch(self, commands: Sequence[Any]) -> list[list[Any]]:
        """[[place, code, text], ...] of the refused. What is plainly right passes here; `check` sees the rest."""
        refused: list[list[Any]] = []
        known, operations = self.known, OPERATIONS
        for place, command in enumerate(commands):
            if type(command) is list and len(command) == 2:
                operation, operand = command
                if type(operation) is str and operation in operations:
                    if type(operand) is str:
                        if operand in known:
                            continue
                    elif type(operand) is int and operand and INT_LOWEST <= operand <= INT_HIGHEST:
                        continue
            try:
                self.check(command)
            except Refused as refusal:
                refused.append([place, refusal.code, refusal.text])
        return refused

    def apply(self, command: Any, context: Context) -> str:
        """The new value as a string. Raises Refused with OVERFLOW; the value then stays."""
        [result] = self.apply_batch((command,), (context,))
        if isinstance(result, Refused):
            raise result
        return str(result)

    def apply_batch(self, commands: Sequence[Any], contexts: Sequence[Context]) -> list[Any]:
        """For each command the new value as a string, or its Refused. On an exception nothing was changed.

        No contexts are looked at. This loop is what bounds a node's apply rate: it makes no object but the
        numbers and the results.

        Raises:
            PlaceFailed: a command that `check` would have refused.
        """
        value, known, operations, write = self._value, self.known, self._operations, self._write
        number: Decimal | int | None
        results: list[Any] = []
        append = results.append
        try:
            for operation, operand in commands:
                if type(operand) is str:
                    number = known.get(operand)
                    if number is None:
                        number = self._number(operand)
                elif type(operand) is int:
                    number = operand
                else:
                    raise TypeError(f"operand {short_repr(operand)} was never checked")
                try:
                    value = operations[operation](value, number)
                except Overflow:
                    append(Refused("OVERFLOW", "the result would be 1E+6145 or more in size"))
                else:
                    append(write(value))
        except Exception as error:
            raise PlaceFailed(place=len(results), reason=reason_of(error)) from error
        self._value = value
        return results

    def query(self, request: Any) -> str:
        """The value as a string, for the request None."""
        if request is not None:
            raise Refused("QUERY_UNKNOWN", "the arithmetic machine knows only the request null: the whole state")
        return self._write(self._value)

    def snapshot(self) -> Iterator[bytes]:
        """The value as ASCII, which spells it exactly: digits, exponent and sign of zero."""
        return iter((self._write(self._value).encode("ascii"),))

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Take the value of a snapshot. Raises SnapshotInvalid."""
        state = b""
        for chunk in chunks:
            state += chunk
            if len(state) > SNAPSHOT_LIMIT_BYTES:
                raise SnapshotInvalid(machine=self.name, reason=f"above {SNAPSHOT_LIMIT_BYTES} bytes")
        if _STATE.fullmatch(state) is None:
            raise SnapshotInvalid(machine=self.name, reason=f"{short_repr(state)} is no number")
        value = Decimal(state.decode("ascii"))
        if not self._fits(value):
            raise SnapshotInvalid(machine=self.name, reason=f"{short_repr(state)} is outside of decimal128")
        self._value = value

    def _number(self, operand: str) -> Decimal:
        """The number that the string spells, exactly. Raises Refused."""
        if _OPERAND.fullmatch(operand) is None:
            what = "-?digits(.digits)?(e[+-]?digits)?, of at most 34, 34 and 4 digits 0-9"
            raise Refused("OPERAND_INVALID", f"a string operand is {what}, not {short_repr(operand)}")
        number = Decimal(operand)
        if number:
            if len(self.known) >= KNOWN_OPERANDS:
                self.known.clear()
            self.known[operand] = number
        return number

    def _initial_value(self, initial: Any) -> Decimal:
        try:
            self.check(["add", initial])
        except Refused as refusal:
            raise InitialInvalid(machine=self.name, initial=initial, reason=refusal.text) from refusal
        value = Decimal(initial)
        if not self._fits(value):
            raise InitialInvalid(machine=self.name, initial=initial, reason="34 digits within 1E+6145 do not hold it")
        return value

    def _fits(self, value: Decimal) -> bool:
        """Whether the context holds the value without rounding it away from what it is."""
        try:
            return self._plus(value) == value
        except Overflow:
            return False
