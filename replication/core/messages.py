"""What nodes send each other, as data; `quire.replication.net.wire` encodes it.

On `/peer` (rule 10), each on the link that its sender dialled: `CoreMessage`, which the core reads, and the rest of
`PeerMessage`, which it does not. `replication/DESIGN.md` has the table of who sends what, when, and what it proves.

On `/peer/stream` (rule 8), which the follower dials: Open, OpenAnswer, then shipments one way and Acks the other; or
CrcMismatch, if the two logs contradict each other.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Promise:
    """A node's durable vote: it follows no lower epoch, and in this one nobody but `candidate` (rule 1).

    Raft's (currentTerm, votedFor) with the candidate's incarnation added. A candidate that crashed after it collected
    promises and before it led has forgotten them, so a promise to it must not count for its next process.
    """

    epoch: int
    candidate: str
    incarnation: int


NO_PROMISE = Promise(0, "", 0)


class Last(NamedTuple):
    """The durable end of a log: (epoch of the last frame, next index), compared in this order (Raft 5.4.1)."""

    epoch: int
    index: int  # type: ignore[assignment]  # It hides tuple.index, which nobody needs here.


@dataclass(frozen=True, slots=True)
class GenesisOffer:
    """The genesis frame, sent to a node that is not formatted."""

    frame: bytes
    committed: bool


@dataclass(frozen=True, slots=True)
class Removal:
    """Tells a removed node that the record at `index`, which is committed, removed its disk."""

    index: int


@dataclass(frozen=True, slots=True)
class Directory:
    """The addresses of the members, each (node_id, address), in the sender's record at `index`: where to find peers."""

    index: int
    addresses: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class PreVote:
    """Asks whether the receiver would promise an epoch. It has no effect (section 9.6 of the Raft thesis).

    `transferred_by` is the promise of the live leader that asked this candidate to take over (`Campaign`, rule 4).
    """

    attempt: int
    last: Last
    transferred_by: Promise | None
    fitness: int = 0


@dataclass(frozen=True, slots=True)
class PreVoteAnswer:
    """`granted` counts towards an attempt; the rest says which epoch is free and which log is the best."""

    attempt: int
    granted: bool
    held_epoch: int
    last: Last
    clock: int
    fitness: int = 0


@dataclass(frozen=True, slots=True)
class Campaign:
    """Campaign now (rule 4): either your log is the best of those that answered me, or I lead and transfer to you.

    `transferred_by` is the sender's promise if it leads, for the receiver to show in its pre-votes. None from a
    candidate that defers to a better log: that proves nothing.
    """

    transferred_by: Promise | None


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """Promise me this triple. `last` was taken after my own promise was durable."""

    promise: Promise
    last: Last


@dataclass(frozen=True, slots=True)
class VoteAnswer:
    """The answer to `asked`. If granted, that promise is on my disk."""

    asked: Promise
    granted: bool
    held_epoch: int
    clock: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """I was elected under `promise`, and lead. The commit_index is sent on streams only (rule 7)."""

    promise: Promise
    sequence: int
    clock: int
    fitness: int = 0


@dataclass(frozen=True, slots=True)
class HeartbeatEcho:
    """I heard heartbeat `sequence` of `epoch`; `held_epoch` is the epoch that I have promised now.

    If they are equal, I follow the sender. If `held_epoch` is higher, the sender no longer leads.
    """

    epoch: int
    sequence: int
    held_epoch: int
    fitness: int = 0
    clock: int = 0


@dataclass(frozen=True, slots=True)
class PositionReport:
    """A node's position, sent to its leader with each echo, and to all others each second (rule 17)."""

    durable_index: int
    applied_index: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class LagReport:
    """A node's lag as its leader knows it. `since` is the timestamp of the first record that it lacks, 0 if none."""

    durable_index: int
    lag_bytes: int
    since: int


@dataclass(frozen=True, slots=True)
class Probe:
    """Are you alive? Sent back on the dialler's own link when another process of its disk connects (rule 10)."""

    nonce: int


@dataclass(frozen=True, slots=True)
class ProbeEcho:
    """I am alive: the answer to probe `nonce`."""

    nonce: int


@dataclass(frozen=True, slots=True)
class ControlMessage:
    """A message between two nodes' control planes, in their own encoding."""

    data: bytes


CoreMessage = PreVote | PreVoteAnswer | Campaign | VoteRequest | VoteAnswer | Heartbeat | HeartbeatEcho | Removal
PeerMessage = CoreMessage | GenesisOffer | Directory | PositionReport | LagReport | Probe | ProbeEcho | ControlMessage


@dataclass(frozen=True, slots=True)
class Open:
    """A follower asks for the log from the index at which the two logs diverge.

    `epochs` are its newest (epoch, first index) pairs, ascending; the last of them ends at `highest_index`. `fetching`
    is the index of a snapshot of which it already has a part, 0 if there is none.
    """

    promise: Promise
    epochs: tuple[tuple[int, int], ...]
    highest_index: int
    durable_index: int
    fetching: int = 0
    reason: str = ""


class OpenVerb(StrEnum):
    """A leader's answer to an opening."""

    RESUME = "resume"
    TRUNCATE = "truncate"
    INSTALL = "install"
    LOST_DATA = "went_back"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class OpenAnswer:
    """Frames follow from `index`, where the logs diverge.

    `crc32c` is the crc field of the leader's frame before `index`: the follower's must be equal. By the verb:

    - RESUME: the follower's log ends at `index`.
    - TRUNCATE: it truncates its log to `index` first.
    - INSTALL: the leader's log begins above `index`. The follower truncates to `index`, then fetches and installs the
      snapshot at `snapshot_index`.
    - LOST_DATA: the follower's disk acknowledged up to `index` and holds less. It has to be replaced.
    - REFUSE: `reason` says why.
    """

    verb: OpenVerb
    index: int
    crc32c: int
    reason: str
    snapshot_index: int = 0


@dataclass(frozen=True, slots=True)
class Ack:
    """`durable_index` is what this stream has matched and this disk holds: only that counts for a commit (rule 8)."""

    durable_index: int
    plain_durable_index: int
    applied_index: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class CrcMismatch:
    """The follower's frame before `index` has this crc field and verifies, but is not the leader's (rule 8)."""

    index: int
    crc32c: int


class Snapshot(NamedTuple):
    """A snapshot that was fetched whole and read: the end of the frame chain below it, and the epochs there."""

    index: int  # type: ignore[assignment]  # It hides tuple.index, which nobody needs here.
    epoch: int
    timestamp: int
    crc32c: int
    members_index: int | None
    epochs: tuple[tuple[int, int], ...]


StreamMessage = Open | OpenAnswer | Ack | CrcMismatch
