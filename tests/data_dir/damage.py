"""What may happen to the files of a data directory, and to which of them: parts, damages, and a damaged directory.

The parts are read from a directory itself, so a file that is new in it is damaged, too. Equal kinds of files below
`log/` and `snapshots/` have one part each, named by its role.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from quire.log.simulated import Disk

from .history import History, Tree

_EARLY = 20  # In the first slot of a file with two.


class Damage(Enum):
    """What happened to a part: the columns of the table."""

    LOST = "lost"
    OLDER = "an older copy"
    OTHER = "another node's"
    TRUNCATED = "truncated"
    FLIPPED = "a bit flipped"
    UNREADABLE = "cannot be read"


@dataclass(frozen=True, slots=True)
class Part:
    """A file of a directory, or a folder with all that is in it."""

    name: str
    path: str
    rotten: str
    """The file of it that is truncated, or of which a bit flips."""

    def holds(self, path: str) -> bool:
        """Whether a file belongs to it."""
        return path == self.path or path.startswith(self.path + "/")

    def of(self, tree: Tree) -> dict[str, bytes]:
        """Its files in a directory."""
        return {path: data for path, data in tree.items() if self.holds(path)}


@dataclass(frozen=True, slots=True)
class Damaged:
    """A part with one damage: the bytes that its files have then."""

    part: Part
    damage: Damage
    how: str
    """Which copy, or which byte."""
    files: tuple[tuple[str, bytes], ...]
    unreadable_from: int | None = None
    """The first byte of a sector of `part.rotten` that the device does not give."""

    def __str__(self) -> str:
        how = f" ({self.how})" if self.how else ""
        return f"{self.part.name}: {self.damage.value}{how}"

    def apply(self, tree: dict[str, bytes]) -> None:
        """Do it to a directory's files."""
        for path in [path for path in tree if self.part.holds(path)]:
            del tree[path]
        tree.update(self.files)


def parts_of(tree: Tree) -> list[Part]:
    """The parts of a directory, files of its own first."""
    names = sorted(path for path in tree if "/" not in path)
    parts = [Part(name, name, name) for name in names]
    stores = sorted(path for path in tree if path.startswith("log/") and path.endswith(".store"))
    parts.append(Part("log/", "log", stores[-1]))
    roles = {stores[-1]: "log/ its write segment", stores[0]: "log/ its oldest segment"}
    roles |= dict.fromkeys(stores[1:-1], "log/ a segment between")
    seen: set[str] = set()
    for path in [*reversed(stores), *sorted(path for path in tree if path.startswith("log/") and path not in stores)]:
        role = roles.get(path, f"log/ a segment's {path.rpartition('.')[2]}")
        if role not in seen:
            parts.append(Part(role, path, path))
        seen.add(role)
    return [*parts, *_snapshot_parts(tree)]


def _snapshot_parts(tree: Tree) -> list[Part]:
    folders = sorted({path.rpartition("/")[0] for path in tree if path.startswith("snapshots/")})
    newest, chunk = f"{folders[-1]}/manifest", f"{folders[-1]}/00000000.chunk"
    return [
        Part("snapshots/", "snapshots", newest),
        Part("snapshots/ the newest", folders[-1], chunk),
        Part("snapshots/ its manifest", newest, newest),
        Part("snapshots/ its chunk", chunk, chunk),
        Part("snapshots/ the older", folders[0], f"{folders[0]}/manifest"),
    ]


def damages_of(part: Part, history: History, *, thorough: bool = False) -> Iterator[Damaged]:
    """All damages of a part that change its bytes. `thorough`: cut and flipped at some forty more bytes."""
    mine = part.of(history.now)
    copies = [
        (Damage.LOST, "", {}),
        (Damage.OLDER, "early", part.of(history.early)),
        (Damage.OLDER, "late", part.of(history.late)),
        (Damage.OTHER, "behind", part.of(history.behind)),
        (Damage.OTHER, "ahead", part.of(history.ahead)),
    ]
    for damage, how, files in copies:
        if files != mine and (files or damage is Damage.LOST):
            yield Damaged(part, damage, how, tuple(files.items()))
    data = mine[part.rotten]
    size = len(data.rstrip(b"\0"))  # Without the room that is only allocated.
    more = range(0, size, max(1, size // 40)) if thorough else ()
    for place in sorted({0, size // 2, size - 1, *more}):
        yield Damaged(part, Damage.TRUNCATED, f"at {place}", _with(mine, part.rotten, data[:place]))
    for place in sorted({min(_EARLY, size // 3), size // 2, size - 1, *more}):
        flipped = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        yield Damaged(part, Damage.FLIPPED, f"at {place}", _with(mine, part.rotten, flipped))
    for place in sorted({0, size - 1, *more}):
        yield Damaged(part, Damage.UNREADABLE, f"at {place}", tuple(mine.items()), place)


def _with(files: dict[str, bytes], path: str, data: bytes) -> tuple[tuple[str, bytes], ...]:
    return tuple({**files, path: data}.items())


def disk_of(tree: Tree) -> Disk:
    """A disk that holds these files."""
    disk = Disk()
    for path, data in tree.items():
        directory = disk.directory()
        for folder in path.split("/")[:-1]:
            inner = directory.child(folder)
            directory.sync()
            directory = inner
        disk.replace(path, data)
    return disk
