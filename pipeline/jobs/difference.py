"""Where a replay and the cluster part: the first index whose result is another, as far as anything kept tells it.

A digest says that something before it differs, not what. But a snapshot keeps the replies of every session, the last
`session_window` of each, so that retries are answered: so they are compared with those of the replay, one by one, and
the first that differs has an index in the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from quire.log import Frame, Kind, decode_runs
from quire.log.json_text import to_json
from quire.sm import Refused, Sessions


class Difference(NamedTuple):
    """At a border, somebody's digest is not the replay's."""

    border: int
    source: str
    """Whose."""
    found: str
    """The replay's digest."""
    expected: str
    reason: str
    first_index: int | None = None
    """Of the first record whose result is known to differ; None where nothing that is kept tells it."""
    found_result: str = ""
    expected_result: str = ""

    def sentence(self) -> str:
        """For people."""
        if self.first_index is None:
            return (
                f"at index {self.border}, {self.source} has digest {self.expected}, the replay {self.found}: "
                f"{self.reason}"
            )
        return (
            f"the first differing result is that of index {self.first_index}: {self.expected_result} in {self.source}, "
            f"{self.found_result} in the replay"
        )


class _Reply(NamedTuple):
    """One session's first reply that differs."""

    session: int
    sequence: int
    found: Any
    expected: Any


def first_difference(difference: Difference, own: Sessions, recorded: Sessions, frames: Iterable[Frame]) -> Difference:
    """The difference with the first index that the replies at its border tell; `frames` are the stretch's."""
    tables = {session: replies for session, _, replies in own.all_open()}
    differing: dict[tuple[int, int], _Reply] = {}
    for session, _, replies in recorded.all_open():
        if session not in tables:
            continue
        ours = tables[session]
        first = max(replies.kept_from, ours.kept_from)
        end = min(replies.recorded_end, ours.recorded_end)
        pairs = zip(ours.read(first, end), replies.read(first, end), strict=True)
        for sequence, (found, expected) in enumerate(pairs, first):
            if _shown(found.reply) != _shown(expected.reply):
                differing[session, sequence] = _Reply(session, sequence, found.reply, expected.reply)
                break
    if not differing:
        reason = "no reply that its snapshot keeps differs: the wrong result is older than those, or has no session"
        return difference._replace(reason=reason)
    for index, session, sequence in _numbered(frames):
        reply = differing.get((session, sequence))
        if reply is not None:
            return difference._replace(
                first_index=index, found_result=_shown(reply.found), expected_result=_shown(reply.expected)
            )
    reason = "a reply of the stretch before differs"
    return difference._replace(reason=reason)


def _numbered(frames: Iterable[Frame]) -> Iterator[tuple[int, int, int]]:
    """(index, session, sequence) of the records that have a session."""
    for header, payload in frames:
        if header.kind == Kind.RUNS:
            index = header.index
            for session, sequence, count in decode_runs(payload, header.count)[0]:
                for place in range(count if session else 0):
                    yield index + place, session, sequence + place
                index += count
        elif header.session:
            for place in range(header.count):
                yield header.index + place, header.session, header.sequence + place


def _shown(reply: Any) -> str:
    if isinstance(reply, Refused):
        return f"{reply.code}: {reply.text}"
    return to_json(reply).decode()
