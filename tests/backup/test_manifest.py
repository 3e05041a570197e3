"""A manifest is read as it was written, or refused."""

import json

import pytest
from crc32c import crc32c

from quire.cluster.backup.manifest import (
    BackupInvalid,
    BackupRefused,
    Manifest,
    decode_manifest,
    is_of_backup,
)
from tests.backup.manifests import manifest, piece, snapshot


def whole() -> Manifest:
    return manifest(3, 1_000, [piece(0, 10), piece(10, 35)], [snapshot(10)])


def changed(name: str, value: object) -> bytes:
    """The manifest with another value under a right crc."""
    fields = json.loads(whole().encode().partition(b"\n")[0])
    fields[name] = value
    line = json.dumps(fields).encode()
    return line + b"\n" + f"{crc32c(line):08x}\n".encode()


def test_a_manifest_is_read_as_it_was_written() -> None:
    assert decode_manifest(whole().encode(), whole().key) == whole()


def test_every_flipped_bit_and_every_cut_is_found() -> None:
    raw = whole().encode()
    for place in range(len(raw) - 1):
        for bit in (1, 64):
            damaged = raw[:place] + bytes([raw[place] ^ bit]) + raw[place + 1 :]
            with pytest.raises(BackupInvalid):
                decode_manifest(damaged, whole().key)
        with pytest.raises(BackupInvalid):
            decode_manifest(raw[:place], whole().key)


def test_a_later_version_is_refused_and_the_sentence_says_what_to_do() -> None:
    with pytest.raises(BackupRefused, match="version 2, and this program reads 1; upgrade quire"):
        decode_manifest(changed("version", 2), whole().key)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pieces", [["frames/../../../etc/passwd", 0, 10, 10, "00000000", 0, 10, 1, [0, 0]]]),
        ("snapshots", [[10, "00" * 32, ["kv", 1], ["../n1/snapshots", 1, 10]]]),
        ("snapshots", [[40, f"{40:064x}", ["kv", 1], [f"snapshots/{40:020d}-{0:016x}", 1, 10]]]),
        ("pieces", [[*piece(0, 10)[:4], f"{piece(0, 10).crc:08x}", 0, 11, 1, [0, 0]]]),
        ("pieces", []),
        ("end", [35, 2, 35, 0]),
        ("end", "35"),
        ("histories", []),
        ("histories", [["c2" * 16, 3]]),
        ("histories", [["c2" * 16, 0], ["c1" * 16, 0]]),
        ("number", 4),
        ("genesis", "zz"),
        ("cluster_id", "c1"),
        ("members", [["n1"]]),
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused_even_with_a_right_crc(name: str, value: object) -> None:
    with pytest.raises(BackupInvalid, match="is no manifest of a backup"):
        decode_manifest(changed(name, value), whole().key)


def test_only_a_backup_s_own_files_are_its_own() -> None:
    assert is_of_backup(piece(0, 10).file)
    assert is_of_backup(f"{piece(0, 10).file}.0123456789abcdef.tmp")
    for other in ("snapshots/00000000000000042000/manifest", "frames/notes.txt", "manifests/README", "identity"):
        assert not is_of_backup(other)
