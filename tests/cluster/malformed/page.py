"""`docs/malformed.md`, made from the table: `python -m tests.cluster.malformed.page > docs/malformed.md`."""

import sys
from collections.abc import Iterator

from tests.cluster.malformed.case import JSON, MSGPACK, NDJSON, OCTETS, Case, OnStream, Raw
from tests.cluster.malformed.generated import GENERATED
from tests.cluster.malformed.requests import REQUESTS
from tests.cluster.malformed.wire import BODIES, FRAMES, LINES, MESSAGES, TAKEN

SHORT = {JSON: "JSON", NDJSON: "NDJSON", MSGPACK: "msgpack", OCTETS: "bytes"}
SHOWN_BYTES = 80
TYPE = "urn:quire:problem:"

HEAD = """# Malformed input

What a node answers to what it cannot take. Made by `python -m tests.cluster.malformed.page > docs/malformed.md` from
the table that the tests ask a real cluster of three nodes, through leader and follower alike. Of each line they check
that the answer is this one, that the leader's log ends where it ended before, and that no node writes an error into its
journal; so nothing here is a 500. What hypothesis makes is made anew in each run.

A name like `malformed` is the end of a problem's type: `{type}malformed`. The machine is `arithmetic`.
"""


def malformed_page() -> str:
    """The whole page, as Markdown."""
    parts = [HEAD.format(type=TYPE)]
    for title, cases in REQUESTS:
        parts += _table(title, ((_shown(case), _answer(case.status, case.problem)) for case in cases))
    made = ((many.says, _answer(many.status, many.problem)) for many in GENERATED)
    parts += _table("Kinds of requests that hypothesis makes", made)
    parts += _raw("Bodies that are not as long as they say", BODIES)
    parts += _raw("What is no HTTP, or odd", LINES)
    messages = ((case.says, f"`{case.problem}` in a message, and close code {case.code}") for case in MESSAGES)
    parts += _table("Messages on `/commands/stream`", messages)
    parts += _table("Frames on `/commands/stream`", ((case.says, f"close code {case.code}") for case in FRAMES))
    parts += _raw("Taken, although it is odd", TAKEN)
    return "\n".join(parts)


def count_of_inputs() -> int:
    """How many lines the tables have, but for what is taken."""
    listed: list[Raw | OnStream] = [*BODIES, *LINES, *MESSAGES, *FRAMES]
    return len(listed) + len(GENERATED) + sum(len(cases) for _, cases in REQUESTS)


def _raw(title: str, cases: list[Raw]) -> list[str]:
    return _table(title, ((case.says, _answer(case.status, case.problem)) for case in cases))


def _table(title: str, lines: Iterator[tuple[str, str]]) -> list[str]:
    rows = [f"| {given.replace('|', '&#124;')} | {answer} |" for given, answer in lines]
    return ["\n".join([f"## {title}\n", "| what is sent | answer |", "|---|---|", *rows]) + "\n"]


def _answer(status: int, problem: str) -> str:
    return f"{status} {problem if ' ' in problem else f'`{problem}`'}" if problem else str(status)


def _shown(case: Case) -> str:
    """A request in a line."""
    ask = case.ask
    words = [f"`{ask.method} {ask.path}`", *(f"`{name}: {value}`" for name, value in ask.headers.items())]
    if ask.content_type in SHORT:
        words.append(SHORT[ask.content_type])
    elif ask.body is not None:
        words.append("no content type" if ask.content_type is None else f"`Content-Type: {ask.content_type}`")
    if case.says:
        words.append(case.says)
    elif ask.body is not None:
        words.append(_literal(ask.body))
    return ", ".join(words)


def _literal(body: bytes) -> str:
    if not body:
        return "nothing"
    if len(body) > SHOWN_BYTES:
        raise ValueError(f"{len(body)} bytes stand on no page: the case must say what they are")
    text = "".join(chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02x}" for byte in body)
    return f"`{text}`".replace("\\x0a", "\\n")


if __name__ == "__main__":
    sys.stdout.write(malformed_page())
