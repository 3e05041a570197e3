"""The file of the peer secrets, one per line. A node uses the first and accepts all, so that they can be rotated."""

import os
import secrets
import shlex
import stat
from dataclasses import dataclass
from pathlib import Path

from ..errors import ClusterError

SECRET_BYTES = 32
LEAST_SECRET_BYTES = 16
MAX_SECRETS = 4
MAX_FILE_BYTES = 64 * 1024
NEW = "quire secret new FILE"


class SecretRefused(ClusterError):
    """The file holds no usable secrets; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class SecretFile:
    """What a node read from the file when it started; without a file, no secrets."""

    secrets: tuple[bytes, ...] = ()
    alarm: str | None = None
    """A sentence that every user of the machine may read the file, and what to do; None if they may not."""


def read_secrets(path: Path) -> SecretFile:
    """Read the secrets. Blank lines, and white space around a secret, are ignored.

    Raises:
        SecretRefused: the file cannot be read; there is no secret, one is short, or there are too many.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        advice = "make it readable to the node's user or to a group of that user"
        raise SecretRefused(f"peer_secret_file {path} cannot be read: {why}; {advice}") from None
    found = tuple(line.strip() for line in data.splitlines() if line.strip())
    if not found:
        raise SecretRefused(f"peer_secret_file {path} is empty; make another with `{NEW}`")
    if len(found) > MAX_SECRETS or len(data) > MAX_FILE_BYTES:
        limits = f"{MAX_SECRETS} lines or {MAX_FILE_BYTES:,} bytes"
        raise SecretRefused(f"peer_secret_file {path} has more than {limits}; keep the secrets that are in use")
    for number, secret in enumerate(found, 1):
        if len(secret) < LEAST_SECRET_BYTES:
            size = f"secret {number} has {len(secret)} bytes, fewer than {LEAST_SECRET_BYTES}"
            raise SecretRefused(f"peer_secret_file {path}: {size}; make another with `{NEW}`")
    return SecretFile(found, _alarm_of(path, mode))


def _alarm_of(path: Path, mode: int) -> str | None:
    if not mode & (stat.S_IROTH | stat.S_IWOTH):
        return None
    return (
        f"peer_secret_file {path} has mode {stat.S_IMODE(mode):04o}: every user of this machine may read or change it; "
        f"run `chmod o= {shlex.quote(str(path))}`, and if it was readable for long, rotate the secret "
        "(deploy/runbook.md)"
    )


def write_new_secret(path: Path) -> None:
    """Create a file with a new secret, readable only by its owner.

    Raises:
        FileExistsError: something exists at that path; it is left unchanged.
        OSError: the file cannot be created.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            os.fchmod(file.fileno(), 0o600)  # Whatever the umask took away from it.
            file.write(secrets.token_hex(SECRET_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink()  # A secret that is cut off is worse than none.
        raise
