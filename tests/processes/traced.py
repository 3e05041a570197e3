"""`quire` that records which functions run: run as a program, in place of `quire` itself.

SIGUSR1 starts a recording and SIGUSR2 ends it: the first argument names the file that then holds, as JSON, what was
called meanwhile, on any thread: `functions`, the list of `[file, qualified name]` of every function of the package;
`calls`, how many functions written in Python were called, those of other packages included; and `seconds`.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tests.processes.cluster import Node
from tests.tuned import main

PACKAGE = "/quire/"


class Recording:
    """The functions called while it is on."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._on = False
        self._called: Counter[CodeType] = Counter()
        self._began = 0.0

    def profile(self, frame: FrameType, event: str, _argument: Any) -> None:
        """What `sys.setprofile` calls."""
        if self._on and event == "call":
            self._called[frame.f_code] += 1

    def begin(self, *_: Any) -> None:
        """Forget what was recorded and record from now on."""
        self._called = Counter()
        self._began = time.monotonic()
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
        recorded = {"functions": functions, "calls": self._called.total(), "seconds": time.monotonic() - self._began}
        part.write_text(json.dumps(recorded))
        part.rename(self._output)


class Traced:
    """A node whose functions are recorded."""

    def __init__(self, node: Node, folder: Path) -> None:
        self.node = node
        self._output = folder / f"{node.node_id}.json"
        node.program = (sys.executable, "-m", __name__, str(self._output))

    def begin(self) -> None:
        """Begin a recording."""
        self._output.unlink(missing_ok=True)
        self.node.running.send_signal(signal.SIGUSR1)

    def end(self) -> None:
        """End it; `ended` tells when it is written."""
        self.node.running.send_signal(signal.SIGUSR2)

    def ended(self) -> bool:
        """Whether it is written."""
        return self._output.exists()

    @property
    def recorded(self) -> dict[str, Any]:
        """What was recorded."""
        recorded: dict[str, Any] = json.loads(self._output.read_text())
        return recorded


if __name__ == "__main__":
    recording = Recording(Path(sys.argv.pop(1)))
    signal.signal(signal.SIGUSR1, recording.begin)
    signal.signal(signal.SIGUSR2, recording.end)
    threading.setprofile(recording.profile)
    sys.setprofile(recording.profile)
    main()
