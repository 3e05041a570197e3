"""`quire` whose machine runs out of memory while a file is there: run as a program in place of `quire`.

The first argument names the file.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quire.sm import ArithmeticMachine, Context
from tests.tuned import main


def install(file: Path) -> None:
    """Let the machine of this process raise MemoryError in every apply while the file is there."""
    whole = ArithmeticMachine.apply_batch

    def failing(machine: ArithmeticMachine, commands: Sequence[Any], contexts: Sequence[Context]) -> list[Any]:
        if file.exists():
            raise MemoryError("says the test")
        return whole(machine, commands, contexts)

    setattr(ArithmeticMachine, ArithmeticMachine.apply_batch.__name__, failing)


if __name__ == "__main__":
    install(Path(sys.argv.pop(1)))
    main()
