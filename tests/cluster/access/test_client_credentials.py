"""A client's token and CA: what is refused, how a change of their files is noticed, and that no token is shown."""

import os
import pickle
import ssl
from pathlib import Path

import pytest

from quire.cluster.access.client_credentials import (
    LOOK_EVERY_S,
    MAX_TOKEN_FILE_BYTES,
    SETTLING_S,
    ClientCredentials,
    Shown,
    TokenRefused,
    warning_of,
)
from quire.cluster.access.tls import TlsRefused
from tests.cluster.access.issued import Authority
from tests.cluster.conftest import TOKEN

NEXT = "quire_" + "b" * 43


class Clock:
    """A clock that the tests turn."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def written(path: Path, token: str) -> Path:
    """As a tool replaces a file: a new one under the same name."""
    new = path.with_name("new")
    new.write_text(token + "\n")
    return new.rename(path)


def test_without_a_ca_connections_are_plain_and_nothing_is_shown() -> None:
    shown = ClientCredentials().shown()

    assert (shown.context, shown.server_name, dict(shown.headers)) == (None, None, {})
    assert shown.url("n1:7001", "/status") == "http://n1:7001/status"


def test_with_a_ca_the_servers_must_prove_the_name_of_the_cluster_in_its_subject(ca: Path) -> None:
    shown = ClientCredentials(ca=ca).shown()

    assert shown.server_name == "shop.quire"
    assert shown.url("n1:7001", "/status") == "https://n1:7001/status"
    assert shown.context is not None
    assert shown.context.minimum_version is ssl.TLSVersion.TLSv1_3
    assert shown.context.check_hostname


def test_the_name_of_the_cluster_may_be_given(ca: Path) -> None:
    assert ClientCredentials(ca=ca, cluster="store").shown().server_name == "store.quire"


def test_a_token_is_read_from_the_first_line_of_its_file_or_given_as_text(ca: Path, tmp_path: Path) -> None:
    file = written(tmp_path / "token", f"{TOKEN}  \nfor the nightly load")

    for token in (TOKEN, file):
        assert ClientCredentials(token, ca).shown().headers == {"Authorization": f"Bearer {TOKEN}"}


@pytest.mark.parametrize(("token", "cluster"), [(TOKEN, None), (None, "shop"), (Path("token"), None)])
def test_a_token_or_a_name_without_a_ca_is_refused_with_what_to_give(
    token: str | Path | None, cluster: str | None
) -> None:
    with pytest.raises(ValueError, match=r"needs the cluster's CA.*--ca, QUIRE_CA or ca="):
        ClientCredentials(token, cluster=cluster)


@pytest.mark.parametrize("text", ["", TOKEN[:-1], TOKEN + "a", TOKEN + "\n", "token.txt", "quire_" + "ä" * 43])
def test_a_text_that_is_no_token_is_refused_and_not_shown(ca: Path, text: str) -> None:
    with pytest.raises(ValueError, match="token is not the text of a token") as refused:
        ClientCredentials(text, ca)

    assert not text or text not in str(refused.value)


@pytest.mark.parametrize("content", ["", "\n" + TOKEN, TOKEN[:20], "# token\n" + TOKEN, "name:" + TOKEN])
def test_a_file_that_does_not_begin_with_a_token_is_refused_and_not_shown(
    ca: Path, tmp_path: Path, content: str
) -> None:
    file = tmp_path / "token"
    file.write_text(content)

    with pytest.raises(TokenRefused, match="does not hold a token") as refused:
        ClientCredentials(file, ca)

    assert "aaa" not in str(refused.value)


def test_a_file_that_cannot_be_read_is_refused_with_why(ca: Path, tmp_path: Path) -> None:
    with pytest.raises(TokenRefused, match="cannot be read: no such file"):
        ClientCredentials(tmp_path / "token", ca)
    with pytest.raises(TlsRefused, match="cannot be read: no such file"):
        ClientCredentials(ca=tmp_path / "absent.crt")


def test_a_pipe_is_refused_and_not_waited_for(ca: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TokenRefused, match="is not a regular file"):
        ClientCredentials(tmp_path / "pipe", ca)


def test_a_token_in_place_of_its_files_path_is_refused_and_not_shown(ca: Path) -> None:
    with pytest.raises(TokenRefused, match="revoke it") as refused:
        ClientCredentials(Path(TOKEN), ca)

    assert "aaa" not in str(refused.value)


def test_only_the_beginning_of_a_large_file_is_read(ca: Path, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(" " * MAX_TOKEN_FILE_BYTES + TOKEN)

    with pytest.raises(TokenRefused):
        ClientCredentials(file, ca)


def test_a_changed_file_is_noticed_within_a_second(ca: Path, token_file: Path, authority: Authority) -> None:
    clock = Clock()
    credentials = ClientCredentials(token_file, ca, clock=clock)
    first = credentials.shown()
    written(token_file, NEXT)

    clock.now += LOOK_EVERY_S - 0.01
    assert credentials.shown() is first
    clock.now += 0.02
    second = credentials.shown()
    assert second.headers["Authorization"] == f"Bearer {NEXT}"
    assert second.context is first.context  # Only the token changed: connections stay in use.

    ca.write_bytes(authority.pem + Authority("shop").pem)
    clock.now += LOOK_EVERY_S
    assert credentials.shown().context is not first.context


def test_a_refusal_has_the_files_looked_at_at_once(ca: Path, token_file: Path) -> None:
    credentials = ClientCredentials(token_file, ca, clock=Clock())
    shown = credentials.shown()

    assert not credentials.renewed(shown)
    written(token_file, NEXT)
    assert credentials.renewed(shown)
    assert credentials.renewed(shown)  # For the other requests that were refused with it.
    assert not credentials.renewed(credentials.shown())


def test_a_token_settles_after_some_seconds(ca: Path, token_file: Path) -> None:
    clock = Clock()
    credentials = ClientCredentials(token_file, ca, clock=clock)
    settling = [credentials.settling]  # The first one is not new: it was there before the client.

    written(token_file, NEXT)
    credentials.renewed(credentials.shown())
    settling.append(credentials.settling)
    clock.now += SETTLING_S
    assert [*settling, credentials.settling] == [False, True, False]


@pytest.mark.parametrize("content", [None, "", TOKEN[:30]])
def test_a_token_stays_in_use_while_its_file_is_missing_or_half_written(
    ca: Path, token_file: Path, content: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    credentials = ClientCredentials(token_file, ca, clock=Clock())
    shown = credentials.shown()
    token_file.unlink()
    if content is not None:
        token_file.write_text(content)

    assert not credentials.renewed(shown)
    assert TOKEN[:30] not in caplog.text
    written(token_file, NEXT)
    assert credentials.renewed(shown)


@pytest.mark.parametrize("length", [0, 100, -2])
def test_a_ca_stays_in_use_while_its_file_is_half_written(ca: Path, authority: Authority, length: int) -> None:
    credentials = ClientCredentials(ca=ca, clock=Clock())
    shown = credentials.shown()
    ca.write_bytes(authority.pem.strip()[:length])

    assert not credentials.renewed(shown)
    ca.write_bytes(Authority("shop").pem)
    assert credentials.renewed(shown)


def test_no_token_is_in_a_repr(ca: Path, token_file: Path) -> None:
    for token in (TOKEN, token_file):
        credentials = ClientCredentials(token, ca)
        assert TOKEN not in repr(credentials) + repr(credentials.shown())


def test_errors_can_be_copied() -> None:
    error = pickle.loads(pickle.dumps(TokenRefused("token file x cannot be read")))

    assert (type(error), str(error)) == (TokenRefused, "token file x cannot be read")


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, False), (0o644, True), (0o602, True)])
def test_a_file_that_every_user_may_read_or_change_is_warned_of(token_file: Path, mode: int, warned: bool) -> None:
    token_file.chmod(mode)

    warning = warning_of(token_file)
    assert (warning is not None) is warned
    assert warning is None or f"chmod o= {token_file}" in warning


def test_a_file_that_is_missing_is_not_warned_of(tmp_path: Path) -> None:
    assert warning_of(tmp_path / "token") is None


def test_an_error_of_a_plain_connection_says_nothing_of_certificates() -> None:
    assert Shown().refusal_of("n1:7001", ssl.SSLError()) is None
