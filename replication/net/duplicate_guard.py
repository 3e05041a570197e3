"""Rule 10: which process may act for a disk.

A second link with the same disk id and another incarnation is one of two things: the same node after a restart, whose
dead old link was not noticed yet; or a duplicate, a copy of the data_dir that runs at the same time as the original and
would promise and acknowledge a second time for one disk. The first link decides:

    a caller comes -> the links of other incarnations are probed, each with this round's nonce
    one of them answers with that nonce   -> the caller is refused, with an alarm
    all of them end, or do not answer     -> the caller replaces them

Every round has a new nonce, so an answer proves that the first process was alive after the second one came. No I/O
here: `LinkServer` sends, waits and hangs up.
"""

from typing import NamedTuple


class Caller(NamedTuple):
    """A process, as its hello names it."""

    disk_id: bytes
    incarnation: int


class ProbeRound(NamedTuple):
    """The links to probe, with this nonce, before a caller is admitted."""

    nonce: int
    links: list[int]


class DuplicateNodeGuard:
    """The open links, by number, and the probe rounds in progress."""

    def __init__(self) -> None:
        self._open: dict[int, Caller] = {}
        self._rounds: dict[int, list[int]] = {}
        self._nonce = 0

    def begin_round(self, caller: Caller) -> ProbeRound | None:
        """The links to probe before this caller is admitted; None: it may be admitted at once."""
        rivals = [
            link
            for link, other in self._open.items()
            if other.disk_id == caller.disk_id and other.incarnation != caller.incarnation
        ]
        if not rivals:
            return None
        self._nonce += 1
        self._rounds[self._nonce] = rivals
        return ProbeRound(self._nonce, rivals)

    def is_alive(self, link: int, nonce: int) -> bool:
        """Whether this answer proves that a probed link is alive: the caller of that round is then refused."""
        return link in self._rounds.get(nonce, ())

    def end_round(self, probes: ProbeRound) -> None:
        """Forget a round: answers to it prove nothing any more."""
        self._rounds.pop(probes.nonce, None)

    def opened(self, link: int, caller: Caller) -> None:
        """A link was admitted."""
        self._open[link] = caller

    def closed(self, link: int) -> None:
        """A link ended: it answers no probe."""
        self._open.pop(link, None)
