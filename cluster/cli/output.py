"""What a command leaves behind: its exit code, sentences on stderr, and values as text on stdout.

0    done
1    refused, not found, or failed
2    the command line, the environment or the configuration is invalid
3    the cluster is not available; nothing was written
4    the outcome is unknown
130  interrupted by Ctrl-C; except `tail` and `status --watch`, which run until Ctrl-C and exit with 0
"""

import sys
from enum import IntEnum
from typing import Any

from quire.log.json_text import to_json as encode


class Exit(IntEnum):
    """Exit codes of `quire`."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    UNAVAILABLE = 3
    OUTCOME_UNKNOWN = 4
    INTERRUPTED = 130


def complain(sentence: str) -> None:
    """Write one sentence to stderr."""
    print(f"quire: {sentence}", file=sys.stderr, flush=True)


def printable(value: Any) -> str:
    """A value for people: strings as they are, everything else as JSON."""
    return value if isinstance(value, str) else to_json(value)


def to_json(value: Any) -> str:
    """A value as one line of JSON, in the forms of `quire.log.json_text`."""
    return encode(value).decode()
