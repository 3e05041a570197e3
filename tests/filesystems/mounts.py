"""A file system of a given kind and size in a file, mounted for the length of a test."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

MIB = 1 << 20
# xfs makes none that is smaller than 300 MiB, and btrfs none smaller than 109.
MAKE = {
    "ext4": ("mkfs.ext4", "-q", "-m", "0"),
    "xfs": ("mkfs.xfs", "-q"),
    "btrfs": ("mkfs.btrfs", "-q"),
}
TOOLS_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
COMMAND_TIMEOUT_S = 60.0


def as_root(*command: str | Path) -> str:
    """What the command printed, run as root. Raises RuntimeError with what it said."""
    sudo = () if os.geteuid() == 0 else ("sudo", "-n")
    done = subprocess.run(
        [*sudo, *map(str, command)],
        check=False,
        env={**os.environ, "PATH": TOOLS_PATH},
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr or done.stdout}")
    return done.stdout


@contextmanager
def mounted(kind: str, size_bytes: int, options: Sequence[str] = ()) -> Iterator[Path]:
    """The mount point of a new file system, unmounted and removed at the end; it belongs to this user.

    `kind` is a key of MAKE; `options` are those of mount.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"quire-{kind}-"))
    image, at = folder / "image", folder / "at"
    at.mkdir()
    try:
        with image.open("wb") as file:
            file.truncate(size_bytes)
        as_root(*MAKE[kind], image)
        as_root("mount", "-o", ",".join(("loop", *options)), image, at)
        try:
            as_root("chown", f"{os.geteuid()}:{os.getegid()}", at)
            yield at
        finally:
            as_root("umount", at)
    finally:
        shutil.rmtree(folder)
