"""The entry point. `quire serve` and `--version` bypass typer, which they do not need."""

import gc
import signal
import sys
from importlib import import_module
from typing import NoReturn

import quire

COLLECT_AFTER = 50_000
"""Objects made before garbage is collected. Imports make many and no garbage, and Python's 700 cost 5%."""


def main() -> NoReturn:
    """Run the command that the process's arguments name, and exit with its code."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the process at once while modules are imported.
    arguments = sys.argv[1:]
    if arguments[:1] == ["serve"]:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # A reload during the start ends no node.
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        _import_structlog_without_rich()
        from ..serve.node_service import serve

        sys.exit(serve(arguments[1:]))
    if arguments == ["--version"]:
        from .output import ending, say

        sys.exit(ending(lambda: say(f"quire {quire.__version__}")))
    gc.set_threshold(COLLECT_AFTER)
    from .commands import run

    code = run()
    gc.freeze()  # The process ends: what it holds need not be searched for garbage once more.
    sys.exit(code)


def _import_structlog_without_rich() -> None:
    # structlog.dev imports rich if it is installed: 60 ms and several MB that a node has no use for.
    sys.modules["rich"] = None  # type: ignore[assignment]
    import_module("structlog")
    del sys.modules["rich"]


if __name__ == "__main__":
    main()
