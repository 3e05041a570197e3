"""The configuration of `quire serve --standalone`."""

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from quire.log import (
    FLUSH_ALWAYS,
    FLUSH_NEVER,
    HEADER_BYTES,
    LARGEST_STORE_BYTES,
    FlushPolicy,
    LogOptions,
    overflow_of,
)

from ..access.credentials import CredentialFiles
from ..config.access import TlsCa, TlsCert, TlsKey, Tokens, check_reach, credential_files
from ..config.origins import Allow
from ..config.serve import FRAME_OVERHEAD_BYTES, MIB
from ..config.settings import Address, LogFormat, Settings

MODE = "standalone"
MAX_RECORD_BYTES = 64 * MIB
HEADERS_BYTES = 16 * 1024
"""Room for `Quire-Headers` in a frame; aiohttp accepts no header above 8,190 bytes."""

_SEGMENT_LIMIT_BYTES = 4096 * MIB  # Byte positions in a segment are u32.


class StandaloneConfig(Settings):
    """The configuration of a standalone log: its settings, and constants that tests change."""

    max_request_bytes: ClassVar = MIB
    """Bytes of a batch of records in one request."""
    max_commands: ClassVar = 10_000
    """Records in one request. They are decoded together, so this bounds how long that blocks others."""
    request_timeout_ms: ClassVar = 10_000
    """How long a request waits for the next bytes of its body (after that, nothing was written) or for its flush (after
    that, the response has the index, and the outcome is unknown)."""
    flush_records: ClassVar = 1000
    """If flush = batched: flush when this many records wait."""
    flush_interval_ms: ClassVar = 1000
    """If flush = batched: flush when the oldest record is this old."""
    cached_indexes: ClassVar = 64
    """How many sealed segments, the most recently used, keep their index in memory: 256 KiB for a segment of 64 MiB."""

    listen: Address = Field(description="HOST:PORT to listen on. 0.0.0.0 is every IPv4 address, [::] every address.")
    allow: Allow = Field(default_factory=tuple)
    tls_cert: TlsCert = None
    tls_key: TlsKey = None
    tls_ca: TlsCa = None
    tokens: Tokens = None
    insecure: bool = Field(
        default=False,
        description="Listen beyond this machine without certificates or without tokens: anyone who reaches the port "
        "can read, append and truncate. A warning is logged.",
    )
    data_dir: Path = Field(description="Directory of the log; created if it does not exist.")
    initial_index: int = Field(
        default=0,
        ge=0,
        lt=1 << 63,
        description="Index of the first record of a new log; ignored if the log exists.",
    )
    flush: Literal["always", "batched", "never"] = Field(
        default="always",
        description="When a record is acknowledged and readable. always: once it survives a power loss. batched: it is "
        f"acknowledged immediately, and flushed and then readable after {flush_records:,} records or "
        f"{flush_interval_ms:,} ms. never: both immediately; the "
        "operating system decides when it reaches the disk, so a power loss may lose it.",
    )
    segment_bytes: int = Field(
        default=64 * MIB,
        ge=64 * 1024,
        lt=_SEGMENT_LIMIT_BYTES,
        description="Size at which a segment of the log is sealed. Expiry removes whole segments.",
    )
    retention_bytes: int | None = Field(
        default=None,
        ge=0,
        description="Remove the oldest segments while the log is larger than this. Default: no limit.",
    )
    retention_ms: int | None = Field(
        default=None,
        ge=1,
        description="Remove a segment when its last record is older than this. Default: no limit.",
    )
    max_record_bytes: int = Field(
        default=MAX_RECORD_BYTES,
        ge=1024,
        lt=_SEGMENT_LIMIT_BYTES,
        description="Largest record of raw bytes. It is spooled while it arrives, so that it blocks no other request.",
    )
    log_format: LogFormat = "console"

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        check_reach(self.listen, self.credential_files, MODE, insecure=self.insecure)
        if self.segment_bytes + self._largest_frame > LARGEST_STORE_BYTES:
            raise ValueError(
                f"segment_bytes {self.segment_bytes} and a record of max_record_bytes {self.max_record_bytes} are more "
                f"than the {LARGEST_STORE_BYTES} bytes of the largest segment; lower one of them"
            )
        return self

    @property
    def credential_files(self) -> CredentialFiles:
        """The files of its certificate and its tokens."""
        return credential_files(self.tls_cert, self.tls_key, self.tls_ca, self.tokens)

    @property
    def _largest_frame(self) -> int:
        return max(self.max_record_bytes, self.max_request_bytes) + HEADER_BYTES + HEADERS_BYTES + FRAME_OVERHEAD_BYTES

    @property
    def options(self) -> LogOptions:
        """The log's options: a record of `max_record_bytes` fits into a segment however full it is."""
        largest = self._largest_frame
        policies = {
            "always": FLUSH_ALWAYS,
            "batched": FlushPolicy(self.flush_records, self.flush_interval_ms),
            "never": FLUSH_NEVER,
        }
        return LogOptions(
            segment_bytes=self.segment_bytes,
            segment_overflow_bytes=overflow_of(self.segment_bytes, largest),
            max_frame_bytes=largest,
            cached_indexes=self.cached_indexes,
            flush_policy=policies[self.flush],
        )
