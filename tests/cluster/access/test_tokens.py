"""The token file: what is in it, what is refused, and that it is whole whatever interrupts its writer."""

import fcntl
import hashlib
import os
import shlex
import stat
import threading
from pathlib import Path

import pytest

from quire.cluster.access.files import NewFile, locked, replace_files
from quire.cluster.access.roles import Role
from quire.cluster.access.tokens import (
    HEADING,
    MAX_FILE_BYTES,
    MAX_TOKENS,
    TokensRefused,
    add_token,
    expiry_text,
    read_tokens,
    renew_token,
    revoke_token,
)

DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
OTHER = "60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752"
AT = 1_803_470_400.0  # 2027-02-24T12:00:00Z


def written(folder: Path, text: str | bytes, mode: int = 0o600) -> Path:
    file = folder / "tokens"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    file.chmod(mode)
    return file


# Reading


def test_a_line_is_a_name_a_digest_a_role_and_an_expiry(tmp_path: Path) -> None:
    lines = f"# people\n\n  \nana:{DIGEST}:admin:never\n"
    file = written(tmp_path, f"{lines}app.2-x:{OTHER}:read:2027-02-24T12:00:00Z\n")

    ana, app = read_tokens(file).tokens

    assert (ana.name, ana.digest.hex(), ana.role, ana.expires_at) == ("ana", DIGEST, Role.ADMIN, None)
    assert (app.name, app.digest.hex(), app.role, app.expires_at) == ("app.2-x", OTHER, Role.READ, AT)
    assert "digest" not in repr(read_tokens(file))


def test_a_token_expires_at_its_time_and_not_before(tmp_path: Path) -> None:
    ana, app = read_tokens(
        written(tmp_path, f"ana:{DIGEST}:read:never\napp:{OTHER}:read:2027-02-24T12:00:00Z\n")
    ).tokens

    assert [app.is_expired(now) for now in (0, AT - 0.001, AT, AT + 1)] == [False, False, True, True]
    assert not ana.is_expired(2.0**40)
    assert [expiry_text(each.expires_at) for each in (ana, app)] == ["never", "2027-02-24T12:00:00Z"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "half written"),
        (f"ana:{DIGEST}:read:never", "half written: its last line has no line feed"),
        (f"ana:{DIGEST}:read:never\nbo", "half written"),
        (f"ana:{DIGEST}:read\n", "line 1 is not NAME:SHA256:ROLE:EXPIRY"),
        (f"# a\n:{DIGEST}:read:never\n", "line 2 is not NAME:SHA256:ROLE:EXPIRY"),
        (f"Ana:{DIGEST}:read:never\n", "line 1 is not NAME"),
        (f"-a:{DIGEST}:read:never\n", "line 1 is not NAME"),
        (f"{'a' * 65}:{DIGEST}:read:never\n", "line 1 is not NAME"),
        (f"+old:{DIGEST}:read:never\n", "line 1 is not NAME"),
        (f"ana+old+old:{DIGEST}:read:never\n", "line 1 is not NAME"),
        (f"ana+old:{DIGEST}:read:never\nana+old:{OTHER}:read:never\n", "line 2: the name ana+old is there twice"),
        (f"ana:{DIGEST[1:]}:read:never\n", "ana has no SHA-256"),
        (f"ana:{DIGEST.upper()}:read:never\n", "ana has no SHA-256"),
        (f"ana:{DIGEST}:peer:never\n", "the role of ana is none of read, write, admin"),
        (f"ana:{DIGEST}:open:never\n", "the role of ana"),
        (f"ana:{DIGEST}:READ:never\n", "the role of ana"),
        (f"ana:{DIGEST}:read:\n", "the expiry of ana is neither `never` nor a time"),
        (f"ana:{DIGEST}:read:2027-02-30T12:00:00Z\n", "the expiry of ana"),
        (f"ana:{DIGEST}:read:2027-2-3T12:00:00Z\n", "the expiry of ana"),
        (f"ana:{DIGEST}:read:2027-02-24T12:00:00+01:00\n", "the expiry of ana"),
        (f"ana:{DIGEST}:read:never:more\n", "the expiry of ana"),
        (f"ana:{DIGEST}:read:never\nana:{OTHER}:read:never\n", "line 2: the name ana is there twice"),
        (f"ana:{DIGEST}:read:never\nbob:{DIGEST}:admin:never\n", "line 2: the token bob has another name above"),
        (b"\xff\xfe\n", "is not text"),
        (b"# " + b"x" * MAX_FILE_BYTES + b"\n", f"more than {MAX_FILE_BYTES:,} bytes"),
    ],
)
def test_a_file_that_is_not_whole_is_refused_as_a_whole(tmp_path: Path, text: str | bytes, why: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(TokensRefused) as refused:
        read_tokens(file)
    assert why in str(refused.value)
    assert str(file) in str(refused.value)
    with pytest.raises(TokensRefused):
        add_token(file, "new", Role.READ, None)
    assert file.read_bytes() == (text if isinstance(text, bytes) else text.encode())


@pytest.mark.parametrize("line", ["{}\n", "ana:{}:read:never\n", "{}:read\n", "ana:" + DIGEST + ":{}:never\n"])
def test_an_error_does_not_show_a_token_that_is_in_the_file_by_mistake(tmp_path: Path, line: str) -> None:
    text = add_token(tmp_path / "of-others", "x", Role.READ, None)
    with pytest.raises(TokensRefused) as refused:
        read_tokens(written(tmp_path, line.format(text)))
    assert text not in str(refused.value)
    with pytest.raises(TokensRefused) as refused:
        add_token(tmp_path / "more", text, Role.READ, None)
    assert text not in str(refused.value)
    with pytest.raises(TokensRefused) as refused:
        revoke_token(tmp_path / "of-others", text)
    assert text not in str(refused.value)


def test_as_many_tokens_as_the_limit_are_read_and_one_more_is_refused(tmp_path: Path) -> None:
    lines = [f"n{each}:{each:064x}:read:never\n" for each in range(MAX_TOKENS)]
    file = written(tmp_path, "".join(lines))
    assert len(read_tokens(file).tokens) == MAX_TOKENS

    with pytest.raises(TokensRefused, match="more than 1,000 tokens; revoke"):
        add_token(file, "more", Role.READ, None)
    with pytest.raises(TokensRefused, match="more than 1,000 tokens"):
        read_tokens(written(tmp_path, "".join(lines) + f"more:{DIGEST}:read:never\n"))


@pytest.mark.parametrize("there", ["nothing", "a folder", "a pipe"])
def test_what_is_not_a_file_is_refused_at_once(tmp_path: Path, there: str) -> None:
    file = tmp_path / "tokens"
    if there == "a folder":
        file.mkdir()
    elif there == "a pipe":
        os.mkfifo(file)
    with pytest.raises(TokensRefused, match=str(file)):
        read_tokens(file)


@pytest.mark.parametrize(
    ("mode", "alarms"), [(0o600, False), (0o640, False), (0o660, False), (0o604, True), (0o602, True)]
)
def test_a_file_that_every_user_may_read_or_change_is_an_alarm(tmp_path: Path, mode: int, alarms: bool) -> None:
    file = written(tmp_path, HEADING, mode)
    alarm = read_tokens(file).alarm
    assert (alarm is not None) == alarms
    if alarm is not None:
        assert f"mode {mode:04o}" in alarm
        assert f"chmod o= {file}" in alarm


# Finding


def test_a_token_is_found_by_its_text_alone_also_when_expired(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    write, read = add_token(file, "app", Role.WRITE, None), add_token(file, "old", Role.READ, 1.0)
    found = read_tokens(file)

    assert [each.name for each in found.tokens] == ["app", "old"]
    assert found.find(write) == found.by_name("app") == found.tokens[0]
    assert found.find(read) == found.by_name("old") == found.tokens[1]
    for text in ("", "app", write[:-1], write + "A", write.lower(), found.tokens[0].digest.hex(), "\udcff", "é" * 9000):
        assert found.find(text) is None
    assert found.by_name("none") is None


# Changing


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277])
def test_a_new_token_is_256_random_bits_and_the_file_holds_its_digest_only(tmp_path: Path, umask: int) -> None:
    file, before = tmp_path / "tokens", os.umask(umask)
    try:
        texts = [add_token(file, f"app-{each}", Role.WRITE, AT + 0.9) for each in range(2)]
    finally:
        os.umask(before)

    assert len(set(texts)) == 2
    assert all(text.startswith("quire_") and len(text) == 6 + 43 for text in texts)
    digests = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
    lines = [f"app-{each}:{digest}:write:2027-02-24T12:00:00Z\n" for each, digest in enumerate(digests)]
    assert file.read_text() == HEADING + "".join(lines)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["tokens"]


def test_a_change_keeps_other_lines_the_mode_and_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    file = written(tmp_path / "real", f"# people\nana:{DIGEST}:admin:never\n\n# programs\n", 0o640)
    (tmp_path / "tokens").symlink_to(file)

    add_token(tmp_path / "tokens", "app", Role.READ, None)
    revoke_token(tmp_path / "tokens", "ana")

    assert (tmp_path / "tokens").is_symlink()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert file.read_text().startswith("# people\n\n# programs\napp:")
    assert [each.name for each in read_tokens(file).tokens] == ["app"]


def test_a_change_keeps_the_files_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, given = written(tmp_path, HEADING), []
    monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    monkeypatch.setattr(os, "fchown", lambda _, *owner: given.append(owner))
    add_token(file, "app", Role.READ, None)
    assert given == [(file.stat().st_uid, file.stat().st_gid)]


def test_a_renewed_token_and_the_new_one_have_the_same_name_until_the_old_one_is_revoked(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    before = add_token(file, "app", Role.WRITE, AT)
    admitted = read_tokens(file).find(before)
    assert admitted is not None

    after = renew_token(file, "app", AT + 60)
    both = read_tokens(file)
    old, new = both.find(before), both.find(after)
    assert old is not None
    assert new is not None
    assert [(each.name, each.label, each.role, each.expires_at) for each in (old, new)] == [
        ("app", "app+old", Role.WRITE, AT),
        ("app", "app", Role.WRITE, AT + 60),
    ]
    assert (both.by_name("app"), both.by_name("app+old")) == (new, old)
    assert both.current(admitted)
    with pytest.raises(TokensRefused, match=r"has app\+old already; .* run `quire token revoke app\+old --file"):
        renew_token(file, "app", None)

    revoke_token(file, "app+old")
    assert read_tokens(file).tokens == (new,)
    assert not read_tokens(file).current(admitted)


def test_a_name_that_is_revoked_keeps_no_token(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    add_token(file, "other", Role.READ, None)
    add_token(file, "app", Role.WRITE, None)
    renew_token(file, "app", None)
    revoke_token(file, "app")
    assert [each.label for each in read_tokens(file).tokens] == ["other"]


def test_a_command_in_a_refusal_is_pasted_as_it_is_meant(tmp_path: Path) -> None:
    file = tmp_path / "our tokens; echo $HOME"
    add_token(file, "app", Role.WRITE, None)

    with pytest.raises(TokensRefused) as refused:
        add_token(file, "app", Role.WRITE, None)

    revoke = str(refused.value).split("`")[1]
    assert shlex.split(revoke) == ["quire", "token", "revoke", "app", "--file", str(file)]


@pytest.mark.parametrize("name", ["none", "app+old", "app+new"])
def test_what_is_not_in_the_file_cannot_be_renewed(tmp_path: Path, name: str) -> None:
    file = tmp_path / "tokens"
    add_token(file, "app", Role.WRITE, None)
    before = file.read_bytes()
    with pytest.raises(TokensRefused, match=r"has no token .*; `quire token list --file"):
        renew_token(file, name, None)
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    "changed", ["app:{}:read:never", "app:{}:write:2027-02-24T12:00:00Z", "app-2:{}:write:never", "# {}"]
)
def test_a_token_whose_line_was_changed_is_not_the_one_that_was_admitted(tmp_path: Path, changed: str) -> None:
    file = written(tmp_path, f"app:{DIGEST}:write:never\n")
    (admitted,) = read_tokens(file).tokens
    assert read_tokens(file).current(admitted)
    assert not read_tokens(written(tmp_path, changed.format(DIGEST) + "\n")).current(admitted)


def test_revoking_the_last_token_leaves_a_file_that_admits_nobody(tmp_path: Path) -> None:
    file = written(tmp_path, f"ana:{DIGEST}:admin:never\n")
    revoke_token(file, "ana")
    assert read_tokens(file).tokens == ()


def test_a_taken_name_or_one_that_is_not_there_is_refused_with_the_next_step(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    text = add_token(file, "app", Role.READ, None)
    before = file.read_bytes()

    with pytest.raises(TokensRefused, match=r"quire token revoke app --file .*another name, such as app-2"):
        add_token(file, "app", Role.ADMIN, None)
    with pytest.raises(TokensRefused, match=r"no token named ap; `quire token list --file"):
        revoke_token(file, "ap")
    for role in (Role.OPEN, Role.PEER):
        with pytest.raises(TokensRefused, match="a token's role is one of read, write, admin"):
            add_token(file, "peer", role, None)
    assert file.read_bytes() == before
    assert read_tokens(file).find(text) is not None


@pytest.mark.parametrize("name", ["", "A", "a b", "a:b", "a\nb", "quire_a", ".a", "_a", "a" * 65, "ä"])
def test_a_name_that_the_file_cannot_hold_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(TokensRefused, match="the name is not 1 to 64 of"):
        add_token(tmp_path / "tokens", name, Role.READ, None)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("step", ["open", "fchmod", "fsync", "rename"])
def test_an_interrupted_change_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path, f"ana:{DIGEST}:admin:never\n")
    before = file.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    if step == "open":
        tmp_path.joinpath(".tokens.new").mkdir()  # What should be created is there, and cannot be removed.
    elif step == "rename":
        monkeypatch.setattr(Path, "rename", full)
    else:
        monkeypatch.setattr(os, step, full)
    with pytest.raises(TokensRefused, match=r"cannot be changed: .*; check that"):
        add_token(file, "app", Role.READ, None)
    with pytest.raises(TokensRefused, match="cannot be changed"):
        revoke_token(file, "ana")

    assert file.read_bytes() == before
    assert step == "open" or os.listdir(tmp_path) == ["tokens"]


def test_what_a_killed_command_left_is_replaced(tmp_path: Path) -> None:
    (tmp_path / ".tokens.new").write_text("half a li")
    add_token(tmp_path / "tokens", "app", Role.READ, None)
    assert os.listdir(tmp_path) == ["tokens"]


def test_a_new_file_is_closed_to_others_before_anything_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fchmod", lambda *_: None)  # It comes after the file is open to whoever may open it.
    before = os.umask(0)
    try:
        replace_files(NewFile(tmp_path / "n1.crt", b"x", 0o644))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "n1.crt").stat().st_mode) == 0o600


def test_a_command_beside_another_is_refused_and_no_token_is_lost(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    with locked(tmp_path), pytest.raises(TokensRefused, match="another command is changing files in that folder"):
        add_token(file, "app", Role.READ, None)
    assert not file.exists()

    refused: list[str] = []

    def add(name: str) -> None:
        try:
            add_token(file, name, Role.READ, None)
        except TokensRefused:
            refused.append(name)

    threads = [threading.Thread(target=add, args=(f"t{each}",)) for each in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {each.name for each in read_tokens(file).tokens} | set(refused) == {f"t{each}" for each in range(16)}


def test_a_reader_needs_no_lock(tmp_path: Path) -> None:
    file = written(tmp_path, HEADING)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        assert read_tokens(file).tokens == ()
    finally:
        os.close(descriptor)
