"""The compose file: old and new compose accept it, and the nodes accept their arguments."""

import copy
import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator, ValidationError

from quire.cluster.config.serve import ServeConfig, load_config
from quire.cluster.serve.arguments import parse_serve
from tests.deploy.compose import COMPOSE, DEPLOY, NODES, SECRET, command_line, composed, environment_of
from tests.faults.toxiproxy import VERSION

# Of Debian's docker-compose 1.29.2, and of compose-spec/compose-spec at 170098ba, which `docker compose` follows.
SCHEMAS = ("docker-compose-1.29.json", "compose-specification.json")
CHAOS = environment_of(DEPLOY / "chaos.env")


def check_schema(name: str, document: dict[str, Any]) -> None:
    schema = json.loads((Path(__file__).parent / "schemas" / name).read_text())
    Draft7Validator(schema).validate(document)


def config_of(document: dict[str, Any], node_id: str, tmp_path: Path) -> ServeConfig:
    secret = tmp_path / "peer-secret"
    secret.write_text("a secret of the peers")
    program, *arguments = command_line(document, node_id, secret)
    assert program == "serve"
    flags, config_file = parse_serve(arguments)
    return load_config(flags, config_file)


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
def test_each_node_is_started_with_flags_that_quire_takes(node_id: str, tmp_path: Path) -> None:
    config = config_of(composed(), node_id, tmp_path)

    assert config.node == node_id
    assert config.members == {each: f"{each}:7001" for each in NODES}
    assert config.initial_members == ("n1", "n2", "n3"), "n4 observes, wherever it is started"
    assert config.link == {each: f"{each}:7001" for each in NODES if each != node_id}, "at its own address"
    assert config.peer_secret_file is not None, "peers authenticate"


@pytest.mark.parametrize("node_id", NODES)
def test_with_chaos_each_link_leads_through_its_own_proxy_to_the_node_that_it_names(
    node_id: str, tmp_path: Path
) -> None:
    proxies = {proxy["name"]: proxy for proxy in json.loads((DEPLOY / "toxiproxy.json").read_text())}
    assert len(proxies) == len(NODES) * (len(NODES) - 1) == len({proxy["listen"] for proxy in proxies.values()})

    config = config_of(composed(CHAOS), node_id, tmp_path)

    for other in NODES:
        if other != node_id:
            proxy = proxies[f"{node_id}-{other}"]
            assert proxy["upstream"] == config.members[other]
            assert config.link[other] == f"toxiproxy:{proxy['listen'].rpartition(':')[2]}"
            assert proxy["enabled"]


def test_without_profiles_there_are_three_nodes_and_each_addition_has_its_profile() -> None:
    profiles = {name: service.get("profiles", []) for name, service in composed()["services"].items()}

    assert profiles == {
        **{node_id: [] for node_id in ("n1", "n2", "n3")},
        "n4": ["observer"],
        "toxiproxy": ["chaos"],
        "prometheus": ["metrics"],
        "grafana": ["metrics"],
    }


def test_every_port_is_published_once_and_to_this_machine_alone(tmp_path: Path) -> None:
    document, published = composed(), list[str]()

    for name, service in document["services"].items():
        for mapping in service["ports"]:
            address, port, inside = mapping.split(":")
            assert address == "127.0.0.1", f"{name} is open to the network, and nothing authenticates clients"
            published.append(port)
            if name in NODES:
                assert config_of(document, name, tmp_path).listen == f"0.0.0.0:{inside}"

    assert len(set(published)) == len(published)


def test_each_node_has_a_volume_of_its_own_where_the_image_keeps_data_and_the_secret_as_a_file(tmp_path: Path) -> None:
    document = composed()
    image = (DEPLOY / "Dockerfile").read_text()
    assert "VOLUME /data" in image

    for node_id in NODES:
        service = document["services"][node_id]
        assert service["volumes"] == [f"{node_id}:/data"]
        assert node_id in document["volumes"]
        assert service["group_add"] == [0], "who may read a file of mode 640 that root made"
        assert service["secrets"] == [SECRET.rpartition("/")[2]]
        assert str(config_of(document, node_id, tmp_path).data_dir) == "/data"
        assert (COMPOSE.parent / service["build"]["context"] / service["build"]["dockerfile"]).is_file()


def test_the_image_has_no_build_tools_runs_as_nobody_in_particular_and_is_healthy_when_ready() -> None:
    _, build, final = (DEPLOY / "Dockerfile").read_text().split("\nFROM ")

    assert "pip uninstall --yes setuptools pip" in build
    assert not {"apt-get", "pip install", "gcc"} & set(final.split())
    assert "USER quire" in final
    assert "quire.cluster.serve.healthcheck" in final.partition("HEALTHCHECK")[2]


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


def test_the_secret_is_no_part_of_the_repository() -> None:
    assert composed()["secrets"] == {"peer-secret": {"file": "./peer-secret"}}
    assert "/deploy/peer-secret" in (DEPLOY.parent / ".gitignore").read_text().splitlines()


def test_prometheus_asks_every_node_of_the_compose_file() -> None:
    jobs = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    by_name = {job["job_name"]: job for job in jobs}

    assert by_name["quire"]["static_configs"] == [{"targets": [f"{node_id}:7001" for node_id in NODES[:3]]}]
    assert by_name["quire-observer"]["dns_sd_configs"][0]["names"] == [NODES[3]]


def test_the_demo_uses_the_images_that_the_other_files_name() -> None:
    demo = runpy.run_path(str(DEPLOY / "demo.py"))
    services = composed()["services"]

    assert demo["IMAGE"] == services["n1"]["image"]
    assert demo["TOXIPROXY_IMAGE"] == services["toxiproxy"]["image"]
    assert demo["TOXIPROXY_IMAGE"].endswith(f":{VERSION}"), "the version that the tests are pinned to"
    assert f"FROM {demo['BASE_IMAGE']} AS build" in (DEPLOY / "Dockerfile").read_text()
    assert set(demo["NODES"]) == {name for name in NODES if "profiles" not in services[name]}
