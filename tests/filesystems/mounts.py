"""A file system of a given kind and size, mounted for the length of a test: in a file, in memory, or above another."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

MIB = 1 << 20
# xfs makes none that is smaller than 300 MiB, and btrfs none smaller than 109.
MAKE = {
    "ext4": ("mkfs.ext4", "-q", "-m", "0"),
    "xfs": ("mkfs.xfs", "-q"),
    "btrfs": ("mkfs.btrfs", "-q"),
}
"""How those are made in a file that every machine of a developer has."""
OTHERS = {
    "f2fs": ("mkfs.f2fs", "-q"),
    "exfat": ("mkfs.exfat",),
    "exfat-fuse": ("mkfs.exfat",),
    "ntfs-3g": ("mkntfs", "--quick", "--force"),
}
ABOVE = {
    "bindfs": ("bindfs", "{below}", "{at}"),
    "sshfs": ("sshfs", "-o", "ssh_command={below}/../sftp", "localhost:{below}", "{at}"),
}
"""How each is mounted that shows a folder of ext4. The server of sshfs is its child: there is no network between."""
SFTP = "#!/bin/sh\nexec /usr/lib/openssh/sftp-server\n"
KINDS = (*MAKE, "overlay", "tmpfs", *OTHERS, *ABOVE)
TOOLS_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
COMMAND_TIMEOUT_S = 60.0


def as_root(*command: str | Path) -> str:
    """What the command printed, run as root. Raises RuntimeError with what it said."""
    sudo = () if os.geteuid() == 0 else ("sudo", "-n")
    try:
        done = subprocess.run(
            [*sudo, *map(str, command)],
            check=False,
            env={**os.environ, "PATH": TOOLS_PATH},
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
        )
    except FileNotFoundError:
        raise RuntimeError(f"there is no {command[0]}") from None
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr or done.stdout}")
    return done.stdout


@contextmanager
def mounted(kind: str, size_bytes: int, options: Sequence[str] = ()) -> Generator[Path]:
    """The mount point of a new file system, unmounted and removed at the end; it belongs to this user.

    `kind` is one of KINDS; `options` are those of mount. Raises RuntimeError if this machine has not got it.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"quire-{kind}-"))
    image, at = folder / "image", folder / "at"
    at.mkdir()
    try:
        if kind in ABOVE or kind == "overlay":
            with mounted("ext4", size_bytes) as below, _above(kind, below, at, options):
                yield at
            return
        chosen = ",".join(("loop", *options))
        if kind == "tmpfs":
            mount: tuple[str | Path, ...] = ("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", at)
        else:
            with image.open("wb") as file:
                file.truncate(size_bytes)
            as_root(*(MAKE | OTHERS)[kind], image)
            mount = ("mount", "-t", kind, "-o", chosen, image, at)
        with _until_unmounted(at, *mount):
            yield at
    finally:
        shutil.rmtree(folder)


@contextmanager
def layers(lower: Path, above: Path, at: Path, options: Sequence[str] = ()) -> Generator[Path]:
    """An overlay at `at` whose lower layer is `lower`; `above` gets what is written."""
    for name in ("upper", "work"):
        (above / name).mkdir()
    folders = (f"lowerdir={lower}", f"upperdir={above}/upper", f"workdir={above}/work")
    with _until_unmounted(at, "mount", "-t", "overlay", "overlay", "-o", ",".join((*folders, *options)), at):
        yield at


@contextmanager
def _above(kind: str, below: Path, at: Path, options: Sequence[str]) -> Generator[Path]:
    folder, sftp = below / "data", below / "sftp"
    folder.mkdir()
    sftp.write_text(SFTP)
    sftp.chmod(0o755)
    if kind == "overlay":
        with layers(folder, below, at, options):
            yield at
        return
    with _until_unmounted(at, *(part.format(below=folder, at=at) for part in ABOVE[kind])):
        yield at


@contextmanager
def _until_unmounted(at: Path, *mount: str | Path) -> Generator[None]:
    as_root(*mount)
    try:
        as_root("chown", f"{os.geteuid()}:{os.getegid()}", at)
        yield
    finally:
        as_root("umount", "--lazy", at)  # A test that failed may have left it in use.
