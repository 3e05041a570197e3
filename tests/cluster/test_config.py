"""The configuration: three sources in their order, and nothing wrong passes silently."""

import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from quire.cluster.config.serve import MIB, ServeConfig, load_config
from quire.cluster.config.settings import ConfigInvalid, Settings, load_settings, service_variables, unit_of
from quire.cluster.node.addresses import Addresses
from quire.cluster.standalone.config import StandaloneConfig
from quire.replication.address import host_and_port, host_of, is_loopback, may_serve

MEMBERS = "n1=127.0.0.1:7001,n2=127.0.0.1:7002,n3=127.0.0.1:7003"
FLAGS: dict[str, Any] = {
    "node": "n1",
    "listen": "127.0.0.1:7001",
    "members": MEMBERS,
    "data_dir": "n1-data",
}


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in list(os.environ):
        if name.upper().startswith("QUIRE_"):
            monkeypatch.delenv(name)
    return monkeypatch


def problems_of(flags: dict[str, Any], config_file: Path | None = None) -> list[str]:
    with pytest.raises(ConfigInvalid) as refused:
        load_config(flags, config_file)
    return refused.value.problems


def test_flags_alone_are_enough() -> None:
    config = load_config(FLAGS)

    assert config.node == "n1"
    assert config.members == {"n1": "127.0.0.1:7001", "n2": "127.0.0.1:7002", "n3": "127.0.0.1:7003"}
    assert config.initial_members == ("n1", "n2", "n3")
    assert config.data_dir == Path("n1-data")
    assert (config.machine, config.initial) == ("arithmetic", None)
    assert (config.heartbeat_ms, config.election_timeout_ms) == (100, 1000)
    assert (config.max_request_bytes, config.max_frame_bytes, config.stream_window_bytes) == (MIB, 8 * MIB, 8 * MIB)


def test_a_configuration_cannot_be_changed() -> None:
    config = load_config(FLAGS)

    with pytest.raises(ValidationError):
        config.node = "n2"  # type: ignore[misc]


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "quire.toml"
    file.write_text('election_timeout_ms = 110\nsegment_bytes = 100000\ninitial = 7\n[link]\nn2 = "a:1"\n')
    monkeypatch.setenv("QUIRE_ELECTION_TIMEOUT_MS", "120")
    monkeypatch.setenv("QUIRE_SEGMENT_BYTES", "200000")

    config = load_config(FLAGS | {"segment_bytes": "300000"}, file)

    assert (config.heartbeat_ms, config.election_timeout_ms, config.segment_bytes) == (12, 120, 300_000)
    assert config.initial == 7
    assert config.link == {"n2": "a:1"}


def test_the_environment_alone_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in FLAGS.items():
        monkeypatch.setenv(f"QUIRE_{name.upper()}", value)
    monkeypatch.setenv("QUIRE_INITIAL_MEMBERS", "n1,n2")
    monkeypatch.setenv("QUIRE_LINK", "n2=proxy:1,n3=proxy:2")
    monkeypatch.setenv("QUIRE_INITIAL", "4.5")

    config = load_config({})

    assert config.initial_members == ("n1", "n2")
    assert config.link == {"n2": "proxy:1", "n3": "proxy:2"}
    assert config.initial == "4.5"


def test_an_initial_value_means_the_same_from_every_source(tmp_path: Path) -> None:
    file = tmp_path / "quire.toml"
    file.write_text("initial = 42\n")

    assert load_config(FLAGS, file).initial == load_config(FLAGS | {"initial": "42"}).initial == 42


def test_a_link_says_where_a_peer_is_reached() -> None:
    config = load_config(FLAGS | {"link": ["n2=127.0.0.1:9002"]})

    addresses = Addresses(config, lambda: None)
    assert addresses.reached("n2") == "127.0.0.1:9002"
    assert addresses.of("n2") == addresses.all()["n2"] == "127.0.0.1:7002"
    assert addresses.reached("n3") == "127.0.0.1:7003"
    assert addresses.reached("n4") is None


def test_an_unknown_variable_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_HEARTBEAT", "100")

    assert problems_of(FLAGS) == ["environment variable QUIRE_HEARTBEAT is not known; unset it or correct its name"]


OF_A_SERVICE = {
    "QUIRE_SERVICE_HOST": "10.0.0.1",
    "QUIRE_SERVICE_PORT": "7001",
    "QUIRE_SERVICE_PORT_CLIENTS_HTTP": "7001",
    "QUIRE_PORT": "tcp://10.0.0.1:7001",
    "QUIRE_PORT_7001_TCP": "tcp://10.0.0.1:7001",
    "QUIRE_PORT_7001_TCP_PROTO": "tcp",
    "QUIRE_PORT_7001_TCP_PORT": "7001",
    "QUIRE_PORT_7001_TCP_ADDR": "10.0.0.1",
    "QUIRE_PORT_7001_UDP": "udp://10.0.0.1:7001",
    "QUIRE_PORT_7001_SCTP_PORT": "7001",
    "QUIRE_NODE_0_SERVICE_HOST": "10.0.0.2",
    "QUIRE_NODE_0_PORT": "udp://10.0.0.2:7001",
    "QUIRE_HEADLESS_PORT_7001_TCP_ADDR": "10.0.0.3",
    "QUIRE_LISTEN_PORT": "sctp://10.0.0.4:7001",
}
OF_A_LINK = {
    "QUIRE_PORT_7001_TCP_START": "tcp://172.17.0.2:7001",
    "QUIRE_PORT_7001_TCP_PORT_START": "7001",
    "QUIRE_PORT_7001_TCP_PORT_END": "7003",
    "QUIRE_PORT_7001_TCP_END": "tcp://172.17.0.2:7003",
    "QUIRE_NAME": "/web/quire",
    "QUIRE_ENV_QUIRE_LISTEN": "0.0.0.0:7001",
    "QUIRE_2_NAME": "/web/quire-2",
    "QUIRE_2_ENV_LANG": "C",
}


@pytest.mark.parametrize("given", [OF_A_SERVICE, OF_A_LINK], ids=["Kubernetes", "Docker"])
@pytest.mark.parametrize("model", [ServeConfig, StandaloneConfig])
def test_variables_of_a_service_named_quire_are_ignored_and_known_by_name(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], model: type[Settings]
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)

    config = load_settings(model, {name: value for name, value in FLAGS.items() if name in model.model_fields})

    assert config.model_fields_set == FLAGS.keys() & model.model_fields.keys()
    assert service_variables() == sorted(given)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("QUIRE_PORT", "7001"),
        ("QUIRE_PORT", "http://10.0.0.1:7001"),
        ("QUIRE_LISTEN_PORT", "7001"),
        ("QUIRE_SERVICE", "quire"),
        ("QUIRE_SERVICE_HOSTS", "10.0.0.1"),
        ("QUIRE_PORT_7001", "7001"),
        ("QUIRE_PORT_HTTP_TCP", "tcp://10.0.0.1:7001"),
        ("QUIRE_PORT_7001_TCP_HOST", "10.0.0.1"),
        ("QUIRE_NAME", "n1"),
        ("QUIRE_ENV_LANG", "C"),
    ],
)
def test_a_variable_that_only_resembles_those_of_a_service_is_an_error(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv("QUIRE_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv(name, value)

    assert problems_of(FLAGS) == [f"environment variable {name} is not known; unset it or correct its name"]


@pytest.mark.parametrize("value", ["1", "tcp://10.0.0.1:7001", "/web/quire"])
def test_no_setting_is_taken_for_a_variable_of_a_service(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    for name in {*ServeConfig.model_fields, *StandaloneConfig.model_fields, "server", "config"}:
        monkeypatch.setenv(f"QUIRE_{name.upper()}", value)

    assert service_variables() == []


def test_variables_of_the_command_line_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_SERVER", "127.0.0.1:7001")
    monkeypatch.setenv("QUIRE_CONFIG", "quire.toml")

    assert load_config(FLAGS).node == "n1"


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    [problem] = problems_of(FLAGS, tmp_path / "none.toml")

    assert "none.toml does not exist" in problem


@pytest.mark.parametrize("text", ["node = ", "node = 'n1'\nnode = 'n2'", "\xff"])
def test_a_file_that_is_no_toml_is_an_error(tmp_path: Path, text: str) -> None:
    file = tmp_path / "quire.toml"
    file.write_bytes(text.encode("latin-1"))

    [problem] = problems_of(FLAGS, file)

    assert "is not TOML" in problem


def test_an_unknown_key_of_the_file_is_an_error_that_names_key_and_file(tmp_path: Path) -> None:
    file = tmp_path / "quire.toml"
    file.write_text("heartbeat = 100\n")

    [problem] = problems_of(FLAGS, file)

    assert problem == f"key heartbeat of {file} is not known; remove it or correct its name"


def test_everything_that_is_missing_is_named_at_once() -> None:
    problems = problems_of({})

    assert [problem.split()[0] for problem in problems] == ["node", "listen", "data_dir"]
    assert problems[2] == "data_dir is missing; give --data-dir, QUIRE_DATA_DIR or the key data_dir in a file"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"node": "N1"}, "flag --node: 'N1'"),
        ({"node": "n" * 25}, "flag --node"),
        ({"node": ""}, "flag --node"),
        ({"node": "n4"}, "node names 'n4'"),
        ({"initial_members": "n1,n4"}, "initial_members names 'n4'"),
        ({"listen": "7001"}, "HOST:PORT"),
        ({"listen": ":7001"}, "HOST:PORT"),
        ({"listen": "localhost:0"}, "HOST:PORT"),
        ({"listen": "localhost:65536"}, "HOST:PORT"),
        ({"listen": "http://localhost:1"}, "HOST:PORT"),
        ({"members": "n1"}, "ID=HOST:PORT"),
        ({"members": "n1=a:1,n1=b:1"}, "named twice"),
        ({"members": "n1=a:1,n2=a:1"}, "same address"),
        ({"members": "n1=10.0.0.1:1,n2=[::ffff:10.0.0.1]:1"}, "same address"),
        ({"members": "n1=[::1]:1,n2=[0::1]:1"}, "same address"),
        ({"members": "n1=a:1,N2=b:1"}, "'N2' is not a node id"),
        ({"members": "n1=a:1,_n2=b:1"}, "'_n2' is not a node id"),
        ({"members": "n1=a:1,n2=b:x"}, "HOST:PORT"),
        ({"members": "n1=a:1,"}, "ID=HOST:PORT"),
        ({"initial_members": "n1,n9"}, "initial_members names 'n9'"),
        ({"initial_members": "n1,n1"}, "names a node twice"),
        ({"link": ["n9=a:1"]}, "link names 'n9'"),
        ({"link": ["n1=a:1"]}, "itself"),
        ({"election_timeout_ms": "fast"}, "flag --election-timeout-ms"),
        ({"election_timeout_ms": "99"}, "must be greater than or equal to 100, not '99'"),
        ({"heartbeat_ms": "100"}, "flag --heartbeat-ms is not known"),
        ({"segment_bytes": str(4096 * MIB)}, "less than 4294967296"),
        ({"max_frame_bytes": str(MIB)}, "does not hold a request"),
        ({"segment_bytes": str(4090 * MIB)}, "of the largest segment"),
        ({"peer_secret_file": "/nowhere/secret"}, "flag --peer-secret-file"),
        ({"log_format": "xml"}, "'console' or 'json', not 'xml'"),
        ({"machine": ""}, "flag --machine"),
    ],
)
def test_a_value_that_does_not_fit_is_an_error_that_names_it(change: dict[str, Any], words: str) -> None:
    problems = problems_of(FLAGS | change)

    assert len(problems) == 1
    assert words in problems[0]


@pytest.mark.parametrize("initial", ["1.5", "true"])
def test_an_initial_value_that_the_log_could_not_hold_exactly_is_refused(tmp_path: Path, initial: str) -> None:
    file = tmp_path / "quire.toml"
    file.write_text(f"initial = {initial}\n")

    [problem] = problems_of(FLAGS, file)

    assert "neither an int nor a string" in problem


def test_addresses_are_taken_apart() -> None:
    assert host_and_port("localhost:7001") == ("localhost", 7001)
    assert host_and_port("[::1]:7001") == ("::1", 7001)
    assert host_and_port("[0:0::0]:7001") == ("::", 7001)


@pytest.mark.parametrize(
    "address",
    [
        *("", ":1", "n1", "n1:0", "n1:65536", "n1:1x", "a..b:1", ".a:1", f"{'a' * 64}:1", f"{'a.' * 127}:1"),
        *("1.2.3:1", "999.1.1.1:1", "127.1:1", "[1.2.3.4]:1", "[n1]:1", "[:::]:1", "[fe80::1%eth0]:1", "::1:1"),
        *("n1/x:1", "n1?x:1", "n1#x:1", "u@n1:1", "n1:1/x:1", "n 1:1", "n1\n:1", "\u0661.\u0661:1", "n1:\u0661"),
    ],
)
def test_what_is_no_address_or_would_make_another_url_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        host_and_port(address)


@pytest.mark.parametrize(
    ("host", "is_this_machine"),
    [
        *((host, True) for host in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "localhost", "LOCALHOST")),
        *((host, False) for host in ("0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1", "n1", "localhost.example.org")),
    ],
)
def test_only_loopback_addresses_and_localhost_are_this_machine(host: str, is_this_machine: bool) -> None:
    assert is_loopback(host) is is_this_machine


def test_an_ipv4_address_inside_an_ipv6_one_is_itself() -> None:
    assert host_and_port("[::ffff:127.0.0.1]:7001") == host_and_port("[::FFFF:7f00:1]:7001") == ("127.0.0.1", 7001)
    assert host_of("::ffff:127.0.0.1") == "127.0.0.1"


@pytest.mark.parametrize(
    ("listen", "address", "may"),
    [
        ("127.0.0.1:1", "127.0.0.1:1", True),
        ("127.0.0.1:1", "[::ffff:127.0.0.1]:1", True),
        ("[::1]:1", "[0:0::1]:1", True),
        ("0.0.0.0:1", "10.0.0.1:1", True),
        ("[::]:1", "10.0.0.1:1", True),
        ("[::]:1", "[fd00::1]:1", True),
        ("0.0.0.0:1", "n1:1", True),
        ("n1:1", "10.0.0.1:1", True),
        ("10.0.0.1:1", "n1:1", True),
        ("n1:1", "other:1", True),
        ("127.0.0.1:1", "127.0.0.1:2", False),
        ("0.0.0.0:1", "n1:2", False),
        ("n1:1", "n1:2", False),
        ("10.0.0.2:1", "10.0.0.1:1", False),
        ("127.0.0.1:1", "[::1]:1", False),
        ("0.0.0.0:1", "[fd00::1]:1", False),
        ("10.0.0.1:1", "0.0.0.0:1", False),
    ],
)
def test_who_listens_somewhere_may_be_reached_at_what_it_stands_for(listen: str, address: str, *, may: bool) -> None:
    assert may_serve(listen, address) == may


def test_every_field_says_what_it_is_for_and_numbers_have_a_unit() -> None:
    for name, field in ServeConfig.model_fields.items():
        assert field.description, name
        if field.annotation is int:
            assert unit_of(name), name
