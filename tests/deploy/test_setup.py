"""The set-up script: what it makes is accepted by a node, belongs to its readers only, and is made once."""

import re
import shutil
import stat
from pathlib import Path

import pytest

from quire.cluster.access.roles import Role
from quire.cluster.access.tls import TlsFiles, load_client_tls, load_tls
from quire.cluster.access.tokens import read_tokens
from tests.deploy.compose import ACCESS, DEPLOY, NODES, Installed, composed, installed
from tests.tidy.tree import Tree

KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----\s+[A-Za-z0-9+/]{40}")
TOKEN = re.compile(r"\bquire_(?=[a-z0-9_-]*[A-Z])[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])")
PRIVATE = {"n1.key", "n2.key", "n3.key", "n4.key", "tokens", "prometheus.token", "grafana.password"}
CLIENT = {"ca.crt", "admin.token", "prometheus.token", "grafana.password"}


@pytest.fixture
def own(made: Installed, tmp_path: Path) -> Installed:
    """A copy that a test may change."""
    shutil.copytree(made.access.parent, tmp_path / "own")
    return Installed(tmp_path / "own" / "access", tmp_path / "own" / "client")


def contents(made: Installed) -> dict[str, tuple[bytes, int, int]]:
    """Each file's content, inode and time of change."""
    files = [*made.access.iterdir(), *made.client.iterdir()]
    return {str(file): (file.read_bytes(), file.stat().st_ino, file.stat().st_mtime_ns) for file in files}


def text_of(file: Path) -> str:
    return file.read_text().strip()


def test_a_node_accepts_its_certificate_and_the_tokens_and_a_client_the_node(made: Installed) -> None:
    for node_id in NODES:
        files = TlsFiles(made.access / f"{node_id}.crt", made.access / f"{node_id}.key", made.access / "ca.crt")
        assert {"localhost", "compose.quire"} <= load_tls(files, node_id).dns_names
    tokens = read_tokens(made.access / "tokens")

    admin, prometheus = (tokens.find(text_of(made.client / f"{name}.token")) for name in ("admin", "prometheus"))

    assert admin is not None
    assert admin.role is Role.ADMIN
    assert prometheus is not None
    assert prometheus.role is Role.READ
    assert tokens.alarm is None
    assert load_client_tls(made.client / "ca.crt").server_name == "compose.quire"


def test_the_client_s_files_are_for_the_client_alone(made: Installed) -> None:
    owner = made.client.stat().st_uid

    assert {file.name for file in made.client.iterdir()} == CLIENT
    for file in made.client.iterdir():
        assert (stat.S_IMODE(file.stat().st_mode), file.stat().st_uid) == (0o600, owner), file


def test_every_private_file_is_of_one_group_and_the_ca_s_key_of_none(made: Installed) -> None:
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in made.access.iterdir()}

    assert set(made.groups) == PRIVATE
    assert modes == {
        "ca.key": 0o600,
        "ca.crt": 0o644,
        **{f"{node_id}.crt": 0o644 for node_id in NODES},
        **dict.fromkeys(PRIVATE, 0o640),
    }


def test_each_container_is_of_the_groups_of_the_files_that_it_reads_and_of_no_other(made: Installed) -> None:
    services = composed()["services"]
    group_of_image = made.groups["tokens"]
    assert f"--gid {group_of_image} quire" in (DEPLOY / "Dockerfile").read_text(), "the group of every node"

    for name, service in services.items():
        reads = {
            "prometheus": {made.groups["prometheus.token"]},
            "grafana": {made.groups["grafana.password"]},
            **{node_id: {made.groups[f"{node_id}.key"]} for node_id in NODES},
        }.get(name, set())
        assert set(service.get("group_add", [])) == reads, name
        mounts = [mount for mount in service["volumes"] if mount.startswith("access:")]
        expected = [f"access:{ACCESS}"] if name == "setup" else [f"access:{ACCESS}:ro"] if reads else []
        assert mounts == expected, name


def test_a_second_run_changes_nothing(own: Installed) -> None:
    before = contents(own)

    own.run()

    assert contents(own) == before


def test_a_lost_token_is_made_again_and_the_lost_one_revoked(own: Installed) -> None:
    lost = text_of(own.client / "admin.token")
    (own.client / "admin.token").unlink()
    before = contents(own)

    own.run()

    tokens = read_tokens(own.access / "tokens")
    made_again = tokens.find(text_of(own.client / "admin.token"))
    assert tokens.find(lost) is None
    assert made_again is not None
    assert made_again.role is Role.ADMIN
    changed = {Path(name).name for name, content in contents(own).items() if before.get(name) != content}
    assert changed == {"tokens", "admin.token"}


def test_a_client_s_files_of_a_removed_volume_are_replaced(own: Installed, tmp_path: Path) -> None:
    shutil.rmtree(own.access)

    own.run()

    assert (own.client / "ca.crt").read_bytes() == (own.access / "ca.crt").read_bytes()
    tokens = read_tokens(own.access / "tokens")
    assert tokens.find(text_of(own.client / "admin.token")) is not None
    assert tokens.find(text_of(own.client / "prometheus.token")) is not None


def test_an_interrupted_run_is_finished_by_the_next(tmp_path: Path) -> None:
    """It was killed between the CA's key and its certificate, and between a token and its text."""
    own = Installed(tmp_path / "access", tmp_path / "client")
    own.access.mkdir()
    (own.access / "ca.key").write_text("the key of a certificate that was not written")
    (own.access / "tokens").write_text(f"admin:{'0' * 64}:admin:never\n")

    own.run()

    load_tls(TlsFiles(own.access / "n1.crt", own.access / "n1.key", own.access / "ca.crt"), "n1")
    assert read_tokens(own.access / "tokens").find(text_of(own.client / "admin.token")) is not None


def test_passwords_and_tokens_differ_from_one_installation_to_the_next(made: Installed, tmp_path: Path) -> None:
    other = installed(tmp_path)

    for name in CLIENT:
        assert text_of(made.client / name) != text_of(other.client / name)
        assert len(text_of(made.client / name)) >= 32


def test_no_key_and_no_token_is_in_the_repository() -> None:
    """The client's folder is, so that it belongs to the user; what is in it is ignored."""
    tree = Tree.of_checkout(DEPLOY.parent)
    deployed = [DEPLOY.parent / path for path in tree.paths if path.parts[0] == "deploy"]
    texts = {file: file.read_text() for file in deployed}

    assert [file for file, text in texts.items() if KEY.search(text) or TOKEN.search(text)] == []
    assert [file.name for file in deployed if file.parent == DEPLOY / "client"] == [".gitignore"]
    ignored = [line for line in (DEPLOY / "client" / ".gitignore").read_text().splitlines() if line[:1] != "#"]
    assert ignored == ["*", "!.gitignore"]


def test_a_key_and_a_token_would_be_found(made: Installed) -> None:
    assert KEY.search((made.access / "n1.key").read_text())
    assert TOKEN.search((made.client / "admin.token").read_text())
