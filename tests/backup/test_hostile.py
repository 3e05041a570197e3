"""Whatever somebody made of a backup's files, a command ends with a sentence: no traceback, no wait, bounded memory."""

import json
import random
import shlex
import shutil
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import pytest
from crc32c import crc32c
from typer.testing import CliRunner, Result

from quire.cluster.backup.contents import Contents, read_all
from quire.cluster.backup.manifest import (
    BackupInvalid,
    BackupRefused,
    decode_manifest,
    snapshot_files,
    snapshot_manifest_key,
    snapshot_row,
)
from quire.cluster.backup.source import checked_range
from quire.cluster.backup.store import FolderStore
from quire.cluster.cli.commands import app
from quire.log import Kind, Tail, decode_header, decode_system, encode_frame, pack, walk_frames
from quire.sm.snapshots.manifest import Chunk
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

    start = ["quire", "serve", "--node", "n1", "--listen", address, "--data-dir", data_dir, "--machine", "kv"]
    add = ["quire", "members", "add", "NODE=HOST:PORT", "--server", address]
    assert list(map(shlex.split, lines)) == [start, add]


# Files that are what their manifests say


def with_content(place: Path, content: bytes) -> None:
    """Give the snapshot of a backup another content, under right checksums; only the newest manifest is kept."""
    newest = max((place / "manifests").iterdir())
    for path in set((place / "manifests").iterdir()) - {newest}:
        path.unlink()
    [manifest], store = read_all(FolderStore(place), print), FolderStore(place)
    snapshot = Contents(store, manifest).snapshot(manifest.snapshots[0])[1]
    snapshot = snapshot._replace(chunks=(Chunk(len(content), crc32c(content)),), sha256=sha256(content).digest())
    row = snapshot_row(snapshot)
    store.put(snapshot_manifest_key(row), snapshot.encode())
    store.put(snapshot_files(row, snapshot)[0][0], content)
    document = json.loads(newest.read_bytes().partition(b"\n")[0])
    document["snapshots"] = [[row.index, row.sha256, list(row.machine), [row.folder, row.files, row.size]]]
    newest.write_bytes(with_crc(json.dumps(document).encode()))


@pytest.mark.parametrize(
    "row",
    [
        pack([6, [["c", 1, 0, 1 << 40]]]),
        pack([6, [["c", 1, 0, 1 << 30]]]),
        pack([5, [[float("inf"), "x"]]]),
        b"\x92\x06\xdd" + (4 << 20).to_bytes(4) + b"\x90" * (4 << 20),
        b"\x92\x06\xdd\xff\xff\xff\xff",
    ],
    ids=["a token of 1 TiB", "a token of 1 GiB", "an infinite id", "many arrays", "an endless array"],
)
def test_a_snapshot_of_tables_that_no_program_wrote_is_damage_to_a_replay(copy: Path, row: bytes) -> None:
    with_content(copy, len(row).to_bytes(4, "little") + row + bytes(4))
    arguments = dict(COMMANDS)["replay"](str(copy), "")

    ended_all(copy, "tables")

    assert "is damaged: its tables cannot be read" in ended(arguments, "replay").stderr


@pytest.mark.parametrize(
    ("kind", "head"),
    [(Kind.SYSTEM, b"\x82\xa4type\xa1x\xa1a\xdd"), (Kind.RECORDS, b"\xdd")],
    ids=["a system record", "records"],
)
def test_a_frame_of_many_maps_is_damage_and_is_not_unpacked(
    monkeypatch: pytest.MonkeyPatch, kind: Kind, head: bytes
) -> None:
    monkeypatch.setattr("quire.log.payload.MAX_SYSTEM_CONTAINERS", 1000)  # Tracing makes the count slow.
    monkeypatch.setattr("quire.log.payload.MAX_FRAME_VALUES", 1000)
    count = 256 << 10
    of_one = encode_frame(index=0, epoch=1, timestamp=1, count=1, prev_crc32c=0, kind=Kind.RECORDS, payload=b"\x91\0")
    raw = of_one + encode_frame(
        index=1,
        epoch=1,
        timestamp=1,
        count=1 if kind == Kind.SYSTEM else count,
        prev_crc32c=decode_header(of_one).crc32c,
        kind=kind,
        payload=head + count.to_bytes(4) + b"\x80" * count,
    )
    tracemalloc.start()
    try:
        with pytest.raises(BackupInvalid, match=r"frames from index 1 on are damaged: .* holds more than 1000 "):
            checked_range(raw, Tail(0, 0, 0, 0), "a piece")
        assert tracemalloc.get_traced_memory()[1] < 10 * count
    finally:
        tracemalloc.stop()
