"""What the links and streams of a node found out about its peers, for status and alarms."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class StreamProgress:
    """The stream that this node follows, for status: where it began, what has arrived since."""

    stream_id: int
    from_index: int = 0
    received_bytes: int = 0


@dataclass(slots=True)
class PeerReports:
    """Facts about peers that no rule reads, for status and alarms: about members and dialled peers.

    `failures` has a reason by node id for a link that this node dialled, by `link from ID` for one that it refused.
    """

    failures: dict[str, str] = field(default_factory=dict)
    foreign: set[str] = field(default_factory=set)
    alarms: dict[str, str] = field(default_factory=dict)
    codes: dict[str, bytes] = field(default_factory=dict)
    """The fingerprint of each peer's machine, by node id, since it was linked last; see `PeerInfo.code`."""
    stream: StreamProgress | None = None
