"""The output of commands: exit codes, sentences on stderr, values as text on stdout.

0    done
1    refused, not found, or failed
2    the command line, the environment or the configuration is invalid
3    the cluster is unavailable; nothing was written
4    the outcome is unknown
130  interrupted by Ctrl-C; except `tail` and `status --watch`, which run until Ctrl-C and exit with 0
"""

import sys
from enum import IntEnum

from quire.log.json_text import to_json as encode

from ..terminal import escaped, escaped_json


class Exit(IntEnum):
    """Exit codes of `quire`."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    UNAVAILABLE = 3
    OUTCOME_UNKNOWN = 4
    REMOVED = 5
    INTERRUPTED = 130


def say(*cells: str) -> None:
    """Write one line to stdout, with tabs between its cells."""
    print("\t".join(map(escaped, cells)), flush=True)


def complain(sentence: str) -> None:
    """Write one sentence to stderr, on one line."""
    print(f"quire: {escaped(sentence)}", file=sys.stderr, flush=True)


def printable(value: object) -> str:
    """A value for people, on one line: strings without quotes, everything else as JSON."""
    return escaped(value) if isinstance(value, str) else to_json(value)


def to_json(value: object) -> str:
    """A value as one line of JSON, in the forms of `quire.log.json_text`, without control characters."""
    return escaped_json(encode(value).decode())
