"""The classroom's instructions: N arithmetic commands, one JSON array a line, the same for a seed on any Python.

    python examples/classroom.py > instructions.ndjson
    python examples/classroom.py --count 1000000 --seed 7 --output instructions.ndjson

This script is what is committed; the file is made from it where it is needed. It uses the standard library only,
and of `random` only `getrandbits`, whose sequence for a seed does not change between Python versions.

What the instructions keep to, so that a lost, doubled or swapped line shows in the answer and not only in the digest:

- They never multiply by 0 nor divide by 0, and never add 0.
- The product of all factors so far walks between 1/1000 and 1000: where it would leave, mul becomes div or div
  becomes mul. So an early addition is neither blown up until later ones vanish beside it, nor scaled away.
- Additions and subtractions are of about one size, and pull the sum back where it has wandered far.
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator
from typing import TextIO

DEFAULT_COUNT = 100_000
DEFAULT_SEED = 42

PRODUCT_HIGHEST = 1000.0
SUM_HIGHEST = 1_000_000.0

# Factors as they are written in an instruction. Some repeat their number in another spelling, on purpose.
FACTORS: tuple[int | str, ...] = (
    2, 3, 4, 5, 6, 7, 8, 9, 11, -2, -3,
    "1.25", "0.8", "0.75", "1.1", "2.5", "0.3", "-1.5", "7e-1", "12E-1", "3.0", "1.0625", "0.0009765625e3",
)  # fmt: skip


class Instructions:
    """Draws instructions one after the other.

    The steering uses binary floats and of them only *, / and +, which IEEE 754 rounds alike everywhere.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._product = 1.0
        self._sum = 42.0

    def draw(self) -> list[int | str]:
        """The next instruction: additions and subtractions two times in three, else mul or div."""
        return self._scale() if self._below(3) == 0 else self._shift()

    def _below(self, bound: int) -> int:
        return self._random.getrandbits(32) % bound

    def _scale(self) -> list[int | str]:
        factor = FACTORS[self._below(len(FACTORS))]
        size = abs(float(factor))
        operation = ("mul", "div")[self._below(2)]
        product = self._scaled(self._product, operation, size)
        if not 1 / PRODUCT_HIGHEST <= product <= PRODUCT_HIGHEST:
            operation = "div" if operation == "mul" else "mul"
            product = self._scaled(self._product, operation, size)
        self._product = product
        self._sum = self._scaled(self._sum, operation, float(factor))
        return [operation, factor]

    @staticmethod
    def _scaled(value: float, operation: str, factor: float) -> float:
        return value * factor if operation == "mul" else value / factor

    def _shift(self) -> list[int | str]:
        operand = self._operand()
        amount = float(operand)
        operation = ("add", "sub")[self._below(2)]
        if abs(self._sum) > SUM_HIGHEST:
            operation = "sub" if (self._sum > 0) == (amount > 0) else "add"
        self._sum += amount if operation == "add" else -amount
        return [operation, operand]

    def _operand(self) -> int | str:
        """A number of a size from 0.001 to 1,000, never 0: an int, or a string with a point or an exponent."""
        whole = 1 + self._below(999)
        sign = "-" if self._below(4) == 0 else ""
        match self._below(4):
            case 0 | 1:
                return -whole if sign else whole
            case 2:
                return f"{sign}{whole}.{self._below(100):02}"
            case _:
                return f"{sign}{whole}e-{self._below(4)}"


def instructions(count: int, seed: int) -> Iterator[list[int | str]]:
    """`count` instructions; those of a smaller count are the first ones of a greater."""
    source = Instructions(seed)
    for _ in range(count):
        yield source.draw()


def write_instructions(output: TextIO, count: int, seed: int) -> None:
    """Write the instructions as NDJSON."""
    output.writelines(json.dumps(instruction) + "\n" for instruction in instructions(count, seed))


def main() -> int:
    """The exit status, after the instructions are written."""
    parser = argparse.ArgumentParser(description="Write arithmetic instructions, one JSON array a line.")
    parser.add_argument("--count", type=int, default=DEFAULT_COUNT, help="how many (default %(default)s)")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="which ones (default %(default)s)")
    parser.add_argument("--output", help="file to write (default: standard output)")
    arguments = parser.parse_args()
    if arguments.count < 0:
        parser.error("--count is 0 or more")
    if arguments.output is None:
        write_instructions(sys.stdout, arguments.count, arguments.seed)
    else:
        with open(arguments.output, "w", encoding="ascii", newline="\n") as output:
            write_instructions(output, arguments.count, arguments.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
