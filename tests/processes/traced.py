"""`quire` that records which of its functions run: run as a program, in place of `quire` itself.

SIGUSR1 starts a recording and SIGUSR2 ends it: the first argument names the file that then holds, as JSON, the list of
`[file, qualified name]` of every function of the package that was called meanwhile, on any thread.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tests.tuned import main

PACKAGE = "/quire/"


class Recording:
    """The functions called while it is on."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._on = False
        self._called: set[CodeType] = set()

    def profile(self, frame: FrameType, event: str, _argument: Any) -> None:
        """What `sys.setprofile` calls."""
        if self._on and event == "call":
            self._called.add(frame.f_code)

    def begin(self, *_: Any) -> None:
        """Forget what was recorded and record from now on."""
        self._called = set()
        self._on = True

    def end(self, *_: Any) -> None:
        """Stop and write what was recorded, whole or not at all."""
        self._on = False
        functions = sorted(
            (code.co_filename.rpartition(PACKAGE)[2], code.co_qualname)
            for code in self._called
            if PACKAGE in code.co_filename and "site-packages" not in code.co_filename
        )
        part = self._output.with_suffix(".part")
        part.write_text(json.dumps(functions))
        part.rename(self._output)


if __name__ == "__main__":
    recording = Recording(Path(sys.argv.pop(1)))
    signal.signal(signal.SIGUSR1, recording.begin)
    signal.signal(signal.SIGUSR2, recording.end)
    threading.setprofile(recording.profile)
    sys.setprofile(recording.profile)
    main()
