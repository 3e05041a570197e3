"""Run histories: `python -m tests.glue SEED [COUNT]`; one alone prints its trace."""

import sys
import time

from tests.glue.history import run


def main(first: int, count: int = 1) -> int:
    """Run histories one after another; return whether one of them broke a rule."""
    broken = 0
    for seed in range(first, first + count):
        began = time.process_time()
        outcome = run(seed)
        took_s = time.process_time() - began
        lines = outcome.trace if count == 1 else []
        said = f"seed {seed}: {outcome.failure or 'holds'} ({took_s:.2f} s) {dict(outcome.counts)}"
        sys.stdout.write("\n".join([*lines, said, ""]))
        broken |= bool(outcome.failure)
    return broken


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
