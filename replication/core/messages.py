"""What nodes say to one another, as data. `quire.replication.net.wire` gives the bytes.

On `/peer` (rule 10), each on the socket that its sender dialled: `CoreMessage`, which the core reads, and the rest of
`PeerMessage`, which it does not. DESIGN.md has the table: who sends which to whom, when, and what its arrival proves.

On `/peer/stream` (rule 8), which the follower dials: Open, OpenAnswer, then shipments one way and Acks the other; or
CrcMismatch, where the two logs contradict each other.
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
    """The end of what is durable: (epoch of the last frame, next index). Compared in this order (Raft 5.4.1)."""

    epoch: int
    index: int  # type: ignore[assignment]  # It hides tuple.index, which nobody needs here.


@dataclass(frozen=True, slots=True)
class GenesisOffer:
    """The genesis frame, sent to a node that is not formatted."""

    frame: bytes
    committed: bool


@dataclass(frozen=True, slots=True)
class PreVote:
    """Would you promise me an epoch? Changes nothing anywhere (Raft 9.6 of the thesis).

    `transferred_by` is the promise of the live leader that asked this candidate to take over (`Campaign`, rule 4).
    """

    attempt: int
    last: Last
    transferred_by: Promise | None


@dataclass(frozen=True, slots=True)
class PreVoteAnswer:
    """`granted` counts towards an attempt; the rest says which epoch is free and whose log is the best."""

    attempt: int
    granted: bool
    held_epoch: int
    last: Last
    clock: int


@dataclass(frozen=True, slots=True)
class Campaign:
    """Campaign now (rule 4): either your log is the best of those that answered me, or I lead and transfer to you.

    `transferred_by` is the sender's promise if it leads, for the receiver to show in its pre-votes. None from a
    candidate that defers to a better log: that proves nothing.
    """

    transferred_by: Promise | None


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """Promise me this triple; `last` was taken after my own promise was durable."""

    promise: Promise
    last: Last


@dataclass(frozen=True, slots=True)
class VoteAnswer:
    """The answer to exactly `asked`. Granted: it is on my disk."""

    asked: Promise
    granted: bool
    held_epoch: int
    clock: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """I was elected under `promise` and lead. Says nothing of what is committed: that is the stream's (rule 7)."""

    promise: Promise
    sequence: int
    clock: int


@dataclass(frozen=True, slots=True)
class HeartbeatEcho:
    """I heard heartbeat `sequence` of epoch `epoch`; `held_epoch` is the one I have promised now.

    Where they are equal I follow its sender. Where `held_epoch` is higher, the sender leads no more.
    """

    epoch: int
    sequence: int
    held_epoch: int


@dataclass(frozen=True, slots=True)
class PositionReport:
    """Where a node stands, told to its leader beside each echo."""

    durable_index: int
    applied_index: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class LagReport:
    """A node's lag as its leader knows it: `since` is the timestamp of the first record that it lacks, 0 if none."""

    durable_index: int
    lag_bytes: int
    since: int


@dataclass(frozen=True, slots=True)
class Probe:
    """Are you still there? Asked of the dialler on its own link when its disk's twin comes (rule 10)."""

    nonce: int


@dataclass(frozen=True, slots=True)
class ProbeEcho:
    """I am, and this answers your probe `nonce`."""

    nonce: int


@dataclass(frozen=True, slots=True)
class ControlMessage:
    """What the control plane says to itself, in its own bytes: nothing here reads them."""

    data: bytes


CoreMessage = PreVote | PreVoteAnswer | Campaign | VoteRequest | VoteAnswer | Heartbeat | HeartbeatEcho
PeerMessage = CoreMessage | GenesisOffer | PositionReport | LagReport | Probe | ProbeEcho | ControlMessage


@dataclass(frozen=True, slots=True)
class Open:
    """A follower asks for the log from where the two logs part.

    `epochs` are its last (epoch, first index) pairs, ascending; `highest_index` ends the last of them. `fetching` is
    the index of a snapshot of which it has a part already, 0 if there is none.
    """

    promise: Promise
    epochs: tuple[tuple[int, int], ...]
    highest_index: int
    durable_index: int
    fetching: int = 0


class OpenVerb(StrEnum):
    """What a leader answers to an opening."""

    RESUME = "resume"
    TRUNCATE = "truncate"
    INSTALL = "install"
    LOST_DATA = "went_back"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class OpenAnswer:
    """Frames follow from `index`; where the verb is `truncate`, cut to there first.

    `crc32c` is the crc field of the leader's frame before `index`: the follower's must be equal. `reason` explains a
    refusal. Where the verb is `went_back`, the follower's disk acknowledged up to `index` and holds less: it has to be
    replaced. Where it is `install`, the leader has no frames from `index` on, where the logs part: what the
    follower has beyond is to be cut first, and then the snapshot at `snapshot_index` to be fetched and installed.
    """

    verb: OpenVerb
    index: int
    crc32c: int
    reason: str
    snapshot_index: int = 0


@dataclass(frozen=True, slots=True)
class Ack:
    """What this stream has matched and this disk holds: the only index that commit counts (rule 8)."""

    durable_index: int
    plain_durable_index: int
    applied_index: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class CrcMismatch:
    """The follower's frame before `index` has this crc field, verifies, and is not the leader's (rule 8)."""

    index: int
    crc32c: int


class Snapshot(NamedTuple):
    """Where a snapshot stands that was fetched whole and read: the chain's end below it, and what epochs there were."""

    index: int  # type: ignore[assignment]  # It hides tuple.index, which nobody needs here.
    epoch: int
    timestamp: int
    crc32c: int
    members_index: int | None
    epochs: tuple[tuple[int, int], ...]


StreamMessage = Open | OpenAnswer | Ack | CrcMismatch
