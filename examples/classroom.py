"""Write N arithmetic commands as NDJSON, one JSON array per line. A seed gives the same commands on every Python.

    python examples/classroom.py > instructions.ndjson
    python examples/classroom.py --count 1000000 --seed 7 --output instructions.ndjson

It uses only the standard library, and of `random` only `getrandbits`, whose sequence for a seed does not change between
Python versions.

A lost, duplicated or swapped line changes the answer, because the commands keep these rules:

- They never multiply by 0, divide by 0, or add 0.
- The product of all factors stays between 1/1000 and 1000: a mul or div that would leave this range becomes its
  inverse. So no addition grows until later ones vanish beside it, and none is scaled down to nothing.
- Additions and subtractions have similar sizes, and pull the sum back when it grows large.
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

# Factors as written in an instruction. Some spell the same number differently, on purpose.
FACTORS: tuple[int | str, ...] = (
    2, 3, 4, 5, 6, 7, 8, 9, 11, -2, -3,
    "1.25", "0.8", "0.75", "1.1", "2.5", "0.3", "-1.5", "7e-1", "12E-1", "3.0", "1.0625", "0.0009765625e3",
)  # fmt: skip


class Instructions:
    """Draws instructions one by one.

    It tracks the answer in binary floats, and uses only *, / and +, which IEEE 754 rounds identically everywhere.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._product = 1.0
        self._sum = 42.0

    def draw(self) -> list[int | str]:
        """The next instruction: in two of three cases add or sub, otherwise mul or div."""
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
        """A number between 0.001 and 1,000 in size: an int, or a string with a point or an exponent."""
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
    """The first `count` instructions of a seed."""
    source = Instructions(seed)
    for _ in range(count):
        yield source.draw()


def write_instructions(output: TextIO, count: int, seed: int) -> None:
    """Write the instructions as NDJSON."""
    output.writelines(json.dumps(instruction) + "\n" for instruction in instructions(count, seed))


def main() -> int:
    """Write the instructions that the arguments ask for; return the exit status."""
    parser = argparse.ArgumentParser(description="Write arithmetic commands as NDJSON, one JSON array per line.")
    parser.add_argument("--count", type=int, default=DEFAULT_COUNT, help="number of commands (default %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=DEFAULT_SEED, help="seed of the random sequence (default %(default)s)"
    )
    parser.add_argument("--output", help="file to write (default: stdout)")
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
