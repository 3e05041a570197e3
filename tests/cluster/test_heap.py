"""A server's heap: what was large goes back to the system when it is freed, whatever small stands beside it."""

import subprocess
import sys

BLOCKS, BLOCK_BYTES = 16, 3 << 20
KEPT_BYTES = 8 << 20
PROGRAM = """
from pathlib import Path
from quire.cluster.serve.heap import give_large_blocks_back

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

if {told}:
    give_large_blocks_back()
for _ in range(4):
    bytearray({size})
before, blocks, beside = resident(), [], []
for _ in range({blocks}):
    blocks.append(b"x" * {size})
    beside.append(bytes(1000))
del blocks
print(resident() - before)
"""


def kept(*, told: bool) -> int:
    """How many bytes a process still has of large blocks that it has freed."""
    program = PROGRAM.format(told=told, size=BLOCK_BYTES, blocks=BLOCKS)
    return int(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout)


def test_large_blocks_go_back_although_small_ones_stand_between_them() -> None:
    assert kept(told=True) < KEPT_BYTES < kept(told=False)
