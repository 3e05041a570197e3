"""The code file: which code of the machine this node's operator accepted, and which it has run since.

One JSON line and its crc32c in hex, like the identity file. The records do not depend on it, so a lost or damaged file
does not prevent a start: the node then records its code as if it started for the first time.
"""

import json
from contextlib import closing
from typing import NamedTuple, Self

import structlog
from crc32c import crc32c

from quire.log import Directory, LogError

from .identity import write_whole_file

CODE_FILE = "code"
CODE_VERSION = 1
MAX_CODE_BYTES = 1 << 16
RUN_KEPT = 16
"""Of the fingerprints that a node has run since: the newest ones."""

logger = structlog.get_logger(__name__)


class CodeRecord(NamedTuple):
    """The content of the file: fingerprints, all of them known ones."""

    machine: tuple[str, int]
    accepted: tuple[bytes, ...]
    """The code whose results match the log: that of the first start, or what the operator accepted last."""
    run: tuple[bytes, ...]
    """The code that this node has run since, each fingerprint once, in the order of its first start."""

    def started(self, machine: tuple[str, int], code: bytes) -> Self:
        """The record after a start with this code. A new version of the machine starts a new record."""
        if machine != self.machine:
            return type(self)(machine, (code,), (code,))
        if code in self.run:
            return self
        return self._replace(run=(*self.run, code)[-RUN_KEPT:])

    def to_line(self) -> bytes:
        """The file's content."""
        fields = {
            "version": CODE_VERSION,
            "machine": self.machine,
            "accepted": [code.hex() for code in self.accepted],
            "run": [code.hex() for code in self.run],
        }
        line = json.dumps(fields).encode()
        return line + b"\n" + f"{crc32c(line):08x}\n".encode()

    @classmethod
    def from_line(cls, raw: bytes) -> Self:
        """Decode the file's content.

        Raises:
            ValueError, KeyError, TypeError: it is damaged, or of another version.
        """
        line, _, check = raw.partition(b"\n")
        if check.strip() != f"{crc32c(line):08x}".encode():
            raise ValueError("its crc32c differs")
        fields = json.loads(line)
        if fields["version"] != CODE_VERSION:
            raise ValueError(f"it has version {fields['version']!r}, this program {CODE_VERSION}")
        name, version = fields["machine"]
        accepted, run = ([bytes.fromhex(code) for code in fields[key]] for key in ("accepted", "run"))
        return cls((name, version), tuple(accepted), tuple(run))


def read_code(directory: Directory) -> CodeRecord | None:
    """The record; None if there is no file, or it cannot be read, which is logged."""
    if CODE_FILE not in directory.list():
        return None
    try:
        with closing(directory.open(CODE_FILE)) as storage:
            raw = storage.read_at(0, MAX_CODE_BYTES)
        return CodeRecord.from_line(raw)
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("the code file is damaged: a new record of the machine's code was started", reason=str(error))
        return None


def write_code(directory: Directory, record: CodeRecord) -> None:
    """Write the file; see `write_whole_file`."""
    write_whole_file(directory, CODE_FILE, record.to_line())


def note_start(directory: Directory, machine: tuple[str, int], code: bytes) -> CodeRecord | None:
    """Record a start with this code, durably; return the new record. Code without a fingerprint changes nothing.

    If it cannot be written, for example on a full disk, the node starts anyway: the file is unchanged, and the next
    start tries again.
    """
    known = read_code(directory)
    if not code:
        return known
    record = CodeRecord(machine, (code,), (code,)) if known is None else known.started(machine, code)
    if record != known:
        try:
            write_code(directory, record)
        except (LogError, OSError) as error:
            logger.warning("the machine's code could not be recorded", reason=str(error))
    return record
