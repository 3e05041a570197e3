"""Whether this node's machine computes what a majority of the voters computes: the other reason for level 5.

Every hello carries the fingerprint of its sender's code. Of the voters that are heard, those with the same fingerprint
count as one group, and so do all whose code the operator has accepted; the bar is a majority of all voters.

    a majority has        this node's code     it is
    one code              another              unfit, as with a failed machine; if it leads, it refuses commands
    one code              the same             fit
    no code in common     any                  fit, unless the codes differ and a voter may still be heard
    (any)                 unknown              fit

A voter is heard while the link to it is up, and for an election timeout after that: a link that breaks for a moment
must not let a leader answer that has just been found to run other code. One that has never been heard may still be, for
an election timeout after this node's start: otherwise a node with other code would lead and answer before the link to
the voter that completes the majority is up.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from ..members import Member, Members

UNKNOWN = b""
OTHER_CODE = "its machine's code is not that of a majority of the voters"
UNDECIDED = "its machine's code differs from that of other voters, and not all of them have been heard yet"


@dataclass(slots=True)
class Codes:
    """The fingerprints of the voters' code. `majority` is the group of a majority, as of the last `judge`.

    `may_be_kept`: whether a state computed here may become a snapshot, as of then. It may if a majority runs this code.
    If no code has a majority, accepted code counts, but not before the voters had time to be heard, nor after a
    majority was seen to run other code: a first start accepts whatever it finds.
    """

    own: bytes = UNKNOWN
    accepted: frozenset[bytes] = frozenset()
    majority: bytes = UNKNOWN
    may_be_kept: bool = False
    _was_other: bool = False
    _heard: dict[str, bytes] = field(default_factory=dict)
    _silent_since: dict[str, int] = field(default_factory=dict)
    _began: int | None = None
    _sentence: str = ""
    _judged: Members | None = None
    """The members for which the sentence holds until a link or this node's code changes; None if time matters, too."""

    def known(self, own: bytes, accepted: frozenset[bytes]) -> None:
        """This node runs this code, and an operator accepted these."""
        self.own, self.accepted, self._was_other, self._judged = own, accepted, False, None

    def linked(self, node_id: str, code: bytes) -> None:
        """The hello of a peer names this code."""
        self._heard[node_id] = code
        self._silent_since.pop(node_id, None)
        self._judged = None

    def unlinked(self, node_id: str, now: int) -> None:
        """The link to a peer is down."""
        self._silent_since[node_id] = now
        self._judged = None

    def judge(
        self,
        members: Members,
        is_me: Callable[[Member], bool],
        is_linked: Callable[[Member], bool],
        now: int,
        patience: int,
    ) -> str:
        """Why this node's code is not a majority's, in one sentence; empty if it is, or may be. Called at each tick."""
        if self._judged is members:
            return self._sentence
        if self._began is None:
            self._began = now
        groups: dict[str, bytes] = {}
        may_be_heard, has_settled = False, now - self._began >= patience
        for voter in members.voters():
            node_id, silent_since = voter.node_id, self._silent_since.get(voter.node_id)
            is_silent = silent_since is None or now - silent_since >= patience
            if is_me(voter):
                groups[node_id] = self._group(self.own)
            elif is_linked(voter) or not is_silent:
                groups[node_id] = self._group(self._heard.get(node_id, UNKNOWN))
                has_settled = has_settled and is_silent
            elif node_id not in self._heard:
                may_be_heard |= now - self._began < patience
        self._sentence = self._compared(members, groups, may_be_heard=may_be_heard, has_settled=has_settled)
        self._judged = members if has_settled else None
        return self._sentence

    def _compared(self, members: Members, groups: dict[str, bytes], *, may_be_heard: bool, has_settled: bool) -> str:
        known, own = set(groups.values()) - {UNKNOWN}, self._group(self.own)
        self.majority = next((group for group in known if _has_majority(members, groups, group)), UNKNOWN)
        if own in (UNKNOWN, self.majority):
            self.may_be_kept, self._was_other = True, False
            return ""
        if self.majority != UNKNOWN:
            self.may_be_kept, self._was_other = False, True
            return OTHER_CODE
        self.may_be_kept = self.own in self.accepted and not self._was_other and has_settled
        return UNDECIDED if may_be_heard and known - {own} else ""

    @property
    def is_majority(self) -> bool:
        """Whether a majority runs this node's code, as of the last `judge`."""
        return self.majority != UNKNOWN and self.majority == self._group(self.own)

    def _group(self, code: bytes) -> bytes:
        return min(self.accepted) if code in self.accepted else code


def _has_majority(members: Members, groups: dict[str, bytes], group: bytes) -> bool:
    return members.is_majority(lambda voter: groups.get(voter.node_id) == group)
