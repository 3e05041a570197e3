"""The compose file: old and new compose accept it, and the nodes accept their arguments."""

import copy
import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator, ValidationError

from quire.cluster.access.credentials import CredentialFiles
from quire.cluster.access.tls import TlsFiles, load_client_tls
from tests.deploy.compose import ACCESS, COMPOSE, DEPLOY, NODES, Installed, composed, config_of, environment_of
from tests.faults.toxiproxy import VERSION

# Of Debian's docker-compose 1.29.2, and of compose-spec/compose-spec at 170098ba, which `docker compose` follows.
SCHEMAS = ("docker-compose-1.29.json", "compose-specification.json")
CHAOS = environment_of(DEPLOY / "chaos.env")


def check_schema(name: str, document: dict[str, Any]) -> None:
    schema = json.loads((Path(__file__).parent / "schemas" / name).read_text())
    Draft7Validator(schema).validate(document)


def scrape_jobs() -> list[dict[str, Any]]:
    jobs: list[dict[str, Any]] = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())[
        "scrape_configs"
    ]
    return jobs


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("environment", [{}, CHAOS], ids=["plain", "chaos"])
def test_old_and_new_compose_take_the_file(schema: str, environment: dict[str, str]) -> None:
    check_schema(schema, composed(environment))


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_key_that_compose_does_not_know_is_found(schema: str) -> None:
    document = copy.deepcopy(composed())
    document["services"]["n1"]["comand"] = "serve"

    with pytest.raises(ValidationError, match="comand"):
        check_schema(schema, document)


@pytest.mark.parametrize("node_id", NODES)
def test_each_node_is_started_with_flags_and_variables_that_quire_takes(node_id: str, made: Installed) -> None:
    config = config_of(composed(), node_id, made)

    assert config.node == node_id
    assert config.members == {each: f"{each}:7001" for each in NODES}
    assert config.initial_members == ("n1", "n2", "n3"), "n4 observes, wherever it is started"
    assert config.link == {each: f"{each}:7001" for each in NODES if each != node_id}, "at its own address"
    pair = made.access / f"{node_id}.crt", made.access / f"{node_id}.key"
    assert config.credential_files == CredentialFiles(TlsFiles(*pair, made.access / "ca.crt"), made.access / "tokens")
    assert not config.insecure


@pytest.mark.parametrize("node_id", NODES)
def test_with_chaos_each_link_leads_through_its_own_proxy_to_the_node_that_it_names(
    node_id: str, made: Installed
) -> None:
    proxies = {proxy["name"]: proxy for proxy in json.loads((DEPLOY / "toxiproxy.json").read_text())}
    assert len(proxies) == len(NODES) * (len(NODES) - 1) == len({proxy["listen"] for proxy in proxies.values()})

    config = config_of(composed(CHAOS), node_id, made)

    for other in NODES:
        if other != node_id:
            proxy = proxies[f"{node_id}-{other}"]
            assert proxy["upstream"] == config.members[other]
            assert config.link[other] == f"toxiproxy:{proxy['listen'].rpartition(':')[2]}"
            assert proxy["enabled"]


def test_without_profiles_there_are_three_nodes_and_each_addition_has_its_profile() -> None:
    profiles = {name: service.get("profiles", []) for name, service in composed()["services"].items()}

    assert profiles == {
        "setup": [],
        **{node_id: [] for node_id in ("n1", "n2", "n3")},
        "n4": ["observer"],
        "toxiproxy": ["chaos"],
        "prometheus": ["metrics"],
        "grafana": ["metrics"],
    }


def test_every_port_is_published_once_and_to_this_machine_alone(made: Installed) -> None:
    document, published = composed(), list[str]()

    for name, service in document["services"].items():
        for mapping in service.get("ports", []):
            address, port, inside = mapping.split(":")
            assert address == "127.0.0.1", f"{name} is open to the network"
            published.append(port)
            if name in NODES:
                assert config_of(document, name, made).listen == f"0.0.0.0:{inside}"

    assert len(set(published)) == len(published)


def test_each_node_has_a_volume_of_its_own_where_the_image_keeps_data(made: Installed) -> None:
    document = composed()
    image = (DEPLOY / "Dockerfile").read_text()
    assert "VOLUME /data" in image

    for node_id in NODES:
        service = document["services"][node_id]
        assert service["volumes"] == [f"{node_id}:/data", f"access:{ACCESS}:ro"]
        assert node_id in document["volumes"]
        assert str(config_of(document, node_id, made).data_dir) == "/data"
        assert (COMPOSE.parent / service["build"]["context"] / service["build"]["dockerfile"]).is_file()


@pytest.mark.parametrize("name", composed()["services"])
def test_every_service_is_confined(name: str) -> None:
    service = composed()["services"][name]

    assert service["cap_drop"] == ["ALL"]
    assert service.get("cap_add", []) == (["CHOWN", "DAC_OVERRIDE"] if name == "setup" else [])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    assert "/tmp" in service["tmpfs"]
    assert re.fullmatch(r"[1-9][0-9]*[mg]", service["mem_limit"])
    assert not {"privileged", "devices", "network_mode", "pid", "ipc"} & set(service)
    assert ("user" in service) == (name == "setup"), "the images' own users are not root"


@pytest.mark.parametrize("name", ["setup", *NODES])
def test_every_service_of_quire_has_one_init(name: str) -> None:
    service = composed()["services"][name]
    assert service.get("init", False) is ("entrypoint" in service), "the image's own entrypoint begins with one"


@pytest.mark.parametrize("name", composed()["services"])
def test_what_a_service_prints_cannot_fill_the_disk(name: str) -> None:
    logging = composed()["services"][name]["logging"]

    assert logging == {"driver": "json-file", "options": {"max-size": "20m", "max-file": "5"}}


def test_what_needs_the_set_up_s_files_starts_after_it_and_the_set_up_runs_once() -> None:
    services = composed()["services"]
    users = [name for name, service in services.items() if f"access:{ACCESS}:ro" in service["volumes"]]

    assert set(users) == {*NODES, "prometheus", "grafana"}
    for name in users:
        assert services[name]["depends_on"] == {"setup": {"condition": "service_completed_successfully"}}
        assert services[name]["restart"] == "unless-stopped"
    assert services["setup"]["restart"] == "no"
    assert services["setup"]["image"] == services["n1"]["image"]
    assert services["setup"]["command"] == f"sh /setup.sh {ACCESS} /client"


def test_the_image_has_no_build_tools_runs_as_nobody_in_particular_and_is_healthy_when_ready() -> None:
    _, build, final = (DEPLOY / "Dockerfile").read_text().split("\nFROM ")

    assert "pip uninstall --yes setuptools pip" in build
    assert not {"apt-get", "pip install", "gcc"} & set(final.split())
    assert "USER quire" in final
    assert "quire.cluster.serve.healthcheck" in final.partition("HEALTHCHECK")[2]
    assert "[certs]" in build, "for the set-up service"
    assert "dumb-init==" in build
    assert 'ENTRYPOINT ["dumb-init", "--single-child", "quire"]' in final.splitlines()


def test_every_builder_is_sent_what_the_image_is_made_of_and_nothing_else() -> None:
    patterns = [
        line for line in (DEPLOY.parent / ".dockerignore").read_text().splitlines() if line[:1] not in ("", "#")
    ]
    copies = [
        line.split()[1:-1] for line in (DEPLOY / "Dockerfile").read_text().splitlines() if line.startswith("COPY")
    ]
    copied = {source for sources in copies if not sources[0].startswith("--from") for source in sources}

    assert patterns[0] == "*"
    assert {pattern[1:] for pattern in patterns if pattern.startswith("!")} == copied


def test_what_is_mounted_from_the_folder_is_there() -> None:
    sources = [
        mount.split(":")[0] for service in composed()["services"].values() for mount in service.get("volumes", [])
    ]
    mounted = [source for source in sources if source.startswith("./")]

    assert mounted
    assert [source for source in mounted if not (DEPLOY / source).exists()] == []


def test_prometheus_asks_every_node_of_the_compose_file() -> None:
    by_name = {job["job_name"]: job for job in scrape_jobs()}

    assert by_name["quire"]["static_configs"] == [{"targets": [f"{node_id}:7001" for node_id in NODES[:3]]}]
    assert by_name["quire-observer"]["dns_sd_configs"][0]["names"] == [NODES[3]]


def test_prometheus_shows_its_token_only_to_nodes_that_prove_the_cluster_s_name(made: Installed) -> None:
    jobs = scrape_jobs()
    assert len(jobs) == 2

    for job in jobs:
        assert job["scheme"] == "https"
        assert job["authorization"] == {"credentials_file": f"{ACCESS}/prometheus.token"}
        assert job["tls_config"] == {
            "ca_file": f"{ACCESS}/ca.crt",
            "server_name": load_client_tls(made.client / "ca.crt").server_name,
        }
    assert (made.access / "prometheus.token").is_file()


def test_grafana_admits_nobody_without_a_password_and_none_is_known() -> None:
    environment = composed()["services"]["grafana"]["environment"]

    assert environment["GF_AUTH_ANONYMOUS_ENABLED"] == "false"
    assert environment["GF_SECURITY_ADMIN_PASSWORD__FILE"] == f"{ACCESS}/grafana.password"
    assert "GF_SECURITY_ADMIN_PASSWORD" not in environment


def test_the_demo_uses_the_images_that_the_other_files_name() -> None:
    demo = runpy.run_path(str(DEPLOY / "demo.py"))
    services = composed()["services"]

    assert demo["IMAGE"] == services["n1"]["image"]
    assert demo["TOXIPROXY_IMAGE"] == services["toxiproxy"]["image"]
    assert demo["TOXIPROXY_IMAGE"].endswith(f":{VERSION}"), "the version that the tests are pinned to"
    assert f"FROM {demo['BASE_IMAGE']} AS build" in (DEPLOY / "Dockerfile").read_text()
    assert set(demo["NODES"]) == {name for name in NODES if "profiles" not in services[name]}
