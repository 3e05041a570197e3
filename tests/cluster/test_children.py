"""A process that starts handlers as process 1 does: what they leave behind is reaped, and no exit code is lost."""

import asyncio
import os
import subprocess
import sys
from typing import Any

import pytest

from quire.cluster.cli.calls.children import Children
from quire.cluster.cli.calls.handlers import Handlers, RecordNotHandled

DEADLINE_S = 60.0
LEAVES_A_CHILD = "import os, signal; os.fork(); signal.pause()"

# Becomes the parent of orphans, as process 1 is, has a handler take too long for each of eight records, and waits until
# nothing is left of them.
SUBREAPER = f"""
import asyncio, ctypes, os, pathlib, sys, time
from quire.cluster.cli.calls.children import Children
from quire.cluster.cli.calls.handlers import Handlers, RecordNotHandled
assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER
def children():
    return pathlib.Path(f"/proc/self/task/{{os.getpid()}}/children").read_text().split()
async def main():
    with Children() as mine:
        handlers = Handlers([sys.executable, "-c", {LEAVES_A_CHILD!r}], 1, 0.3, None, mine)
        failed = await asyncio.gather(*(handlers.handle(n, b"") for n in range(8)), return_exceptions=True)
        assert all("took longer than 0.3 s" in str(error) for error in failed), failed
        end = time.monotonic() + {DEADLINE_S}
        while (left := children()) and time.monotonic() < end:
            await asyncio.sleep(0.01)
        print(len(left), "are left")
asyncio.run(main())
"""


def test_what_a_handler_that_took_too_long_leaves_behind_is_no_zombie() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SUBREAPER], capture_output=True, text=True, timeout=2 * DEADLINE_S, check=False
    )

    assert (ended.stdout, ended.stderr) == ("0 are left\n", "")


def zombie(code: int) -> subprocess.Popen[bytes]:
    """A process that has ended with this code, and waits for somebody to ask."""
    process = subprocess.Popen([sys.executable, "-c", f"raise SystemExit({code})"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    return process


def is_reaped(process: subprocess.Popen[bytes]) -> bool:
    try:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        return True
    return False


async def started(children: Children, monkeypatch: pytest.MonkeyPatch, code: int) -> subprocess.Popen[bytes]:
    """A process of its own that ended at once: before its id was known, children were reaped."""
    made: list[subprocess.Popen[bytes]] = []

    async def create(*words: str, **options: Any) -> subprocess.Popen[bytes]:
        made.append(zombie(code))
        children.reap()
        return made[0]

    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "create_subprocess_exec", create)
        await children.start("true", stderr=2)
    return made[0]


async def test_the_exit_code_of_a_process_that_was_started_is_left_to_who_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    children = Children()
    own = await started(children, monkeypatch, 7)

    children.reap()

    assert own.wait() == 7


async def test_another_s_child_is_reaped_once_the_own_one_before_it_was_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    children = Children()
    own = await started(children, monkeypatch, 7)
    orphan = zombie(0)

    own.wait()
    children.forget(own)  # type: ignore[arg-type]

    assert is_reaped(orphan)
    assert orphan.wait() == 0


async def test_a_handler_for_which_there_is_no_thread_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def create(*words: str, **options: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", create)

    with pytest.raises(RecordNotHandled, match="tried once: 'true' could not be started: can't start new thread"):
        await Handlers(["true"], 1, 9.0, None, Children()).handle(3, b"")
