"""The classroom's scripts, run as the separate programs that they are."""

import asyncio
import sys
from pathlib import Path

from .nodes import DemoFailed

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SCRIPTS = ("classroom.py", "classroom_check.py")
SCRIPT_TIMEOUT_S = 300.0


def require_scripts() -> None:
    """Raise DemoFailed where the scripts are missing, as in a quire that was installed without its repository."""
    for script in SCRIPTS:
        if not (EXAMPLES / script).is_file():
            raise DemoFailed(f"the demo needs {script} of the repository's examples; run it in a clone: make demo")


async def write_instructions(file: Path, count: int) -> None:
    """Write the first `count` of the classroom's instructions as NDJSON."""
    await _run("classroom.py", "--count", str(count), "--output", str(file))


async def expected_answer(file: Path, initial: str) -> str:
    """What the machine must answer to a file of instructions, worked out without quire."""
    return (await _run("classroom_check.py", f"--initial={initial}", str(file))).strip()


async def _run(script: str, *arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLES / script),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(SCRIPT_TIMEOUT_S):
            output, errors = await process.communicate()
    except BaseException:
        if process.returncode is None:
            process.kill()
            await process.wait()
        raise
    if process.returncode != 0:
        raise DemoFailed(f"{script} ended with code {process.returncode}: {errors.decode(errors='replace').strip()}")
    return output.decode()
