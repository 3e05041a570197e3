"""The systemd unit and its configuration: systemd and quire accept them."""

import configparser
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from quire.cluster.access.tls import load_tls
from quire.cluster.cli.output import Exit
from quire.cluster.config.serve import load_config
from quire.cluster.serve.arguments import parse_serve
from tests.deploy.compose import DEPLOY, Installed

UNIT = DEPLOY / "systemd" / "quire.service"
CONFIG = DEPLOY / "systemd" / "quire.toml"
PROGRAM = "/opt/quire/bin/quire"
TIMEOUT_S = 60.0


def unit() -> configparser.ConfigParser:
    """The unit. The file of a credential is at its name, since there are several."""
    parsed = configparser.ConfigParser(interpolation=None, delimiters=["="], strict=True)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]  # The documented way to keep capitals.
    parsed.read_string(re.sub(r"^LoadCredential=([^:]+):", r"LoadCredential \1=", UNIT.read_text(), flags=re.MULTILINE))
    return parsed


def verified(text: str, folder: Path) -> str:
    """What systemd says of a unit, with a program that is there; empty if it is fine, or there is no systemd."""
    program = shutil.which("systemd-analyze")
    if program is None:
        return ""
    file = folder / "quire.service"
    file.write_text(text.replace(PROGRAM, sys.executable))
    run = subprocess.run([program, "verify", file], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    return run.stdout + run.stderr


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    assert verified(UNIT.read_text(), tmp_path) == ""


def test_where_there_is_systemd_it_names_what_it_does_not_know(tmp_path: Path) -> None:
    said = verified(UNIT.read_text().replace("TimeoutStopSec=", "TimeoutStopping="), tmp_path)

    assert "TimeoutStopping" in said or shutil.which("systemd-analyze") is None


def test_the_unit_has_its_sections_and_each_key_once() -> None:
    assert unit().sections() == ["Unit", "Service", "Install"]  # A key that stands twice is an error of the parser.


def test_the_unit_starts_quire_with_flags_and_a_file_that_it_takes(made: Installed) -> None:
    program, *arguments = shlex.split(unit()["Service"]["ExecStart"].replace("\\\n", " "))
    assert (program, arguments[0]) == (PROGRAM, "serve")
    files = {
        "/etc/quire/quire.toml": CONFIG,
        "%d/node.crt": made.access / "n1.crt",
        "%d/node.key": made.access / "n1.key",
        "%d/ca.crt": made.access / "ca.crt",
        "/etc/quire/tokens": made.access / "tokens",
    }
    assert set(files) < set(arguments), "each is given"

    flags, config_file = parse_serve([str(files.get(argument, argument)) for argument in arguments[1:]])
    config = load_config(flags, config_file)

    tls = config.credential_files.tls
    assert tls is not None
    load_tls(tls, config.node)
    state = Path("/var/lib") / unit()["Service"]["StateDirectory"]
    assert config.data_dir.is_relative_to(state), "nothing else may be written under ProtectSystem=strict"
    assert config.node in config.members


def test_the_unit_waits_for_the_volume_of_its_data_and_does_not_start_without() -> None:
    data_dir = tomllib.loads(CONFIG.read_text())["data_dir"]

    assert unit()["Unit"]["RequiresMountsFor"] == data_dir


def test_the_unit_loads_every_credential_that_it_passes_on() -> None:
    passed_on = re.findall(r"%d/(\S+)", unit()["Service"]["ExecStart"])
    loaded = {key: file for key, file in unit()["Service"].items() if key.startswith("LoadCredential")}

    assert loaded == {f"LoadCredential {name}": f"/etc/quire/{name}" for name in passed_on}


def test_a_reload_has_the_process_read_its_files_again() -> None:
    assert unit()["Service"]["ExecReload"] == "/bin/kill -HUP $MAINPID"


def test_a_node_that_was_removed_is_not_restarted_and_one_that_failed_is() -> None:
    assert unit()["Service"]["RestartPreventExitStatus"].split() == [str(Exit.REMOVED.value)]


def test_a_stop_leaves_time_to_hand_over_and_a_node_that_ends_by_itself_is_not_restarted_for_ever() -> None:
    service = unit()["Service"]

    assert service["Restart"] == "on-failure"
    assert int(unit()["Unit"]["StartLimitBurst"]) <= 5
    assert int(service["TimeoutStopSec"].removesuffix("s")) >= 30
