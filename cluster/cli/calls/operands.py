"""The operands of commands: words of the command line as the values of a command.

A word is text as it stands: `01234`, `null` and `true` are texts. Where a command of a built-in machine takes a number,
a word that spells an int of 64 bits becomes one; any other word stays text, which is how the arithmetic machine takes
decimals. With --json, each operand is JSON.
"""

import re
from collections.abc import Mapping, Sequence

from ..connection import fail_usage

NUMBERS: Mapping[str, Mapping[str, int]] = {
    "arithmetic": {"add": 0, "sub": 0, "mul": 0, "div": 0},
    "kv": {"incr": 1},
}
"""The machines' commands that take a number, and which of their operands it is."""

_INT = re.compile(r"-?[0-9]{1,20}")


def command_of(operation: str, words: Sequence[str], machine: str) -> list[object]:
    """The command of these words, for a cluster with this machine."""
    position = NUMBERS.get(machine, {}).get(operation)
    return [operation, *(number_of(word) if at == position else word for at, word in enumerate(words))]


def depends_on_machine(operation: str, words: Sequence[str]) -> bool:
    """Whether two machines would get different commands from these words."""
    return any(command_of(operation, words, machine) != [operation, *words] for machine in NUMBERS)


def json_command_of(first: str, rest: Sequence[str]) -> object:
    """The command with --json: one JSON value, or an operation and JSON operands. Exits if one is not."""
    if not rest and first.lstrip().startswith(("[", "{", '"')):
        return json_value_of(first)
    return [first, *map(json_value_of, rest)]


def json_value_of(text: str) -> object:
    """The value of an argument that is JSON. If it is not, print why and exit."""
    from ...errors import Malformed
    from ...values import DEPTH_LIMIT, decode_json

    try:
        return decode_json(text.encode(errors="surrogateescape"), DEPTH_LIMIT)
    except Malformed as error:
        reason = error.reason.removeprefix("the body is not JSON: ")
        fail_usage(f"{text!r} cannot be sent as JSON: {reason}; a string needs its own quotes, as in '\"text\"'")


def number_of(word: str) -> int | str:
    """An int if the word spells one of 64 bits; otherwise the word itself."""
    if _INT.fullmatch(word) and -(2**63) <= int(word) < 2**64:
        return int(word)
    return word
