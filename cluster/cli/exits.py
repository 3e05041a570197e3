"""Exit codes, and how an error becomes one plain sentence on stderr.

0    done
1    refused, not found, or failed
2    the command line, the environment or the configuration is wrong
3    the cluster is not available; nothing was written
4    the outcome is unknown
130  interrupted by Ctrl-C; `tail` and `status --watch`, which run until then, end with 0
"""

import sys
from enum import IntEnum

from ..client import ClientError, OutcomeUnknown, Unavailable


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


def exit_of(error: ClientError) -> Exit:
    """Say what the error was and what to do; return the code to end with."""
    match error:
        case OutcomeUnknown():
            complain(f"{error}; look at the state or the records before you send it again")
            return Exit.OUTCOME_UNKNOWN
        case Unavailable():
            complain(f"{error}; check --server and `quire status`, then try again")
            return Exit.UNAVAILABLE
        case _:
            complain(str(error))
            return Exit.FAILED
