"""The features of this program: named parts of the formats and of the peers' protocol, to which versions may add.

A cluster may run several versions for a while, so a new feature is not used in the log or in messages before a
committed record names it: a `features` record, or the `genesis` of a cluster whose nodes all had it. A leader logs the
names that every member offers in its hello. A program that lacks a named feature is refused by its peers, and stops
applying at that record.

The first three are those of the first release: every genesis has them. What a later one adds is used only once the log
names it. The expiry of sessions checks that, too, so that a log without its name replays as it was written.
"""

FITNESS = "fitness"
"""Fitness and clocks in votes, heartbeats and echoes; the reason in an opening."""

SESSION_TTL = "session_ttl"
"""Sessions expire by the time of the log; `close_sessions`, which closes many."""

STATE_QUOTA = "state_quota"
"""The limit `state_bytes` in the genesis: a machine that supports it refuses commands that would exceed it."""

SESSION_OWNERS = "session_owners"
"""An `open_session` may name the owner of its session; the name of that session is refused to others."""

MEMBERSHIP = "membership"
"""Members that join without a disk, the disks that were removed, and the messages about both."""

HISTORY = "history"
"""A `history` record begins another history of the log; snapshots and sessions name theirs."""

CONSUMERS = "consumers"
"""`cursors` records: named positions in the log, for readers."""

CURSOR_OWNERS = "cursor_owners"
"""A row of a `cursors` record may name the owner of its cursor; others do not move or delete that one."""

FEATURES = frozenset({FITNESS, SESSION_TTL, STATE_QUOTA, SESSION_OWNERS, MEMBERSHIP, HISTORY, CONSUMERS, CURSOR_OWNERS})
"""The features that this program offers."""

MAX_FEATURES = 64
MAX_FEATURE_LENGTH = 32
