"""Why a node refuses or fails a request. Only `cluster/http/problems.py` maps these errors to HTTP.

The classes say whose fault it was; the values are attributes:

- the caller's: Malformed, CommandsRefused, QueryRefused, LimitExceeded, WrongIndex, Truncated, SequenceRefused,
  SessionRefused, SessionOwned, SessionUnknown, CursorUnknown, CursorRefused, CursorOwned, HoldsFull, NodeUnknown,
  SnapshotUnknown, MembersFull, ChangeUnderWay, ChangeRefused, AddressUnusable, OutOfBounds, NotCommitted, Expired,
  NotInThisMode, BodyTimeout, HostRefused, OriginRefused, Unauthorized, Forbidden
- temporary, so retry here or elsewhere (nothing was written): NotLeader, NoLeader, LeaderUnreachable, Overloaded,
  NodeStopping, TransferFailed, NodeUnreachable, DiskFullError, ResourcesExhaustedError, StateUnavailable, CorruptHere,
  SessionsFull, CursorsFull, FeatureNotInUse, SnapshotFailed, and of a change of members: LeaderNotServing,
  NodeNotConnected, NodeBehind, VotersUnheard
- the machine's: CheckFailedError (nothing was written), MachineFailed
- the outcome is unknown: OutcomeUnknown
"""

import shlex
from collections.abc import Sequence

from quire import QuireError

RETRY_AFTER_S = 1.0
"""The default Retry-After; most temporary errors are over by then."""
SHOWN_LENGTH = 60
"""How much of an untrusted value an error message quotes."""
NO_THREAD = "can't start new thread"
"""What Python's RuntimeError says then."""


class ClusterError(QuireError):
    """The base class of what the cluster package raises."""


def _shown(text: str) -> str:
    """An untrusted value, shortened for an error message."""
    return ascii(text) if len(text) <= SHOWN_LENGTH else f"{text[:SHOWN_LENGTH]!a}..."


class Unauthorized(ClusterError):
    """The caller has shown no token, or none that has an effect; nothing was done."""

    def __init__(self, node_id: str, why: str, *, shown: bool) -> None:
        super().__init__(f"{node_id} {why}")
        self.reason = why
        self.shown = shown
        """Whether there was a token at all."""


class Forbidden(ClusterError):
    """The caller's role may not do this; nothing was done."""

    def __init__(self, has: str, needs: str) -> None:
        super().__init__(f"this needs the role {needs}, and the caller has {has}")
        self.has = has
        self.needs = needs


class Malformed(ClusterError):
    """The request is malformed or not valid for this call; nothing was written."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class HostRefused(ClusterError):
    """The request's Host does not name a member; nothing was done. `name` is the name in it, None without one."""

    def __init__(self, host: str, name: str | None) -> None:
        self.host = _shown(host)
        hint = f"if it should be, start it with --allow {name or 'NAME'}"
        super().__init__(f"this node is not known as {self.host}; {hint}")


class OriginRefused(ClusterError):
    """A web page that is not allowed sent the request; nothing was done. `allow` is the setting that would allow it."""

    def __init__(self, origin: str | None, reason: str, allow: str = "") -> None:
        self.origin = None if origin is None else _shown(origin)
        self.reason = reason
        hint = f"; if it may use this node, start it with --allow {allow}" if allow else ""
        super().__init__(f"{reason}{'' if self.origin is None else f' ({self.origin})'}{hint}")


class CommandsRefused(ClusterError):
    """The machine's check refused the request; nothing was written. `refused` is [[position, code, text], ...]."""

    def __init__(self, refused: Sequence[Sequence[object]]) -> None:
        position, code, text = refused[0]
        more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
        super().__init__(f"command {position} was refused, {code}: {text}{more}; nothing was written")
        self.refused = refused


class QueryRefused(ClusterError):
    """The machine refused a query. `refused` is [[0, code, text]], as for commands."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"the query was refused, {code}: {text}")
        self.refused = [[0, code, text]]


class MachineFailed(ClusterError):
    """The machine's own code failed in a query, which changes nothing."""

    def __init__(self, doing: str, reason: str) -> None:
        super().__init__(f"the machine's {doing} failed: {reason}; nothing was written or changed")
        self.doing = doing
        self.reason = reason


class CheckFailedError(MachineFailed):
    """The machine's own code failed in a check, before anything was written."""


class LimitExceeded(ClusterError):
    """Something is larger than its limit; nothing was written."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(f"{what} is {size}, above the limit of {limit}")
        self.what = what
        self.size = size
        self.limit = limit


class Truncated(ClusterError):
    """The log was truncated from this index on before the written records were flushed; those below it remain."""

    def __init__(self, index: int) -> None:
        super().__init__(f"the log was truncated from index {index} on before the records were flushed")
        self.truncate_index = index


class WrongIndex(ClusterError):
    """The log's next index is not the one that the caller expected; nothing was written."""

    def __init__(self, expected: int, highest: int) -> None:
        super().__init__(f"the record would get index {highest}, not the expected {expected}")
        self.expected = expected
        self.highest = highest


class SequenceRefused(ClusterError):
    """The sequence does not follow the previous one; nothing was written."""

    def __init__(self, sequence: int, expected: int) -> None:
        super().__init__(f"sequence {sequence} was sent, but {expected} is next")
        self.sequence = sequence
        self.expected = expected


class SessionRefused(ClusterError):
    """The session refused every record of the request, so none was executed. `code` is that of the first one."""

    def __init__(self, code: str, reason: str, refused: Sequence[Sequence[object]]) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code
        self.refused = refused


class SessionOwned(SessionRefused):
    """The session, or that of the name to open, belongs to another owner; nothing was executed, opened or closed."""

    def __init__(self, reason: str) -> None:
        super().__init__("SESSION_OWNED", reason, [])


class HistoryChanged(SessionRefused):
    """The session, or the reader's position, is of a history that this cluster no longer has; nothing was executed."""

    def __init__(self, reason: str, refused: Sequence[Sequence[object]] = ()) -> None:
        super().__init__("HISTORY_CHANGED", reason, refused)


def session_refused(code: str, reason: str, refused: Sequence[Sequence[object]]) -> SessionRefused:
    """The error for the code with which a session refuses records."""
    return HistoryChanged(reason, refused) if code == "HISTORY_CHANGED" else SessionRefused(code, reason, refused)


class SessionUnknown(ClusterError):
    """No such session is open."""

    def __init__(self, session: int) -> None:
        super().__init__(f"session {session} is not open: closed, fenced, expired or never opened")
        self.session = session


class SessionsFull(ClusterError):
    """No more sessions can be opened; nothing was written, except perhaps the refused attempt."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class CursorUnknown(ClusterError):
    """There is no such cursor."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no cursor {_shown(name)}; `quire cursor list` shows all")
        self.name = name


class CursorRefused(ClusterError):
    """The cursor was left as it is, at `current`; `code` says why. `current` is None if it is not there."""

    def __init__(self, name: str, code: str, wanted: int, current: int | None, end: int) -> None:
        super().__init__(f"{code}: {_cursor_reason(_shown(name), code, wanted, current, end)}")
        self.name = name
        self.code = code
        self.current = current


def _cursor_reason(name: str, code: str, wanted: int, current: int | None, end: int) -> str:
    match code:
        case "CURSOR_BACK":
            return f"the cursor {name} is at {current}, and goes back to {wanted} only with rewind (--rewind)"
        case "CURSOR_BEYOND":
            return f"index {wanted} is beyond the end of the log, which is {end}"
        case "CURSOR_TAKEN":
            who = f"another consumer took the cursor {name}, an operator moved it, or the cluster was recovered"
            return f"{who}; it is at {current}. Consume again only if no other worker does"
        case "CURSOR_MOVED":
            return f"the cursor {name} is at {current}, and not where it was expected"
        case _:
            return f"the cursor {name} is {'not there' if current is None else f'at {current}'}"


class CursorOwned(ClusterError):
    """The cursor belongs to the token of another name; it was left as it is."""

    def __init__(self, name: str, owner: str) -> None:
        give = f"`quire cursor set {shlex.quote(name)} --owner OWNER`"
        ways = f"use a token of that name, or have an admin give it away: {give}"
        super().__init__(f"the cursor {_shown(name)} belongs to {owner!r}; {ways}")
        self.name = name
        self.owner = owner


class CursorsFull(ClusterError):
    """There are as many cursors as there may be, or as many of one owner; nothing was created."""

    def __init__(self, reason: str = "there are as many cursors as there may be") -> None:
        super().__init__(f"{reason}; delete some: `quire cursor delete NAME`")
        self.reason = reason


class HoldsFull(ClusterError):
    """All cursors together would hold more of the log than the operator allows; the cursor was left as it is."""

    def __init__(self, name: str, raised: int, held: int, limit: int) -> None:
        super().__init__(
            f"the cursor {_shown(name)} would hold {raised:,} more bytes of the log, and all cursors together hold "
            f"{held:,} of at most {limit:,}, which is the setting cursors_hold_bytes of the nodes; lower a hold "
            "(`quire cursor list` shows all)"
        )
        self.name = name
        self.held_bytes = held
        self.limit_bytes = limit


class FeatureNotInUse(ClusterError):
    """The cluster does not use a feature yet, since a member runs an older version; nothing was written."""

    def __init__(self, feature: str) -> None:
        super().__init__(
            f"the log does not use the feature {feature!r} yet: the leader is new, or a member runs a version without "
            "it (`quire members` shows the versions)"
        )
        self.feature = feature


class OutOfBounds(ClusterError):
    """There is no record at this index yet."""

    def __init__(self, index: int, lowest: int, highest: int) -> None:
        super().__init__(f"index {index} is not among the visible records [{lowest}, {highest})")
        self.index = index
        self.lowest = lowest
        self.highest = highest


class NotCommitted(ClusterError):
    """The record is on this node, but the node does not know it to be committed yet."""

    def __init__(self, index: int, commit_index: int) -> None:
        super().__init__(
            f"as far as this node knows, index {index} is not committed yet; commit_index is {commit_index}"
        )
        self.index = index
        self.commit_index = commit_index


class Expired(ClusterError):
    """The record was removed by expiry."""

    def __init__(self, index: int, lowest: int) -> None:
        super().__init__(f"index {index} has expired; the lowest index on this node is {lowest}")
        self.index = index
        self.lowest = lowest


class CorruptHere(ClusterError):
    """The record's bytes are corrupt on this node; another node may have them intact."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"index {index} cannot be read on this node: {reason}; another node may have it intact")
        self.index = index
        self.reason = reason


class NotInThisMode(ClusterError):
    """The call is not available with this node's machine or in this mode."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class NotLeader(ClusterError):
    """This node does not lead; nothing was written. `leader` is the id of the node that does, if known."""

    def __init__(self, leader: str | None) -> None:
        super().__init__(f"this node does not lead; {leader} does" if leader else "this node does not lead")
        self.leader = leader


class TransferFailed(ClusterError):
    """Leadership was not transferred; the attempt had no effect on writes."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"leadership was not transferred: {reason}")
        self.reason = reason


class NodeUnknown(ClusterError):
    """There is no such member."""

    def __init__(self, node: str, known: list[str]) -> None:
        super().__init__(f"node {node[:40]!r} is not a member ({', '.join(known)})")
        self.node = node[:40]
        self.known = known


class SnapshotUnknown(ClusterError):
    """This node has no snapshot at the index."""

    def __init__(self, index: int, known: list[int]) -> None:
        there = f"those at {', '.join(map(str, known))}" if known else "none"
        super().__init__(f"there is no snapshot at {index} on this node, which has {there}")
        self.index = index
        self.known = known


class LeaderNotServing(ClusterError):
    """The leader has not committed a record of its epoch yet, so it may not change the members; nothing was changed."""

    def __init__(self, start_index: int, commit_index: int) -> None:
        super().__init__(
            f"the leader's first record, at index {start_index}, is not committed yet (commit_index is {commit_index})"
        )
        self.start_index = start_index
        self.commit_index = commit_index


class ChangeUnderWay(ClusterError):
    """The last change of members is not committed yet; nothing was changed."""

    def __init__(self, members_index: int, commit_index: int) -> None:
        super().__init__(f"the change of members at index {members_index} is not committed yet; wait until it is")
        self.members_index = members_index
        self.commit_index = commit_index


class NodeNotConnected(ClusterError):
    """The node to be promoted is not connected to the leader; nothing was changed."""

    def __init__(self, node: str, connected: list[str], lacking: list[str]) -> None:
        others = ", ".join(connected) or "none"
        why = "is not connected to the leader; start it"
        if lacking:
            why = f"lacks {', '.join(lacking)}, which this cluster uses; upgrade that node"
        super().__init__(f"{node} {why} (connected: {others})")
        self.node = node
        self.connected = connected


class NodeBehind(ClusterError):
    """The node to be promoted is too far behind, or does not follow the leader yet; nothing was changed."""

    def __init__(self, node: str, lag_bytes: int | None, limit_bytes: int | None) -> None:
        unknown = "does not follow the leader's log yet, or does not keep up with it; the leader's alarms may say why"
        behind = unknown if lag_bytes is None else f"is {lag_bytes:,} bytes behind"
        allowed = "" if limit_bytes is None else f"; a new voter may be {limit_bytes:,} behind"
        super().__init__(f"{node} {behind}{allowed}")
        self.node = node
        self.lag_bytes = lag_bytes
        self.limit_bytes = limit_bytes


class VotersUnheard(ClusterError):
    """After the change the leader would hear less than a majority of the voters, and could commit nothing."""

    def __init__(self, unheard: list[str], heard: int, majority: int) -> None:
        super().__init__(
            f"the leader has not heard {', '.join(unheard)} for an election timeout; after this change it would hear "
            f"{heard} voters, and {majority} are a majority, so it could commit nothing; nothing was changed"
        )
        self.unheard = unheard
        self.heard = heard
        self.majority = majority


class MembersFull(ClusterError):
    """There would be more members than the limit; nothing was changed."""

    def __init__(self, count: int, limit: int) -> None:
        super().__init__(f"there would be {count} members, above the limit of {limit}")
        self.count = count
        self.limit = limit


class ChangeRefused(ClusterError):
    """The change of members makes no sense as the members are; nothing was changed."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class AddressUnusable(ClusterError):
    """Another node, or a node of another cluster, answers at the address; nothing was changed."""

    def __init__(self, node: str, address: str, why: str) -> None:
        super().__init__(f"{address} cannot be the address of {node}: {why}")
        self.node = node
        self.address = address


class NoLeader(ClusterError):
    """No leader is known; nothing was written."""

    def __init__(self, reason: str = "no leader is known at the moment") -> None:
        super().__init__(reason)


class NoMajority(NoLeader):
    """The node has heard no leader for `leaderless_s`, and reaches too few voters for one: `no_majority` says which."""

    def __init__(self, no_majority: str, leaderless_s: float) -> None:
        super().__init__(f"no leader is known: {no_majority}")
        self.no_majority = no_majority
        self.leaderless_s = leaderless_s


class LeaderUnreachable(ClusterError):
    """No connection to the leader could be made, so the request never reached it; nothing was written."""

    def __init__(self, leader: str, reason: str) -> None:
        super().__init__(f"the leader {leader} cannot be reached: {reason}; nothing was written")
        self.leader = leader
        self.reason = reason


class NodeUnreachable(ClusterError):
    """The node that the request is for does not answer; whether it did it is unknown, and it may be repeated."""

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(f"{node} cannot be reached: {reason}")
        self.node = node
        self.reason = reason


class Overloaded(ClusterError):
    """A limit on waiting work is reached; nothing was written."""

    def __init__(self, why: str, retry_after_s: float = RETRY_AFTER_S) -> None:
        super().__init__(f"{why}; try again in {retry_after_s:g} s")
        self.retry_after_s = retry_after_s


class OutcomeUnknown(ClusterError):
    """The write may or may not have happened, or may still happen."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the outcome is unknown: {reason}")
        self.reason = reason


class BodyTimeout(ClusterError):
    """The request's body did not arrive in time; nothing was written."""

    def __init__(self, timeout_ms: int) -> None:
        super().__init__(f"no more of the body arrived within {timeout_ms} ms; nothing was written")
        self.timeout_ms = timeout_ms


class StateUnavailable(ClusterError):
    """This node's machine cannot answer: it stopped applying, is behind, or lags more than the caller allows."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class DiskFullError(ClusterError):
    """No space is left for the write; nothing was written."""

    def __init__(self) -> None:
        super().__init__("the leader's disk is full; nothing was written")


class ResourcesExhaustedError(ClusterError):
    """The process or the machine has no file descriptor or memory left for the write; nothing was written."""

    def __init__(self) -> None:
        super().__init__("the process can open no more files, or has no memory; nothing was written")


class SnapshotFailed(ClusterError):
    """No snapshot was taken; the existing ones are unchanged."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"no snapshot was taken: {reason}")
        self.reason = reason


class NodeStopping(ClusterError):
    """The node is shutting down; nothing was written."""

    def __init__(self) -> None:
        super().__init__("this node is stopping")
