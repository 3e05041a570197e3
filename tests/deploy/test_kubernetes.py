"""The manifests for Kubernetes are valid, and the script in them starts nodes with flags that quire takes."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from quire.cluster.access.tls import TlsFiles, load_tls
from quire.cluster.access.tokens import read_tokens
from quire.cluster.config.serve import ServeConfig, load_config
from quire.cluster.serve.arguments import parse_serve
from tests.deploy.compose import DEPLOY

MANIFESTS = DEPLOY / "kubernetes" / "quire.yaml"
KUBERNETES = "1.34"
FIRST = "quire-0=quire-0.quire:7001,quire-1=quire-1.quire:7001,quire-2=quire-2.quire:7001"


def manifests() -> dict[str, Any]:
    """Each document by its kind; of two, the last one."""
    return {document["kind"]: document for document in yaml.safe_load_all(MANIFESTS.read_text())}


def validated(file: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kubernetes_validate", "--strict", "--kubernetes-version", KUBERNETES, str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_manifests_are_valid_and_a_wrong_key_would_not_be(tmp_path: Path) -> None:
    good = validated(MANIFESTS)
    assert good.returncode == 0, good.stdout + good.stderr
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(MANIFESTS.read_text().replace("podManagementPolicy", "podManagement"))
    assert validated(wrong).returncode != 0


def started(pod: str, folder: Path) -> ServeConfig:
    """The configuration with which the script starts a node in the pod of that name."""
    script = manifests()["ConfigMap"]["data"]["start.sh"]
    run = subprocess.run(
        ["sh", "-c", script],
        env={"HOSTNAME": pod, "NAMESPACE": "prod", "QUIRE": "echo"},
        capture_output=True,
        text=True,
        check=True,
    )
    verb, *arguments = run.stdout.split()
    assert verb == "serve"
    (folder / "access").mkdir(exist_ok=True)
    for name in (f"{pod}.crt", f"{pod}.key", "ca.crt", "tokens"):
        (folder / "access" / name).touch()
    paths = [argument.replace("/access/", f"{folder}/access/") for argument in arguments]
    flags, _ = parse_serve([*paths, "--listen", "0.0.0.0:7001"])
    return load_config(flags)


def test_the_first_three_form_a_cluster_and_later_ones_join_it(tmp_path: Path) -> None:
    for pod in ("quire-0", "quire-1", "quire-2"):
        config = started(pod, tmp_path)
        assert (config.node, config.join) == (pod, ())
        assert config.initial_members == ("quire-0", "quire-1", "quire-2")
        assert ",".join(f"{node}={address}" for node, address in config.members.items()) == FIRST
    config = started("quire-3", tmp_path)
    assert config.initial_members == ()
    assert config.join == ("quire-0.quire:7001", "quire-1.quire:7001", "quire-2.quire:7001")
    assert config.members == {"quire-3": "quire-3.quire:7001"}


def test_a_node_answers_to_every_name_of_the_clients_service(tmp_path: Path) -> None:
    documents = [document for document in yaml.safe_load_all(MANIFESTS.read_text()) if document["kind"] == "Service"]
    [name] = [each["metadata"]["name"] for each in documents if each["spec"].get("clusterIP") != "None"]
    suffixes = ("", ".prod", ".prod.svc", ".prod.svc.cluster.local")

    for pod in ("quire-0", "quire-3"):
        assert {name + suffix for suffix in suffixes} == set(started(pod, tmp_path).allow)
    [container] = manifests()["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    given = {variable["name"]: variable for variable in container["env"]}
    assert given["NAMESPACE"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.namespace"


def test_process_1_of_a_pod_is_an_init() -> None:
    [container] = manifests()["StatefulSet"]["spec"]["template"]["spec"]["containers"]

    assert container["command"] == ["dumb-init", "--single-child", "sh", "/start/start.sh"]


def test_a_node_that_recovers_a_long_log_is_not_killed() -> None:
    """It does not answer before that, so the time is the startup probe's, and not the liveness probe's."""
    [container] = manifests()["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    startup = container["startupProbe"]

    assert startup["httpGet"] == container["livenessProbe"]["httpGet"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 30 * 60


def test_pods_start_side_by_side_and_are_reached_before_they_are_ready() -> None:
    documents = [document for document in yaml.safe_load_all(MANIFESTS.read_text()) if document["kind"] == "Service"]
    headless = next(document for document in documents if document["spec"].get("clusterIP") == "None")
    assert headless["spec"]["publishNotReadyAddresses"] is True
    found = manifests()
    assert found["StatefulSet"]["spec"]["podManagementPolicy"] == "Parallel"
    assert found["StatefulSet"]["spec"]["serviceName"] == headless["metadata"]["name"]
    assert found["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1
    [container] = found["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    assert {probe["httpGet"]["scheme"] for probe in (container["livenessProbe"], container["readinessProbe"])} == {
        "HTTPS"
    }


def test_the_page_s_commands_make_the_files_that_the_script_names_and_keep_the_ca_s_key_out(tmp_path: Path) -> None:
    page = (DEPLOY / "kubernetes" / "README.md").read_text()
    [start] = re.findall(r"^## Start\n(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    [commands] = re.findall(r"^```sh\n(.*?)^```$", start, re.MULTILINE | re.DOTALL)
    offline = "\n".join(["set -e", *(line for line in commands.splitlines() if not line.startswith("kubectl"))])
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    subprocess.run(["sh", "-c", offline], cwd=tmp_path, env={**os.environ, "PATH": path}, check=True, timeout=60)

    secret = tmp_path / "access"
    pods = [f"quire-{number}" for number in range(5)]
    each = {f"{pod}.{kind}" for pod in pods for kind in ("crt", "key")}
    assert {file.name for file in secret.iterdir()} == {"ca.crt", "tokens", *each}
    for pod in pods:
        tls = load_tls(TlsFiles(secret / f"{pod}.crt", secret / f"{pod}.key", secret / "ca.crt"), pod)
        assert {"quire-clients", "prod.quire", f"{pod}.prod.quire"} <= tls.dns_names
    assert read_tokens(secret / "tokens").alarm is None


@pytest.mark.parametrize("command", ["quire members add", "quire members remove", "quire members promote"])
def test_the_page_removes_before_it_scales_down(command: str) -> None:
    page = (DEPLOY / "kubernetes" / "README.md").read_text()
    assert command in page
    assert re.search(r"members remove .*\n.*kubectl scale", page)
    assert re.search(r"members add .*\n.*kubectl scale", page)
