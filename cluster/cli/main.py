"""The entry point. `quire serve` bypasses typer and rich, which a node never needs."""

import signal
import sys
from importlib import import_module
from typing import NoReturn


def main() -> NoReturn:
    """Run the command that the process's arguments name, and exit with its code."""
    if sys.argv[1:2] == ["serve"]:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # A reload during the start ends no node.
        _import_structlog_without_rich()
        from ..serve.node_service import serve  # noqa: PLC0415

        sys.exit(serve(sys.argv[2:]))
    from .commands import run  # noqa: PLC0415

    run()
    sys.exit(0)


def _import_structlog_without_rich() -> None:
    # structlog.dev imports rich if it is installed: 60 ms and several MB that a node has no use for.
    sys.modules["rich"] = None  # type: ignore[assignment]
    import_module("structlog")
    del sys.modules["rich"]


if __name__ == "__main__":
    main()
