r"""The `arithmetic` machine: one decimal number, and the commands `["add"|"sub"|"mul"|"div", x]`.

The rules, complete enough for an independent program (examples/classroom_check.py is one):

- x is an int (not a bool) from -2^63 to 2^64-1, or an ASCII string
  `-?\d{1,34}(\.\d{1,34})?([eE][+-]?\d{1,4})?`. It means exactly the number that it spells.
- A result is rounded to 34 digits, half to even, exponents from -6143 to 6144, clamped (IEEE 754 decimal128,
  with subnormal numbers). Only results are rounded, never operands.
- `check` refuses division by zero, however the zero is spelled. `apply` refuses a command whose result overflows; the
  number stays as it was.
- Results and the state are strings in the format of Python's `str(Decimal)`.

Nothing depends on the thread's ambient decimal context. Even `str(Decimal)` does (`capitals`), so the machine writes
numbers with its own context.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import ROUND_HALF_EVEN, Decimal, DivisionByZero, InvalidOperation, Overflow
from decimal import Context as DecimalContext
from reprlib import repr as short_repr
from typing import Any

from ..errors import CommandFailed, InitialInvalid, SnapshotInvalid, reason_of
from ..machine import Context, RefusalRow, Refused

INT_LOWEST = -(2**63)
INT_HIGHEST = 2**64 - 1
KNOWN_OPERANDS = 65_536  # About 12 MB. A full cache is emptied, which is cheaper than an LRU order.
SNAPSHOT_LIMIT_BYTES = 128  # The longest state is below 90: an initial value of 68 digits after six zeros.

OPERATIONS = frozenset(("add", "sub", "mul", "div"))

# No possessive quantifiers, although faster: those of Python 3.11.2 match wrongly, and all nodes must agree.
_OPERAND = re.compile(r"-?[0-9]{1,34}(?:\.[0-9]{1,34})?(?:[eE][+-]?[0-9]{1,4})?")
_STATE = re.compile(rb"-?[0-9]{1,68}(?:\.[0-9]{1,74})?(?:E[+-][0-9]{1,4})?")


def decimal_context() -> DecimalContext:
    """The machine's own decimal context; every field is given, so it depends on no default of the process."""
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
    """One decimal number under add, sub, mul and div; initially 42 unless the genesis record says otherwise."""

    name = "arithmetic"
    version = 1
    quick = True
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
        # Recent string operands and their numbers. Never zeros: the fast check divides by anything in here.
        self.known: dict[str, Decimal] = {}
        self._value = self._initial_value(initial)

    def check(self, command: object) -> None:
        """Refuse everything but an operation with a valid operand, and refuse division by zero."""
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

    def check_batch(self, commands: Sequence[object]) -> list[RefusalRow]:
        """The refused ones as [[position, code, text], ...]. Common commands pass quickly; `check` decides the rest."""
        refused: list[RefusalRow] = []
        known, operations = self.known, OPERATIONS
        for position, command in enumerate(commands):
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
                refused.append([position, refusal.code, refusal.text])
        return refused

    def apply(self, command: object, context: Context) -> str:
        """The new value as a string. Raises Refused (OVERFLOW), leaving the value as it was."""
        [result] = self.apply_batch((command,), (context,))
        if isinstance(result, Refused):
            raise result
        return str(result)

    def apply_batch(self, commands: Sequence[Any], contexts: Sequence[Context]) -> list[object]:
        """The new value as a string, or the Refused, of each command. On an exception nothing is changed.

        The contexts are not used. This loop bounds a node's apply rate: it allocates only numbers and results.

        Raises:
            CommandFailed: at a command that `check` would have refused.
        """
        value, known, operations, write = self._value, self.known, self._operations, self._write
        number: Decimal | int | None
        results: list[object] = []
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
            raise CommandFailed(position=len(results), reason=reason_of(error)) from error
        self._value = value
        return results

    def query(self, request: object) -> str:
        """The value as a string, for the request None."""
        if request is not None:
            raise Refused("QUERY_UNKNOWN", "the arithmetic machine knows only the request null: the whole state")
        return self._write(self._value)

    def snapshot(self) -> Iterator[bytes]:
        """The value in ASCII, exactly: digits, exponent and the sign of a zero."""
        return iter((self._write(self._value).encode("ascii"),))

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Restore the value from a snapshot. Raises SnapshotInvalid."""
        state = b""
        for chunk in chunks:
            state += chunk
            if len(state) > SNAPSHOT_LIMIT_BYTES:
                raise SnapshotInvalid(machine=self.name, reason=f"above {SNAPSHOT_LIMIT_BYTES} bytes")
        if _STATE.fullmatch(state) is None:
            raise SnapshotInvalid(machine=self.name, reason=f"{short_repr(state)} is not a number")
        value = Decimal(state.decode("ascii"))
        if not self._fits(value):
            raise SnapshotInvalid(machine=self.name, reason=f"{short_repr(state)} is outside decimal128")
        self._value = value

    def _number(self, operand: str) -> Decimal:
        """The exact number that the string spells. Raises Refused."""
        if _OPERAND.fullmatch(operand) is None:
            what = "a number such as 3, -2.5 or 1e3, of at most 34 digits"
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
        """Whether the context represents the value without rounding."""
        try:
            return self._plus(value) == value
        except Overflow:
            return False
