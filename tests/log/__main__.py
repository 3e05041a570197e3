"""The long forms of this folder's tests: `python -m tests.log`, a part of `make soak`.

Crashes with many more outcomes and other seeds, long histories against a list, and 5,000,000 runs of fuzz of each
decoder. What fails prints how to run it again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.log import test_crashes, test_reset
from tests.log.explorer import explore
from tests.log.fuzz import TARGETS
from tests.log.test_model import LogAgainstList


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outcomes", type=int, default=1024, help="what a crash can leave, tried at each point")
    parser.add_argument("--seed", type=int, default=1, help="of the outcomes that are chosen at random")
    parser.add_argument("--histories", type=int, default=20_000, help="of the log against a list")
    parser.add_argument("--fuzz", type=int, default=5_000_000, help="runs of each decoder")
    chosen = parser.parse_args()

    explorations = [*test_crashes.EXPLORATIONS, *test_reset.EXPLORATIONS]
    for prepare, steps in explorations:
        tried = explore(prepare, steps, outcomes=chosen.outcomes, seed=chosen.seed)
        print(f"{prepare.__name__}, {steps.__name__}: {tried:,} crashes", flush=True)
    run_state_machine_as_test(
        LogAgainstList,
        settings=settings(
            max_examples=chosen.histories,
            stateful_step_count=100,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
        ),
    )
    print(f"{chosen.histories:,} histories against a list", flush=True)
    for target in sorted(TARGETS):
        program = [sys.executable, "-m", "tests.log.fuzzing", target, f"-runs={chosen.fuzz}", "-max_len=512"]
        subprocess.run(program, check=True)


if __name__ == "__main__":
    main()
