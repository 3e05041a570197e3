"""A manifest is read as it was written, or refused."""

import json

import pytest
from crc32c import crc32c

from quire.cluster.backup import manifest as module
from quire.cluster.backup.manifest import (
    MAX_PIECE_BYTES,
    MAX_TEXT,
    BackupInvalid,
    BackupRefused,
    Manifest,
    decode_manifest,
    is_of_backup,
)
from quire.log import Tail
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


def sized(size: int) -> bytes:
    """The manifest with a second piece of this size."""
    first, last = piece(0, 10), piece(10, 35)
    rows = [[*each[:3], size if each is last else each.size, f"{each.crc:08x}", *each[5:]] for each in (first, last)]
    return changed("pieces", rows)


def test_a_piece_may_be_as_large_as_the_limit_and_no_larger() -> None:
    assert decode_manifest(sized(MAX_PIECE_BYTES), whole().key).pieces[1].size == MAX_PIECE_BYTES
    with pytest.raises(BackupInvalid, match="is empty or too large"):
        decode_manifest(sized(MAX_PIECE_BYTES + 1), whole().key)


def test_a_text_of_a_manifest_may_be_as_long_as_the_limit_and_no_longer() -> None:
    assert decode_manifest(changed("name", "x" * MAX_TEXT), whole().key).name == "x" * MAX_TEXT
    with pytest.raises(BackupInvalid, match="is no text of at most 300 characters"):
        decode_manifest(changed("name", "x" * (MAX_TEXT + 1)), whole().key)


def test_a_manifest_may_be_as_long_as_the_limit_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = whole().encode()
    monkeypatch.setattr(module, "MAX_MANIFEST_BYTES", len(raw))
    assert decode_manifest(raw, whole().key) == whole()
    monkeypatch.setattr(module, "MAX_MANIFEST_BYTES", len(raw) - 1)
    with pytest.raises(BackupInvalid, match="at most are read"):
        decode_manifest(raw, whole().key)


def test_a_manifest_may_hold_as_many_lists_as_the_limit_and_not_one_more(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = whole().encode()
    monkeypatch.setattr(module, "MAX_MANIFEST_CONTAINERS", raw.count(b"[") + raw.count(b"{"))
    assert decode_manifest(raw, whole().key) == whole()
    monkeypatch.setattr(module, "MAX_MANIFEST_CONTAINERS", raw.count(b"[") + raw.count(b"{") - 1)
    with pytest.raises(BackupInvalid, match="the number of lists"):
        decode_manifest(raw, whole().key)


def test_a_backup_without_a_record_is_none() -> None:
    """`base` had no answer for it."""
    empty = whole()._replace(pieces=(), snapshots=(), end=Tail(0, 0, 0, 0), applied=(0, "00" * 16))

    with pytest.raises(BackupInvalid, match="it has no record"):
        decode_manifest(empty.encode(), empty.key)


def test_only_a_backup_s_own_files_are_its_own() -> None:
    assert is_of_backup(piece(0, 10).file)
    assert is_of_backup(f"{piece(0, 10).file}.0123456789abcdef.tmp")
    for other in ("snapshots/00000000000000042000/manifest", "frames/notes.txt", "manifests/README", "identity"):
        assert not is_of_backup(other)
