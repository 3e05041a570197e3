"""Where a replay and the cluster diverge: the first index whose result differs, as far as the kept replies show it.

A digest shows that something before it differs, but not what. A snapshot, however, keeps the last `session_window`
replies of every session, so that retries can be answered. They are compared with the replay's replies one by one, and
the first that differs belongs to an index in the log. If every reply before it is kept and equal, it is the first of
all; otherwise one of the replies that are not kept may differ, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from quire.log import Frame, Kind, decode_runs
from quire.log.json_text import to_json
from quire.sm import Refused, Sessions


class Difference(NamedTuple):
    """At a boundary, a recorded digest or state differs from the replay's."""

    boundary: int
    source: str
    """Where it was recorded: a node's address, or a snapshot."""
    found: str
    """The replay's digest."""
    expected: str
    reason: str
    first_index: int | None = None
    """The first record whose result is known to differ; None if no kept reply shows it."""
    found_result: str = ""
    expected_result: str = ""

    def sentence(self) -> str:
        """The difference as one line of text."""
        if self.first_index is None:
            return (
                f"at index {self.boundary}, {self.source} has digest {self.expected}, the replay {self.found}: "
                f"{self.reason}"
            )
        return (
            f"the first differing result is at index {self.first_index}: {self.expected_result} in {self.source}, "
            f"{self.found_result} in the replay"
        )


class _Reply(NamedTuple):
    """The first reply of a session that differs."""

    session: int
    sequence: int
    found: object
    expected: object


class _Compared:
    """The replies that are kept by both of two session tables at one boundary."""

    def __init__(self, own: Sessions, recorded: Sessions) -> None:
        self.differing: dict[tuple[int, int], _Reply] = {}
        """By session and sequence, the first of each session."""
        self._equal: dict[int, range] = {}
        self._heirs = dict(recorded.all_fenced())
        tables = {session: replies for session, _, replies in own.all_open()}
        for session, _, replies in recorded.all_open():
            if session not in tables:
                continue
            ours = tables[session]
            first = max(replies.kept_from, ours.kept_from)
            end = min(replies.recorded_end, ours.recorded_end)
            pairs = zip(ours.read(first, end), replies.read(first, end), strict=True)
            for sequence, (found, expected) in enumerate(pairs, first):
                if _shown(found.reply) != _shown(expected.reply):
                    self.differing[session, sequence] = _Reply(session, sequence, found.reply, expected.reply)
                    end = sequence
                    break
            self._equal[session] = range(first, end)

    def heir(self, session: int) -> int:
        """The session that has the replies of this one: itself, or the session that took over its name."""
        while session in self._heirs:
            session = self._heirs[session]
        return session

    def is_equal(self, session: int, sequence: int) -> bool:
        """Whether both tables keep this reply, and it is the same."""
        return sequence in self._equal.get(session, ())


def first_difference(difference: Difference, own: Sessions, recorded: Sessions, frames: Iterable[Frame]) -> Difference:
    """The difference, with the first index that the replies at its boundary show; `frames` are of its stretch."""
    compared = _Compared(own, recorded)
    unknown: int | None = None
    """The first record whose reply is not kept by both."""
    for index, session, sequence in _numbered(frames):
        heir = compared.heir(session)
        reply = compared.differing.get((heir, sequence))
        if reply is None:
            if unknown is None and not compared.is_equal(heir, sequence):
                unknown = index
            continue
        found, expected = _shown(reply.found), _shown(reply.expected)
        if unknown is None:
            return difference._replace(first_index=index, found_result=found, expected_result=expected)
        reason = f"the first differing result is in [{unknown}, {index + 1}): at index {index} it is {expected} there "
        reason += f"and {found} in the replay, and some replies before that are not kept"
        return difference._replace(reason=reason, found_result=found, expected_result=expected)
    if compared.differing:
        reason = "a reply of the previous stretch differs"
    elif unknown is None:
        reason = "every reply of the stretch is kept and equal"
    else:
        reason = (
            f"the first differing result is in [{unknown}, {difference.boundary}): no reply that the snapshot keeps "
        )
        reason += "differs, so it is older than those, or of a session that is not open there"
    return difference._replace(reason=reason)


def _numbered(frames: Iterable[Frame]) -> Iterator[tuple[int, int, int]]:
    """(index, session, sequence) of the records that have a result; session 0 if they were sent under none."""
    for header, payload in frames:
        if header.kind == Kind.RUNS:
            index = header.index
            for session, sequence, count in decode_runs(payload, header.count)[0]:
                for position in range(count):
                    yield index + position, session, sequence + position
                index += count
        elif header.kind != Kind.SYSTEM:
            for position in range(header.count):
                yield header.index + position, header.session, header.sequence + position


def _shown(reply: object) -> str:
    if isinstance(reply, Refused):
        return f"{reply.code}: {reply.text}"
    return to_json(reply).decode()
