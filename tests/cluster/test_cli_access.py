"""Commands with a token and a CA: by flag or variable, what is wrong with them, and the exit codes of refusals."""

import asyncio
import inspect
import json
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
import typer
from typer.testing import CliRunner

from quire.cluster.cli.commands import COMMANDS, app, group_of
from quire.cluster.cli.output import Exit
from quire.cluster.config.serve import ServeConfig
from quire.cluster.config.settings import ConfigInvalid, load_settings
from tests.cluster.access.issued import Authority
from tests.cluster.access.known import KnownTokens, unauthorized
from tests.cluster.scripted import appended, document, lines, refusing, scripted
from tests.cluster.streaming import streaming

TOKEN = "quire_" + "a" * 43
FEWEST = 15


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("shop")


@pytest.fixture
def tls(tmp_path: Path, authority: Authority) -> ssl.SSLContext:
    return authority.context(tmp_path)


@pytest.fixture
def variables(tmp_path: Path, authority: Authority) -> dict[str, str]:
    """The variables of a client of the locked cluster."""
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o600)
    return {"QUIRE_TOKEN_FILE": str(token), "QUIRE_CA": str(authority.write(tmp_path / "ca.crt"))}


class Ended(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str


async def run(variables: Mapping[str, str], *arguments: str) -> Ended:
    ended = await asyncio.to_thread(CliRunner().invoke, app, arguments, env=dict(variables))
    return Ended(ended.exit_code, ended.stdout, ended.stderr)


def parameters_of(group: typer.Typer) -> Iterator[set[str]]:
    """The parameters of each command in a group."""
    for command in [*group.registered_commands, group.registered_callback]:
        if command is not None and command.callback is not None:
            yield set(inspect.signature(command.callback).parameters)
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        yield from parameters_of(inner.typer_instance)


def test_every_command_that_names_servers_takes_a_token_and_a_ca() -> None:
    groups = {location.at: group_of(location) for location in COMMANDS.values()}
    connecting = [names for group in groups.values() for names in parameters_of(group) if "server" in names]

    assert len(connecting) >= FEWEST
    assert all({"token_file", "ca"} <= names for names in connecting)


async def test_the_variables_suffice_to_write_to_a_locked_cluster(
    tls: ssl.SSLContext, variables: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "commands.ndjson"
    file.write_text("[1]\n[2]\n")
    async with streaming(tls=tls, middlewares=[KnownTokens(TOKEN).middleware]) as server:
        variables["QUIRE_SERVER"] = server.address
        applied = await run(variables, "apply", "add", "3")
        loaded = await run(variables, "load", str(file))

    assert (applied.exit_code, applied.stdout, applied.stderr) == (Exit.DONE, "1\n", "")
    assert (loaded.exit_code, loaded.stderr) == (Exit.DONE, "")
    assert server.executed == [["add", 3], [1], [2]]


async def test_the_variables_suffice_to_read_from_a_locked_cluster(
    tls: ssl.SSLContext, variables: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    async with scripted(document({"node_id": "n1", "role": "leader"}), tls=tls) as server:
        shown = await run({**variables, "QUIRE_SERVER": server.address}, "status", "--json")
    async with scripted(lines(0, next_index=1), tls=tls) as server:
        tailed = await run(
            {**variables, "QUIRE_SERVER": server.address}, "tail", "--from", "0", "--count", "1", "--timeout", "60"
        )

    assert (shown.exit_code, list(json.loads(shown.stdout))) == (Exit.DONE, ["n1"])
    assert (tailed.exit_code, json.loads(capfd.readouterr().out)["index"]) == (Exit.DONE, 0)


async def test_flags_override_the_variables(tls: ssl.SSLContext, variables: dict[str, str]) -> None:
    flags = ["--token-file", variables["QUIRE_TOKEN_FILE"], "--ca", variables["QUIRE_CA"]]
    others = {"QUIRE_TOKEN_FILE": "absent", "QUIRE_CA": "absent"}
    async with scripted(document({"machine": {"name": "log"}}), appended(7), tls=tls) as server:
        ended = await run(others, "append", "3", "--server", server.address, *flags)

    assert (ended.exit_code, ended.stdout) == (Exit.DONE, "7\n")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"QUIRE_TOKEN_FILE": "absent"}, "token file absent cannot be read: no such file or directory"),
        ({"QUIRE_CA": "absent"}, "ca absent cannot be read: no such file or directory"),
        ({"QUIRE_CA": ""}, "a token needs the cluster's CA as well"),
        ({"QUIRE_TOKEN_FILE": __file__}, "does not hold a token"),
        ({"QUIRE_CA": __file__}, "holds no certificate of a CA"),
    ],
)
@pytest.mark.parametrize("command", ["apply add 3", "status", "status --watch", "tail", "members", "read --export"])
async def test_a_file_that_cannot_be_used_is_a_usage_error(
    changed: dict[str, str], words: str, command: str, variables: dict[str, str]
) -> None:
    ended = await run({**variables, "QUIRE_SERVER": "127.0.0.1:1", **changed}, *command.split())

    assert ended.exit_code == Exit.USAGE, ended
    [line] = [line for line in ended.stderr.splitlines() if "has mode" not in line]
    assert line.startswith("quire: ")
    assert words in line


@pytest.mark.parametrize("command", ["append 3", "apply add 3", "members", "status", "transfer", "tail --timeout 60"])
async def test_a_refused_token_fails_the_command_with_a_sentence(
    command: str, tls: ssl.SSLContext, variables: dict[str, str]
) -> None:
    async with scripted(unauthorized, tls=tls) as server:
        ended = await run({**variables, "QUIRE_SERVER": server.address}, *command.split())

    assert (ended.exit_code, ended.stdout) == (Exit.FAILED, "")
    assert ended.stderr == f"quire: {server.address} answered 401: the token is not known\n"


async def test_a_role_that_does_not_suffice_stops_a_load_with_what_is_acknowledged(
    tls: ssl.SSLContext, variables: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "commands.ndjson"
    file.write_text("[1]\n")
    async with scripted(refusing(403, "forbidden"), tls=tls) as server:
        ended = await run({**variables, "QUIRE_SERVER": server.address}, "load", str(file))

    assert ended.exit_code == Exit.FAILED
    assert "answered 403: detail of forbidden; no line is acknowledged, no other line was applied\n" in ended.stderr


async def test_a_server_of_another_cluster_is_unavailable_with_why(variables: dict[str, str], tmp_path: Path) -> None:
    async with scripted(appended(7), tls=Authority("other").context(tmp_path)) as server:
        ended = await run({**variables, "QUIRE_SERVER": server.address}, "append", "3")

    assert ended.exit_code == Exit.UNAVAILABLE
    assert f"{server.address} is not a server of the cluster shop" in ended.stderr


async def test_a_token_file_that_every_user_may_read_is_warned_of_once(
    tls: ssl.SSLContext, variables: dict[str, str]
) -> None:
    Path(variables["QUIRE_TOKEN_FILE"]).chmod(0o644)  # noqa: ASYNC240
    async with scripted(document({"machine": {"name": "log"}}), appended(7), tls=tls) as server:
        ended = await run({**variables, "QUIRE_SERVER": server.address}, "append", "3")

    assert (ended.exit_code, ended.stdout) == (Exit.DONE, "7\n")
    [line] = ended.stderr.splitlines()
    assert "has mode 0644: every user of this machine may read or change it; run `chmod o= " in line


def test_the_variables_of_a_client_do_not_stop_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_TOKEN_FILE", "token")
    monkeypatch.setenv("QUIRE_CA", "ca.crt")
    monkeypatch.setenv("QUIRE_TOKEN", TOKEN)
    with pytest.raises(ConfigInvalid) as refused:
        load_settings(ServeConfig, {})

    assert not [problem for problem in refused.value.problems if "QUIRE_TOKEN_FILE" in problem or "QUIRE_CA" in problem]
    assert TOKEN not in str(refused.value)
