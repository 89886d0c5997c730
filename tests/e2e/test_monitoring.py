"""Dashboard and alerts ask only for what a real process tells, in a language that Prometheus understands."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import TestUser, tool
from tests.support.paths import ROOT

PROMETHEUS = ROOT / "deploy/prometheus"
GRAFANA = ROOT / "deploy/grafana"
GUIDE = (ROOT / "docs/guides/operations.md").read_text()
METRICS = (ROOT / "docs/reference/metrics.md").read_text()
ALERTS: list[dict[str, Any]] = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"][0]["rules"]
DASHBOARD: dict[str, Any] = json.loads((GRAFANA / "dashboards/toolscout.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
SCRAPED_BY_PROMETHEUS = {"up"}
LABELS_OF_PROMETHEUS = {"job", "instance", "le"}


def queries() -> Iterator[str]:
    yield from (target["expr"] for panel in PANELS for target in panel.get("targets", []))
    yield from (alert["expr"] for alert in ALERTS)


def promtool(*arguments: str) -> None:
    done = subprocess.run(["promtool", *arguments], cwd=PROMETHEUS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_configuration_and_the_rules() -> None:
    promtool("check", "config", "--syntax-only", "prometheus.yml")
    promtool("check", "rules", "alerts.yml")


def test_every_alert_fires_when_it_should_and_is_quiet_when_it_should_not() -> None:
    tests = yaml.safe_load((PROMETHEUS / "alerts_test.yml").read_text())["tests"]
    expected = [(check["alertname"], bool(check["exp_alerts"])) for test in tests for check in test["alert_rule_test"]]
    assert sorted(expected) == sorted((alert["alert"], fires) for alert in ALERTS for fires in (True, False))
    promtool("test", "rules", "alerts_test.yml")


def test_a_wrong_rule_would_be_found(tmp_path: Path) -> None:
    wrong = (PROMETHEUS / "alerts.yml").read_text().replace("> 120", "> 12000")
    (tmp_path / "alerts.yml").write_text(wrong)
    (tmp_path / "alerts_test.yml").write_text((PROMETHEUS / "alerts_test.yml").read_text())
    with pytest.raises(AssertionError, match="ToolscoutQueueAge"):
        promtool("test", "rules", str(tmp_path / "alerts_test.yml"))


def test_prometheus_understands_every_query_of_the_dashboard(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{n}", "expr": asked(query)} for n, query in enumerate(queries())]
    (tmp_path / "queries.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", str(tmp_path / "queries.yml"))


def asked(query: str) -> str:
    """As Grafana asks it."""
    return query.replace("$__rate_interval", "1m")


async def test_dashboard_and_alerts_name_only_metrics_and_labels_that_a_scrape_holds(user: TestUser) -> None:
    await user.add_tools(tool("list_files", "Lists files."))
    await user.discover("list files")
    scraped = names_in((await user.http.get("/metrics")).text)
    labels = set(
        re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| `toolscout_\w+` \| \w+ \| (.*?) \|", METRICS, re.MULTILINE)))
    )
    for query in queries():
        bare = re.sub(r'"[^"]*"', '""', query)
        named = set(re.findall(r"\b(?:toolscout_\w+|process_\w+|up)\b", bare))
        assert named, query
        assert named <= scraped | SCRAPED_BY_PROMETHEUS, query
        used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\"", bare))
        grouped = {label for group in re.findall(r"by \(([^)]*)\)", bare) for label in group.split(", ")}
        assert used | grouped <= labels | LABELS_OF_PROMETHEUS, query


def names_in(scrape: str) -> set[str]:
    """Of all series that there may be, also of those whose labels have not been met yet."""
    suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "gauge": [""]}
    families = text_string_to_metric_families(scrape)
    return {family.name + suffix for family in families for suffix in suffixes.get(family.type, [])}


def test_every_panel_has_a_title_and_says_what_it_shows() -> None:
    assert len(PANELS) > 20
    for panel in PANELS:
        assert panel["title"]
        assert len(panel["description"]) > 10, panel["title"]
    assert len({panel["title"] for panel in PANELS}) == len({panel["id"] for panel in PANELS}) == len(PANELS)


def test_panels_lie_side_by_side_and_not_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_the_dashboard_asks_the_data_source_that_is_provisioned() -> None:
    provisioned = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())["datasources"]
    targets = [target for panel in PANELS for target in panel.get("targets", [])]
    assert {target["datasource"]["uid"] for target in targets} == {source["uid"] for source in provisioned}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_every_alert_leads_to_a_passage_of_the_guide_that_names_it(alert: dict[str, Any]) -> None:
    assert alert["annotations"]["summary"]
    page, _, anchor = alert["annotations"]["runbook"].partition("#")
    assert page == "docs/guides/operations.md"
    passages = {anchor_of(heading): text for heading, text in re.findall(r"^###? (.+)\n([^#]+)", GUIDE, re.MULTILINE)}
    assert f"`{alert['alert']}`" in passages[anchor]


def anchor_of(heading: str) -> str:
    """As GitHub makes it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
