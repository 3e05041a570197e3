"""Exit codes, and a plain sentence on stderr.

0    done
1    refused, not found, or failed
2    the command line, the environment or the configuration is wrong
3    the cluster is not available; nothing was written
4    the outcome is unknown
130  interrupted by Ctrl-C; `tail` and `status --watch`, which run until then, end with 0
"""

import sys
from enum import IntEnum


class Exit(IntEnum):
    """What the process ends with."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    UNAVAILABLE = 3
    OUTCOME_UNKNOWN = 4
    INTERRUPTED = 130


def complain(sentence: str) -> None:
    """Write one sentence to stderr."""
    print(f"quire: {sentence}", file=sys.stderr, flush=True)
