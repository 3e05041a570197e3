"""Fuzzes a decoder: guided by coverage if atheris is installed, else at random, which it reports.

python -m tests.log.fuzzing frames|payloads [-runs=5000000] [-max_len=512] [-seed=1] [other flags of libFuzzer]
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from random import Random


def guided(target: str, flags: list[str]) -> None:
    """Fuzz for as long as the flags say; this ends the process."""
    atheris = import_module("atheris")
    # Only what is imported in here counts as coverage.
    with atheris.instrument_imports(include=["quire.log"]):
        from tests.log.fuzz import TARGETS
    atheris.Setup([sys.argv[0], *flags], TARGETS[target])
    atheris.Fuzz()


def unguided(target: str, flags: list[str]) -> None:
    """Give the target random inputs, as many as the flags say."""
    from tests.log.fuzz import TARGETS

    chosen = {"-runs": 20_000, "-max_len": 512, "-seed": 1}
    chosen |= {name: int(value) for name, _, value in (flag.partition("=") for flag in flags) if name in chosen}
    print("atheris is not installed here: random bytes, not guided by coverage", file=sys.stderr)
    random = Random(chosen["-seed"])
    for _ in range(chosen["-runs"]):
        TARGETS[target](random.randbytes(random.randint(0, chosen["-max_len"])))
    print(f"Done {chosen['-runs']} runs", file=sys.stderr)


if __name__ == "__main__":
    fuzz = guided if find_spec("atheris") else unguided
    fuzz(sys.argv[1], sys.argv[2:])
