"""Replicas whose Python hashes differently reach the same digest."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys
from quire.log import Run
from quire.sm import Applier, Sessions, load_machine
from tests.sm.frames import Frames

frames, applier = Frames(), Applier(load_machine(sys.argv[1])(), sessions=Sessions(session_window=90, max_sessions=2))
for start in range(0, 500, 50):
    applier.apply(frames.records([[("add", "sub", "mul", "div")[i % 4], i % 7 + 1] for i in range(start, start + 50)]))
applier.apply(frames.records([["mul", "1e9999"], ["add", "2.5"]]))
for name in ("a", "b", "a", "c"):
    applier.apply(frames.system({"type": "open_session", "name": name}))
b, a = frames.index - 3, frames.index - 2
for sequence in (1, 30, 60, 100, 180, 1):
    runs = [Run(a, sequence, 50), Run(b, 1, 3), Run(a, sequence + 20, 50), Run(a - 2, 1, 1)]
    commands = [["add", i] for i in range(50)] + [["sub", "7"]] * 3 + [["add", i] for i in range(20, 70)]
    applier.apply(frames.runs(runs, [*commands, ["add", 1]]))
print(hash("quire"), applier.digest.hex())
"""


@pytest.mark.parametrize("machine", ["arithmetic", "log"])
@pytest.mark.slow
def test_a_digest_does_not_depend_on_the_hash_seed(machine: str) -> None:
    hashes, digests = set(), set()
    for seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", PROGRAM, machine]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
        hashed, digest = run.stdout.split()
        hashes.add(hashed)
        digests.add(digest)
    assert len(hashes) == 3  # The seeds did reach the interpreters.
    assert len(digests) == 1
