"""Nodes whose packets can be dropped, both ways: each is in a cgroup of its own, which a rule of nftables names.

A socket belongs to the cgroup in which its process was when it made it, so a node is started in its own. Needs root,
`nft` and version 2 of cgroups.
"""

import os
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "quire-bench-"
RULES = """\
table inet {table} {{
  chain i {{ type filter hook input priority 0; socket cgroupv2 level 1 "{table}" drop; }}
  chain o {{ type filter hook output priority 0; socket cgroupv2 level 1 "{table}" drop; }}
}}
"""


def _cgroups() -> Path | None:
    """Where cgroups can be made; None if nodes cannot be cut off."""
    mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    places = [Path(place) for _, place, kind, *_ in mounts if kind == "cgroup2"]
    usable = os.geteuid() == 0 and shutil.which("nft") and shutil.which("unshare")
    return places[0] if places and usable and os.access(places[0], os.W_OK) else None


CGROUPS = _cgroups()


@contextmanager
def placed(name: str) -> Generator[None]:
    """Processes that the block starts belong to this node, if nodes can be cut off."""
    if CGROUPS is None:
        yield
        return
    place = CGROUPS / f"{PREFIX}{name}"
    place.mkdir(exist_ok=True)
    own = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
    before = CGROUPS / own.removeprefix("0::").lstrip("/")
    (place / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        (before / "cgroup.procs").write_text(str(os.getpid()))


def cut(name: str) -> None:
    """Drop all packets from and to a node."""
    _nft(RULES.format(table=f"{PREFIX}{name}"))


def heal(name: str) -> None:
    """Drop none of them any more."""
    _nft(f"delete table inet {PREFIX}{name}")


def remove() -> None:
    """Remove what is left of nodes that have ended."""
    for place in () if CGROUPS is None else CGROUPS.glob(f"{PREFIX}*"):
        with suppress(OSError):
            place.rmdir()


def _nft(rules: str) -> None:
    # It finds cgroups at this path only, where another program may have mounted version 1.
    command = "mount -t cgroup2 none /sys/fs/cgroup && exec nft -f -"
    subprocess.run(["unshare", "-m", "sh", "-c", command], input=rules, text=True, check=True, capture_output=True)
