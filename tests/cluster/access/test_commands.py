"""`quire token` and `quire certs`: what they print, and their exit codes."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import quire.cluster.access
from quire.cluster.access.roles import Role
from quire.cluster.access.tls import TlsFiles, load_tls
from quire.cluster.access.tokens import HEADING, add_token, read_tokens
from quire.cluster.cli.commands import app

DEADLINE_S = 60


def run(*arguments: str | Path) -> tuple[int, str, str]:
    """The exit code, stdout and stderr of a command."""
    result = CliRunner().invoke(app, [*map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def new(file: Path, name: str = "app", *more: str) -> tuple[int, str, str]:
    return run("token", "new", name, "--role", "write", "--file", file, *more)


# Tokens


def test_a_new_token_is_alone_on_stdout_and_is_found_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    code, out, notes = new(file)

    assert (code, out.count("\n")) == (0, 1)
    found = read_tokens(file).find(out.removesuffix("\n"))
    assert found is not None
    assert (found.name, found.role, found.expires_at) == ("app", Role.WRITE, None)
    assert f"{file} has the token app now (write, expires: never). Copy it to every node first." in notes
    assert out.strip() not in notes
    assert out.strip() not in file.read_text()


def test_a_new_token_as_json_has_its_name_role_expiry_and_text(tmp_path: Path) -> None:
    code, out, notes = new(tmp_path / "tokens", "app", "--json")
    row = json.loads(out)
    assert (code, notes, list(row)) == (0, "", ["name", "role", "expires", "token"])
    assert (row["role"], row["expires"]) == ("write", "never")
    assert read_tokens(tmp_path / "tokens").find(row["token"]) is not None


@pytest.mark.parametrize(("text", "seconds"), [("90d", 7_776_000), ("12h", 43_200), ("30m", 1_800)])
def test_a_token_expires_after_the_time_that_is_asked_for(
    tmp_path: Path, text: str, seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 1_700_000_000.7)
    assert new(tmp_path / "tokens", "app", "--expires", text)[0] == 0
    (token,) = read_tokens(tmp_path / "tokens").tokens
    assert token.expires_at == 1_700_000_000 + seconds


@pytest.mark.parametrize("text", ["", "90", "d", "0d", "-1d", "1.5h", "90D", "90d ", "9999999d", "1y", "2027-01-01"])
def test_an_expiry_of_another_form_is_an_error_of_the_command_line(tmp_path: Path, text: str) -> None:
    code, _, why = new(tmp_path / "tokens", "app", "--expires", text)
    assert (code, why) == (2, "quire: --expires is neither `never` nor a time such as 90d, 12h or 30m\n")
    assert not (tmp_path / "tokens").exists()


@pytest.mark.parametrize("role", ["peer", "open", "root", "WRITE"])
def test_a_role_that_no_token_has_is_an_error_of_the_command_line(tmp_path: Path, role: str) -> None:
    code, _, _ = run("token", "new", "app", "--role", role, "--file", tmp_path / "tokens")
    assert code == 2
    assert not (tmp_path / "tokens").exists()


def test_tokens_are_listed_without_what_would_find_them(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    text, _ = add_token(file, "app", Role.WRITE, None), add_token(file, "old", Role.READ, 1.0)
    digest = next(token.digest.hex() for token in read_tokens(file).tokens if token.name == "app")

    code, out, notes = run("token", "list", "--file", file)
    rows = [line.split("\t") for line in out.splitlines()]
    assert (code, notes) == (0, "")
    assert rows[0] == ["app", "write", "never", digest[:12]]
    assert rows[1][:3] == ["old", "read", "1970-01-01T00:00:01Z (expired)"]

    code, as_json, _ = run("token", "list", "--file", file, "--json")
    assert [(row["name"], row["expired"]) for row in map(json.loads, as_json.splitlines())] == [
        ("app", False),
        ("old", True),
    ]
    for shown in (out, as_json):
        assert digest not in shown
        assert text not in shown


def test_a_list_warns_of_a_file_that_every_user_may_read(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(HEADING)
    file.chmod(0o644)
    code, out, notes = run("token", "list", "--file", file)
    assert (code, out) == (0, "")
    assert f"mode 0644: every user of this machine may read or change it; run `chmod o= {file}`" in notes


def test_a_revoked_token_is_found_no_more(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    text = new(file)[1].strip()
    assert run("token", "revoke", "app", "--file", file)[:2] == (
        0,
        f"{file} has no token app any more. Copy it to every node.\n",
    )
    assert read_tokens(file).find(text) is None
    code, out, why = run("token", "revoke", "app", "--file", file)
    assert (code, out) == (1, "")
    assert "no token named app" in why


def test_a_token_is_renewed_under_its_name(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    before = new(file)[1].strip()
    code, out, notes = run("token", "renew", "app", "--expires", "90d", "--file", file)
    assert (code, "has the token app now (write, expires: " in notes) == (0, True)
    assert [line.split("\t")[0] for line in run("token", "list", "--file", file)[1].splitlines()] == ["app+old", "app"]
    assert run("token", "revoke", "app+old", "--file", file)[0] == 0
    found = read_tokens(file)
    assert (found.find(before), found.find(out.strip())) == (None, found.by_name("app"))
    assert run("token", "renew", "app", "--file", file)[0] == 2, "how long it is valid must be said"


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("half written", "half written"),
        ("a name twice", "the name a is there twice"),
        ("a taken name", "another name, such as app-2"),
        ("no folder", "cannot be changed: no such file or directory; check that"),
    ],
)
def test_a_token_that_cannot_be_added_is_one_sentence_and_no_token(tmp_path: Path, bad: str, why: str) -> None:
    file = tmp_path / "tokens"
    if bad == "half written":
        file.write_text("app")
    elif bad == "a name twice":
        file.write_text(f"a:{'0' * 64}:read:never\na:{'1' * 64}:read:never\n")
    elif bad == "a taken name":
        new(file)
    else:
        file = tmp_path / "none" / "tokens"
    code, out, notes = new(file)
    assert (code, out, notes.count("\n")) == (1, "", 1)
    assert why in notes


# Certificates


def test_the_commands_that_each_command_prints_make_a_cluster_that_starts(tmp_path: Path) -> None:
    code, made, _ = run("certs", "init", tmp_path, "--cluster", "prod")
    assert code == 0
    command = re.search(r"quire (certs node \S+) NODE --host NAME", made)
    assert command is not None
    code, made, _ = run(*command[1].split(), "n1", "--host", "db.example.org", "--host", "10.0.0.1")
    assert (code, "is for n1.prod.quire, prod.quire, db.example.org, 10.0.0.1." in made) == (0, True)
    assert "--tls-cert n1.crt --tls-key n1.key --tls-ca ca.crt" in made
    assert load_tls(TlsFiles(tmp_path / "n1.crt", tmp_path / "n1.key", tmp_path / "ca.crt"), "n1").cluster == "prod"


def test_a_ca_is_replaced_by_the_commands_that_next_prints(tmp_path: Path) -> None:
    run("certs", "init", tmp_path, "--cluster", "prod")
    run("certs", "node", tmp_path, "n1", "--days", "30")
    code, made, _ = run("certs", "init", tmp_path, "--cluster", "prod", "--next")
    assert code == 0
    node, retire = re.search(r"quire (certs node \S+) NODE", made), re.search(r"quire (certs retire \S+)", made)
    assert node is not None
    assert retire is not None

    code, _, why = run(*retire[1].split())
    assert (code, f"quire certs node {tmp_path} n1" in why) == (1, True)
    assert run(*node[1].split(), "n1")[0] == 0
    assert run(*retire[1].split())[:2] == (
        0,
        f"{tmp_path}/ca.crt holds the newest CA alone. Copy it to every node and client.\n",
    )
    assert run(*retire[1].split())[:2] == (0, f"{tmp_path}/ca.crt holds one CA; there is none to remove.\n")


def test_certificates_are_shown_for_people_and_for_programs(tmp_path: Path) -> None:
    run("certs", "init", tmp_path, "--cluster", "prod")
    run("certs", "node", tmp_path, "n1", "--host", "a.org", "--days", "30")

    code, out, _ = run("certs", "show", tmp_path / "n1.crt")
    assert code == 0
    assert re.fullmatch(
        r"n1.crt: node n1 of the cluster prod\n"
        r"    name       n1.prod.quire\n    name       prod.quire\n    name       a.org\n"
        r"    expires    \S+Z, 29 days left\n"
        r"    signed by  the CA with the key [0-9a-f]{16}\n",
        out,
    )
    rows = [json.loads(line) for line in run("certs", "show", tmp_path, "--json")[1].splitlines()]
    assert [row["purpose"] for row in rows] == ["CA of the cluster prod", "node n1 of the cluster prod"]


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (("init", "DIR"), 2, "--cluster"),
        (("init", "DIR", "--cluster", "a.b"), 1, "not one DNS label"),
        (("init", "DIR", "--cluster", "prod", "--days", "0"), 2, "--days"),
        (("init", "DIR", "--cluster", "prod", "--next"), 1, "ca.crt cannot be read"),
        (("node", "DIR", "n1"), 1, "make a CA with `quire certs init`"),
        (("retire", "DIR"), 1, "ca.crt cannot be read"),
        (("show", "DIR"), 1, "holds no *.crt; make a CA"),
    ],
)
def test_a_refused_command_prints_one_sentence_and_writes_nothing(
    tmp_path: Path, arguments: tuple[str, ...], code: int, why: str
) -> None:
    found, out, notes = run("certs", *(str(tmp_path) if each == "DIR" else each for each in arguments))
    assert (found, out) == (code, "")
    assert why in notes
    assert list(tmp_path.iterdir()) == []


def test_without_the_package_the_sentence_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    monkeypatch.delitem(sys.modules, "quire.cluster.access.certificates", raising=False)
    monkeypatch.delattr(quire.cluster.access, "certificates", raising=False)
    code, out, why = run("certs", "init", tmp_path, "--cluster", "prod")
    assert (code, out) == (2, "")
    assert why == "quire: `quire certs` needs the package cryptography: run `pip install 'quire[certs]'`\n"


def test_no_other_command_needs_the_package() -> None:
    program = (
        "import sys; sys.modules['cryptography'] = None\n"
        "import quire.cluster.cli.commands, quire.cluster.serve.node_service, quire.cluster.access.tls"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=DEADLINE_S)
