"""The figures of a report, as the pages show them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from .tally import EpochStart


@dataclass(slots=True)
class NodeLag:
    """How far a node currently lags behind its leader; None if its status does not say."""

    server: str
    role: str
    records: int | None
    bytes: int | None
    seconds: float | None


@dataclass(slots=True)
class Report:
    """The content of the pages. Times are seconds since 1970; lists have one value for each bucket of time."""

    cluster_id: str
    from_index: int
    to_index: int
    records: int
    frames: int
    log_bytes: int
    first: float | None
    """The time of the first frame, and below of the last; None if there is none."""
    last: float | None
    start: float
    bucket_s: float
    operations: dict[str, list[int]]
    """Records by operation, the most frequent first."""
    pauses_s: list[float]
    """The longest pause of writers, 0 if there was none."""
    fullest_second: int
    """The most commands within a second."""
    epochs: list[EpochStart]
    lag: list[NodeLag]
    seconds: float = 0.0
    files: list[str] = field(default_factory=list[str])

    @property
    def span_s(self) -> float:
        """From the start of the first bucket to the end of the last."""
        return self.bucket_s * len(self.pauses_s)

    def document(self) -> dict[str, object]:
        """The report as a JSON document."""
        return {**asdict(self), "epochs": [each._asdict() for each in self.epochs]}
