"""The dashboard and the alarms query metrics that a node has, and every alarm has a section in the runbook."""

import json
import re
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest
import pytest_asyncio
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.cluster.running import RunningCluster, running_cluster
from tests.deploy.compose import DEPLOY

pytestmark = pytest.mark.asyncio(loop_scope="module")

DASHBOARD = DEPLOY / "grafana" / "dashboards" / "quire.json"
METRIC = re.compile(r"\b(quire_[a-z_]+)")
LABELS = re.compile(r"[{(]\s*([a-z]+)\s*(?:=~|=|\))")
BY = re.compile(r"by \(([a-z, ]+)\)")
OF_PROMETHEUS = {"job", "instance"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shown(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[dict[str, set[str]], None]:
    """Each sample's name and its labels, of a leader and a follower."""
    names: dict[str, set[str]] = {}
    async with running_cluster(tmp_path_factory.mktemp("dashboard")) as cluster:
        await cluster.commands("n1", ["add", 1])
        for node_id in ("n1", "n3"):
            for name, labels in await samples_of(cluster, node_id):
                names.setdefault(name, set()).update(labels)
    yield names


async def samples_of(cluster: RunningCluster, node_id: str) -> list[tuple[str, set[str]]]:
    reply = await cluster.ask(node_id, "GET", "/metrics")
    families = text_string_to_metric_families(reply.body.decode())
    return [(sample.name, set(sample.labels)) for family in families for sample in family.samples]


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> Iterator[tuple[str, str]]:
    """(where, expression) of every question that is put to Prometheus."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for rule in rules():
        yield rule["alert"], rule["expr"]


async def test_every_metric_and_label_that_is_asked_for_is_shown_by_a_node(shown: dict[str, set[str]]) -> None:
    asked = list(expressions())
    assert len(asked) > 30

    for where, expression in asked:
        names = METRIC.findall(expression)
        assert names or expression == 'up{job="quire"} == 0', where
        labels = set(LABELS.findall(expression)).union(*(found.split(", ") for found in BY.findall(expression)))
        known = OF_PROMETHEUS.union(*(shown.get(name, set[str]()) for name in names))
        assert [name for name in names if name not in shown] == [], f"{where}: {expression}"
        assert labels <= known, f"{where}: {expression}"


async def test_what_a_legend_names_are_labels_of_what_is_asked(shown: dict[str, set[str]]) -> None:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            known = OF_PROMETHEUS.union(*(shown[name] for name in METRIC.findall(target["expr"])))
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= known, panel["title"]


async def test_every_alarm_has_its_section_in_the_runbook_and_every_section_its_alarm() -> None:
    runbook = (DEPLOY / "runbook.md").read_text()
    sections = re.findall(r"^### (Quire\w+)$", runbook, re.MULTILINE)

    assert sections == [rule["alert"] for rule in rules()]
    for rule in rules():
        assert rule["annotations"]["runbook"] == f"deploy/runbook.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in {"warning", "critical"}


async def test_the_dashboard_s_panels_are_told_apart_and_use_the_provisioned_datasource() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    sources = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    folder = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/quire.yaml").read_text())["providers"]

    assert {panel["datasource"]["uid"] for panel in panels} == {source["uid"] for source in sources}
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    assert folder[0]["options"]["path"] == "/etc/grafana/dashboards"
