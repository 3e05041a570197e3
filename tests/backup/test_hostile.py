"""Whatever somebody made of a backup's files, a command ends with a sentence: no traceback, no wait, bounded memory."""

import json
import random
import shlex
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from crc32c import crc32c
from typer.testing import CliRunner, Result

from quire.cluster.backup.contents import Contents, read_all
from quire.cluster.backup.manifest import BackupInvalid, BackupRefused, decode_manifest
from quire.cluster.backup.store import FolderStore
from quire.cluster.cli.commands import app
from quire.log import Kind, decode_system, encode_frame, walk_frames
from tests.backup.backed_up import run
from tests.cluster.malformed.changed import Changed, changes_of_map
from tests.hostile import CHANGES, Change, changed_json, in_time
from tests.packed import unpacked
from tests.processes.cluster import Cluster

FULLY_TRIED = 40
"""Of the changed documents that are decoded: for so many, every command is run."""
COMMANDS: tuple[tuple[str, Callable[[str, str], list[str]]], ...] = (
    ("list", lambda place, _: ["backup", "list", place]),
    ("verify", lambda place, _: ["backup", "verify", place]),
    ("replay", lambda place, _: ["backup", "verify", "--replay", place]),
    ("restore", lambda place, empty: ["restore", place, "--data-dir", empty, "--fork", "copy"]),
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The backup of a cluster of one node: two manifests, pieces, and a snapshot."""
    folder = tmp_path_factory.mktemp("made")
    lone = Cluster(folder / "cluster", ("n1",), flags=("--machine", "kv"))
    try:
        lone.start()
        for number in range(3):
            lone.leader.apply(*[["put", f"{number}-{key}", "x" * 50] for key in range(50)])
            if number == 1:
                assert lone.leader.call("POST", "/admin/snapshot").status == 200
            run(FolderStore(folder / "b"), lone)
    finally:
        lone.close()
    return folder / "b"


@pytest.fixture
def copy(cluster: Path, tmp_path: Path) -> Path:
    shutil.copytree(cluster, tmp_path / "b")
    return tmp_path / "b"


def ended(arguments: list[str], what: str) -> Result:
    """A command that ran to its end; it must have ended with an exit code and, if it failed, one sentence at least."""
    with in_time(what):
        result = CliRunner().invoke(app, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), (what, arguments, result.exception)
    assert result.exit_code in (0, 1), (what, arguments, result.output)
    if result.exit_code:
        said = result.stderr.splitlines()
        assert said, what
        assert all(line.startswith("quire: ") for line in said), (what, said)
    return result


def ended_all(place: Path, what: str) -> dict[str, int]:
    """The exit code of each command."""
    codes = dict[str, int]()
    for name, arguments in COMMANDS:
        empty = place.parent / "restored"
        codes[name] = ended(arguments(str(place), str(empty)), f"{what}, {name}").exit_code
        shutil.rmtree(empty, ignore_errors=True)
    return codes


def with_crc(line: bytes) -> bytes:
    return line + b"\n" + f"{crc32c(line):08x}\n".encode()


# Files that are no files, or other ones


def as_link(path: Path, _: random.Random) -> None:
    moved = path.parent.parent.parent / "moved"
    path.replace(moved)
    path.symlink_to(moved)


@pytest.mark.parametrize("change", [*CHANGES, as_link], ids=lambda change: str(change.__name__))
def test_a_file_that_somebody_changed_ends_every_command_with_a_sentence(
    cluster: Path, tmp_path: Path, change: Change
) -> None:
    chance = random.Random(change.__name__)
    for number, path in enumerate(sorted(path for path in cluster.rglob("*") if path.is_file())):
        place = tmp_path / str(number) / "b"
        shutil.copytree(cluster, place)
        key = path.relative_to(cluster)
        change(place / key, chance)

        codes = ended_all(place, f"{change.__name__} {key}")

        if key.parts[0] != "manifests" and (key.parts[0] == "snapshots" or named(place, str(key))):
            assert codes["verify"] == 1, key
        shutil.rmtree(place.parent)


def named(place: Path, key: str) -> bool:
    return any(piece.file == key for manifest in read_all(FolderStore(place), print) for piece in manifest.pieces)


def test_a_folder_of_a_backup_may_be_a_link_and_one_of_any_depth_is_listed(copy: Path, tmp_path: Path) -> None:
    (copy / "frames").rename(tmp_path / "elsewhere")
    (copy / "frames").symlink_to(tmp_path / "elsewhere")
    deep = [copy / "snapshots"]
    for _ in range(1_100):
        deep.append(deep[-1] / "d")
        deep[-1].mkdir()

    try:
        assert ended_all(copy, "links") == dict.fromkeys(("list", "verify", "replay", "restore"), 0)
        assert len(FolderStore(copy).list("snapshots/")) == 2
    finally:
        for folder in reversed(deep[1:]):  # Too deep for pytest, which removes what tests leave.
            folder.rmdir()


# Documents with a right checksum


def test_a_manifest_with_any_field_changed_is_refused_or_ends_every_command_with_a_sentence(copy: Path) -> None:
    chance = random.Random(60)
    newest = max((copy / "manifests").iterdir())
    key, whole = f"manifests/{newest.name}", newest.read_bytes()
    document, refused = json.loads(whole.partition(b"\n")[0]), 0
    accepted: list[tuple[str, bytes]] = []  # As other names, times and digests, which nothing in it contradicts.
    for what, line in changed_json(document, chance):
        raw = with_crc(line)
        try:
            decode_manifest(raw, key)
        except (BackupInvalid, BackupRefused):
            refused += 1
        else:
            accepted.append((what, raw))
    for what, raw in chance.sample(accepted, FULLY_TRIED):
        newest.write_bytes(raw)

        ended_all(copy, what)

    assert refused > 800


@pytest.mark.parametrize("raw", [b"[],", b'"",', b'{"a":[', b"[[[["])
def test_a_manifest_of_many_lists_or_values_is_refused_within_bounded_memory(copy: Path, raw: bytes) -> None:
    line = b"[" + raw * (2 << 20) + b"1]"
    newest = max((copy / "manifests").iterdir())
    newest.write_bytes(with_crc(line))

    assert ended_all(copy, f"{raw!r}") == dict.fromkeys(("list", "verify", "replay", "restore"), 0)

    assert "counts for nothing" in ended(["backup", "list", str(copy)], "list").stderr


def test_a_snapshot_s_manifest_with_any_field_changed_ends_every_command_with_a_sentence(copy: Path) -> None:
    [path] = copy.glob("snapshots/*/manifest")
    body = path.read_bytes()[4:]
    manifests = read_all(FolderStore(copy), print)
    contents, row = Contents(FolderStore(copy), manifests[-1]), manifests[-1].snapshots[0]
    chance, accepted = random.Random(60), list[Changed]()
    for change in changes_of_map(unpacked(body), chance):
        path.write_bytes(crc32c(change.data).to_bytes(4, "little") + change.data)
        with suppress(BackupInvalid, BackupRefused):
            contents.snapshot(row)
            accepted.append(change)
    for change in chance.sample(accepted, FULLY_TRIED):
        path.write_bytes(crc32c(change.data).to_bytes(4, "little") + change.data)

        ended_all(copy, f"{change.where}: {change.how}")


def test_a_genesis_with_any_field_changed_ends_every_command_with_a_sentence(copy: Path) -> None:
    newest = max((copy / "manifests").iterdir())
    document = json.loads(newest.read_bytes().partition(b"\n")[0])
    [frame] = walk_frames(bytes.fromhex(document["genesis"]))
    key, header = f"manifests/{newest.name}", frame.header
    chance, accepted = random.Random(60), list[tuple[str, bytes]]()
    for change in changes_of_map(decode_system(frame.payload), chance):
        raw = encode_frame(
            index=0, epoch=0, timestamp=header.timestamp, count=1, prev_crc32c=0, kind=Kind.SYSTEM, payload=change.data
        )
        changed = with_crc(json.dumps(document | {"genesis": raw.hex()}).encode())
        contents = Contents(FolderStore(copy), decode_manifest(changed, key))
        with suppress(BackupInvalid):
            _ = contents.genesis
            accepted.append((f"{change.where}: {change.how}", changed))
    for what, changed in chance.sample(accepted, FULLY_TRIED):
        newest.write_bytes(changed)

        ended_all(copy, what)


def test_a_command_that_a_restore_prints_is_pasted_as_it_is_meant(copy: Path, tmp_path: Path) -> None:
    data_dir, address = str(tmp_path / "a b; echo $HOME"), "[::1]:7001"
    arguments = ["restore", str(copy), "--data-dir", data_dir, "--address", address, "--fork", "copy"]

    lines = [line.strip() for line in ended(arguments, "restore").stdout.splitlines() if line.startswith("    ")]

    start = ["quire", "serve", "--node", "n1", "--listen", address, "--data-dir", data_dir]
    add = ["quire", "members", "add", "NODE=HOST:PORT", "--server", address]
    assert list(map(shlex.split, lines)) == [start, add]
