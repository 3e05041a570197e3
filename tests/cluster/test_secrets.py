"""Peer secrets: the files that hold them, who starts without one, and what a node says of it."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from structlog.testing import capture_logs
from typer.testing import CliRunner

from quire.cluster.cli.commands import app
from quire.cluster.config.secret_file import MAX_FILE_BYTES, MAX_SECRETS, SecretRefused, read_secrets, write_new_secret
from quire.cluster.config.serve import load_config
from quire.cluster.node.node import Node
from quire.cluster.node.views.status import node_status
from quire.cluster.serve.arguments import parse_serve
from tests.cluster.test_ignored_settings import config_of, running

LEAST = b"0123456789abcdef"
LONG = b"a secret of the peers"


def written(folder: Path, data: bytes, mode: int = 0o600) -> Path:
    file = folder / "peer-secret"
    file.write_bytes(data)
    file.chmod(mode)
    return file


# Files


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277])
def test_a_new_secret_is_32_random_bytes_as_text_that_only_its_owner_may_read(tmp_path: Path, umask: int) -> None:
    files, before = [tmp_path / "one", tmp_path / "two"], os.umask(umask)
    try:
        made = [CliRunner().invoke(app, ["secret", "new", str(file)]) for file in files]
    finally:
        os.umask(before)

    assert [each.exit_code for each in made] == [0, 0]
    assert f"quire serve ... --peer-secret-file {files[0]}" in made[0].output
    texts = [file.read_text() for file in files]
    assert [(len(bytes.fromhex(text)), text[-1]) for text in texts] == [(32, "\n")] * 2
    assert texts[0] != texts[1]
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600] * 2
    assert texts[0].strip() not in made[0].output
    assert [read_secrets(file).secrets for file in files] == [(text.strip().encode(),) for text in texts]
    assert read_secrets(files[0]).alarm is None


def test_a_new_secret_is_closed_to_others_before_anything_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fchmod", lambda *_: None)  # It comes after the file is open to whoever may open it.
    before = os.umask(0)
    try:
        write_new_secret(tmp_path / "peer-secret")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "peer-secret").stat().st_mode) == 0o600


@pytest.mark.parametrize("there", ["a file", "a link to nothing"])
def test_a_new_secret_replaces_nothing(tmp_path: Path, there: str) -> None:
    file = tmp_path / "peer-secret"
    if there == "a file":
        file.write_text("in use")
    else:
        file.symlink_to(tmp_path / "nowhere")

    made = CliRunner().invoke(app, ["secret", "new", str(file)])

    assert made.exit_code == 2
    assert f"{file} exists" in made.output
    assert not (tmp_path / "nowhere").exists()
    assert there != "a file" or file.read_text() == "in use"


def test_a_secret_whose_file_cannot_be_made_says_why_and_one_that_cannot_be_written_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = CliRunner().invoke(app, ["secret", "new", str(tmp_path / "no" / "file")])
    assert (made.exit_code, "no such file or directory" in made.output) == (1, True)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_new_secret(tmp_path / "peer-secret")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("data", "secrets"),
    [
        (LEAST, (LEAST,)),
        (LONG + b"\n", (LONG,)),
        (b"\n \n" + LONG + b" \r\n\t" + LEAST + b"\n\n", (LONG, LEAST)),
        (b"\n".join([LONG] * MAX_SECRETS), (LONG,) * MAX_SECRETS),
    ],
)
def test_each_line_of_a_file_is_a_secret(tmp_path: Path, data: bytes, secrets: tuple[bytes, ...]) -> None:
    assert read_secrets(written(tmp_path, data)).secrets == secrets


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (LEAST[1:], "secret 1 has 15 bytes, fewer than 16"),
        (LEAST[1:] + b"  \n", "secret 1 has 15 bytes"),
        (LONG + b"\nshort\n", "secret 2 has 5 bytes"),
        (b"\n".join([LONG] * (MAX_SECRETS + 1)), f"more than {MAX_SECRETS} lines"),
        (b"x" * (MAX_FILE_BYTES + 1), f"or {MAX_FILE_BYTES:,} bytes"),
    ],
)
async def test_a_node_with_a_file_that_holds_no_good_secret_does_not_start(
    tmp_path: Path, data: bytes, why: str
) -> None:
    file, data_dir = written(tmp_path, data), tmp_path / "n1"

    with pytest.raises(SecretRefused, match=why) as refused:
        await Node(config_of(data_dir, peer_secret_file=file)).start()

    assert str(file) in str(refused.value)
    assert not data_dir.exists()


def test_a_file_that_cannot_be_read_is_named_as_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(SecretRefused, match=r"^peer_secret_file .* cannot be read: is a directory; make it readable"):
        read_secrets(tmp_path)


# Who starts without one


@pytest.mark.parametrize(
    ("listen", "starts"),
    [
        *((f"{host}:7001", True) for host in ("127.0.0.1", "127.8.0.1", "[::1]", "[::ffff:127.0.0.1]", "localhost")),
        *((f"{host}:7001", False) for host in ("0.0.0.0", "[::]", "10.0.0.1", "[fd00::1]", "[::ffff:10.0.0.1]", "n1")),
    ],
)
def test_without_certificates_and_tokens_a_node_listens_on_its_own_machine_alone(
    tmp_path: Path, listen: str, starts: bool
) -> None:
    def made(**more: Any) -> Any:
        return config_of(tmp_path, listen=listen, members={"n1": listen}, **more)

    if starts:
        made()
    else:
        for more in ({}, {"peer_secret_file": written(tmp_path, LONG)}):
            with pytest.raises(ValidationError, match=r"quire certs init .*--tls-cert certs/n1.crt .*--tokens tokens"):
                made(**more)
    with pytest.raises(ValidationError, match=r"insecure needs a peer secret.*quire secret new peer-secret"):
        made(insecure=True)
    made(peer_secret_file=written(tmp_path, LONG), insecure=True)


@pytest.mark.parametrize("flags", [["--insecure"], ["--insecure", "true"]])
def test_insecure_is_a_switch(flags: list[str], tmp_path: Path) -> None:
    given = ["--node", "n1", "--listen", "0.0.0.0:1", "--members", "n1=n1:1", "--data-dir", "d"]
    given += ["--peer-secret-file", str(written(tmp_path, LONG))]

    assert load_config(parse_serve([*given, *flags])[0]).insecure


async def test_an_insecure_node_says_so_at_its_start_and_in_its_status(tmp_path: Path) -> None:
    file = written(tmp_path, LONG)
    async with running(config_of(tmp_path / "n1", insecure=True, peer_secret_file=file)) as (node, told):
        assert node_status(node)["alarms"] == told
        [alarm] = told
        assert "--insecure: others can read this server's traffic" in alarm
        assert "`quire certs`, `quire token`" in alarm


@pytest.mark.parametrize(("mode", "is_exposed"), [(0o400, False), (0o640, False), (0o444, True), (0o602, True)])
@pytest.mark.parametrize("forms", [True, False])
async def test_a_secret_that_every_user_may_read_is_an_alarm(
    tmp_path: Path, mode: int, is_exposed: bool, forms: bool
) -> None:
    file = written(tmp_path, LONG, mode)
    members = {} if forms else {"members": {"n1": "127.0.0.1:1", "n2": "127.0.0.1:2"}, "listen": "127.0.0.1:1"}
    async with running(config_of(tmp_path / "n1", peer_secret_file=file, **members), forms=forms) as (node, told):
        assert told == node_status(node)["alarms"]
        assert [f"has mode {mode:04o}" in alarm for alarm in told] == [True] * is_exposed


async def test_no_secret_is_in_the_journal_or_the_status(tmp_path: Path) -> None:
    file = written(tmp_path, LONG, 0o444)
    with capture_logs() as lines:
        async with running(config_of(tmp_path / "n1", peer_secret_file=file)) as (node, told):
            shown = f"{lines} {told} {node_status(node)}"
    assert LONG.decode() not in shown
