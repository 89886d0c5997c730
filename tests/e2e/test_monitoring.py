"""The dashboard and the alerts use only metrics that the service exports, in queries that Prometheus accepts."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.support.clients import TestUser
from tests.support.factories import tool
from tests.support.paths import ROOT
from tests.support.programs import PROMTOOL

PROMETHEUS = ROOT / "deploy/prometheus"
GRAFANA = ROOT / "deploy/grafana"
GUIDE = (ROOT / "docs/guides/operations.md").read_text()
METRICS = (ROOT / "docs/reference/metrics.md").read_text()
ALERTS: list[dict[str, Any]] = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"][0]["rules"]
DASHBOARD: dict[str, Any] = json.loads((GRAFANA / "dashboards/toolscout.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
PROMETHEUS_METRICS = {"up"}
PROMETHEUS_LABELS = {"job", "instance", "le"}


def all_queries() -> Iterator[str]:
    """The queries of all panels and alerts."""
    yield from (target["expr"] for panel in PANELS for target in panel.get("targets", []))
    yield from (alert["expr"] for alert in ALERTS)


def run_promtool(*arguments: str) -> None:
    program = PROMTOOL.find()
    assert program is not None, "mark the test with needs_promtool"
    done = subprocess.run([program, *arguments], cwd=PROMETHEUS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.needs_promtool
def test_promtool_accepts_the_configuration_and_the_rules() -> None:
    run_promtool("check", "config", "--syntax-only", "prometheus.yml")
    run_promtool("check", "rules", "alerts.yml")


@pytest.mark.needs_promtool
def test_every_alert_fires_when_it_should_and_is_silent_otherwise() -> None:
    tests = yaml.safe_load((PROMETHEUS / "alerts_test.yml").read_text())["tests"]
    expected = [(check["alertname"], bool(check["exp_alerts"])) for test in tests for check in test["alert_rule_test"]]
    assert sorted(expected) == sorted((alert["alert"], fires) for alert in ALERTS for fires in (True, False))
    run_promtool("test", "rules", "alerts_test.yml")


@pytest.mark.needs_promtool
def test_a_wrong_rule_fails_the_tests_of_the_alerts(tmp_path: Path) -> None:
    wrong = (PROMETHEUS / "alerts.yml").read_text().replace("> 120", "> 12000")
    (tmp_path / "alerts.yml").write_text(wrong)
    (tmp_path / "alerts_test.yml").write_text((PROMETHEUS / "alerts_test.yml").read_text())
    with pytest.raises(AssertionError, match="ToolscoutQueueAge"):
        run_promtool("test", "rules", str(tmp_path / "alerts_test.yml"))


@pytest.mark.needs_promtool
def test_prometheus_accepts_every_query_of_the_dashboard(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{n}", "expr": fill_in(query)} for n, query in enumerate(all_queries())]
    (tmp_path / "queries.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    run_promtool("check", "rules", str(tmp_path / "queries.yml"))


def fill_in(query: str) -> str:
    """Replace the variable that Grafana replaces."""
    return query.replace("$__rate_interval", "1m")


async def test_the_dashboard_and_the_alerts_use_only_metrics_and_labels_that_exist(user: TestUser) -> None:
    await user.add_tools(tool("list_files", "Lists files."))
    await user.discover("list files")
    scraped = series_names((await user.http.get("/metrics")).text)
    labels = set(
        re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| `toolscout_\w+` \| \w+ \| (.*?) \|", METRICS, re.MULTILINE)))
    )
    for query in all_queries():
        bare = re.sub(r'"[^"]*"', '""', query)
        named = set(re.findall(r"\b(?:toolscout_\w+|process_\w+|up)\b", bare))
        assert named, query
        assert named <= scraped | PROMETHEUS_METRICS, query
        used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\"", bare))
        grouped = {label for group in re.findall(r"by \(([^)]*)\)", bare) for label in group.split(", ")}
        assert used | grouped <= labels | PROMETHEUS_LABELS, query


def series_names(scrape: str) -> set[str]:
    """Return the names of all possible series, also of metrics that have no labelled values yet."""
    suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "gauge": [""]}
    families = text_string_to_metric_families(scrape)
    return {family.name + suffix for family in families for suffix in suffixes.get(family.type, [])}


def test_every_panel_has_a_title_and_a_description() -> None:
    assert len(PANELS) > 20
    for panel in PANELS:
        assert panel["title"]
        assert len(panel["description"]) > 10, panel["title"]
    assert len({panel["title"] for panel in PANELS}) == len({panel["id"] for panel in PANELS}) == len(PANELS)


def test_panels_do_not_overlap() -> None:
    occupied: set[tuple[int, int]] = set()
    for panel in PANELS:
        position = panel["gridPos"]
        cells = {(position["x"] + x, position["y"] + y) for x in range(position["w"]) for y in range(position["h"])}
        assert not cells & occupied, panel["title"]
        assert position["x"] + position["w"] <= 24
        occupied |= cells


def test_the_dashboard_uses_the_provisioned_data_source() -> None:
    provisioned = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())["datasources"]
    targets = [target for panel in PANELS for target in panel.get("targets", [])]
    assert {target["datasource"]["uid"] for target in targets} == {source["uid"] for source in provisioned}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_every_alert_links_to_a_section_of_the_guide_that_names_it(alert: dict[str, Any]) -> None:
    assert alert["annotations"]["summary"]
    page, _, anchor = alert["annotations"]["runbook"].partition("#")
    assert page == "docs/guides/operations.md"
    sections = {make_anchor(heading): text for heading, text in re.findall(r"^###? (.+)\n([^#]+)", GUIDE, re.MULTILINE)}
    assert f"`{alert['alert']}`" in sections[anchor]


def make_anchor(heading: str) -> str:
    """Return the anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
