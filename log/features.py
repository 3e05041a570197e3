"""The features of this program: what of the formats and of the peers' protocol a later version may add to.

A cluster may run several versions for a while, so nothing of a new feature is logged or sent before a committed record
names it: a `features` record, or the `genesis` of a cluster whose nodes all had it. A leader logs the names that every
member offers in its hello. A program that lacks a named feature is refused by its peers, and stops applying there.

The features here are those of the first release: every genesis names them. Only the expiry of sessions asks whether
the log does, so that one without the name replays as it was written.
"""

FITNESS = "fitness"
"""Fitness and clocks in votes, heartbeats and echoes; the reason in an opening."""

SESSION_TTL = "session_ttl"
"""Sessions expire by the time of the log; `close_sessions`, which closes many."""

STATE_QUOTA = "state_quota"
"""The limit `state_bytes` in the genesis: a machine that has a use for it refuses what makes its state grow beyond."""

FEATURES = frozenset({FITNESS, SESSION_TTL, STATE_QUOTA})
"""What this program offers."""

MAX_FEATURES = 64
MAX_FEATURE_LENGTH = 32
