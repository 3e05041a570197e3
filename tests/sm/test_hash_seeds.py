"""Replicas whose Python hashes differently reach the same digest."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys
from quire.sm import Applier, load_machine
from tests.sm.frames import Frames

frames, applier = Frames(), Applier(load_machine(sys.argv[1])())
for start in range(0, 500, 50):
    applier.apply(frames.records([[("add", "sub", "mul", "div")[i % 4], i % 7 + 1] for i in range(start, start + 50)]))
applier.apply(frames.records([["mul", "1e9999"], ["add", "2.5"]]))
print(hash("quire"), applier.digest.hex())
"""


@pytest.mark.parametrize("machine", ["arithmetic", "log"])
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
