"""Rule 10: which process speaks for a disk.

A second connection with the same disk id and another incarnation is either the same node, restarted, whose first
connection nobody has noticed to be dead; or a twin: a copy of the data_dir that runs beside the original, and would
promise and acknowledge a second time with one disk. Which of them it is, the first connection says:

    newcomer comes -> the links of other incarnations are probed, each with the newcomer's nonce
    one of them answers that nonce        -> the newcomer is refused, with an alarm
    all of them end, or do not answer     -> the newcomer replaces them

A nonce is new with each newcomer, so an answer proves that the first lived after the second came. No I/O here:
`LinkServer` sends, waits and hangs up.
"""

from typing import NamedTuple


class Caller(NamedTuple):
    """A process as its hello names it."""

    disk_id: bytes
    incarnation: int


class Knock(NamedTuple):
    """Who must be asked before a newcomer is let in."""

    nonce: int
    links: list[int]


class Twins:
    """The links that stand, by number, and the probes that are out."""

    def __init__(self) -> None:
        self._standing: dict[int, Caller] = {}
        self._probed: dict[int, list[int]] = {}
        self._nonce = 0

    def came(self, caller: Caller) -> Knock | None:
        """Whom to probe before this caller is let in; None: nobody, it may enter."""
        rivals = [
            link
            for link, standing in self._standing.items()
            if standing.disk_id == caller.disk_id and standing.incarnation != caller.incarnation
        ]
        if not rivals:
            return None
        self._nonce += 1
        self._probed[self._nonce] = rivals
        return Knock(self._nonce, rivals)

    def answered(self, link: int, nonce: int) -> bool:
        """Whether this answer proves that a link which was asked with this nonce lives: the newcomer is refused."""
        return link in self._probed.get(nonce, ())

    def decided(self, knock: Knock) -> None:
        """Forget a knock: its answers prove nothing any more."""
        self._probed.pop(knock.nonce, None)

    def stands(self, link: int, caller: Caller) -> None:
        """A link was let in."""
        self._standing[link] = caller

    def ended(self, link: int) -> None:
        """A link is gone: it answers no probe."""
        self._standing.pop(link, None)
