"""The alerts and recorded series: each alert fires where it should, none where nothing is wrong, and each is explained."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml
from support.promql import metrics, numbers, windows
from support.rules import FILES, alerts, rules
from support.services import program

ROOT = Path(__file__).parents[2]
RUNBOOK = ROOT / "docs/operating.md"
TESTS = sorted((Path(__file__).parent / "rules").glob("*_test.yml"))
FASTEST_BURN = 14.4


def promtool(*arguments: str) -> None:
    done = subprocess.run([program("promtool"), *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def cases() -> Iterator[dict[str, Any]]:
    for file in TESTS:
        yield from yaml.safe_load(file.read_text())["tests"]


def checks() -> Iterator[dict[str, Any]]:
    for case in cases():
        yield from case.get("alert_rule_test", [])


def test_promtool_finds_no_fault_in_the_rules() -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", *map(str, FILES))


@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.stem)
def test_alerts_fire_where_they_should_and_only_there(file: Path) -> None:
    promtool("test", "rules", str(file))


def test_each_alert_is_seen_to_fire_and_seen_not_to() -> None:
    known = set(alerts())
    assert {check["alertname"] for check in checks() if check["exp_alerts"]} == known
    assert {check["alertname"] for check in checks()} == known
    assert all(case.get("alert_rule_test") or case.get("promql_expr_test") for case in cases())


def test_what_the_alerts_read_is_there_where_nothing_is_wrong() -> None:
    recorded = {rule.record: metrics(rule.expr) for rule in rules() if rule.record}
    read = set().union(*(metrics(rule.expr) for rule in alerts().values()))
    while deeper := read & recorded.keys():
        read = (read - deeper).union(*(recorded[name] for name in deeper))
    (healthy, *_) = yaml.safe_load((Path(__file__).parent / "rules/quiet_test.yml").read_text())["tests"]
    assert read <= {each["series"].split("{")[0] for each in healthy["input_series"]}


def test_what_is_recorded_is_read() -> None:
    read = set().union(*(metrics(rule.expr) for rule in rules()))
    assert {rule.record for rule in rules() if rule.record} <= read


def test_names_are_used_once() -> None:
    names = [rule.record or rule.alert for rule in rules()]
    assert sorted(names) == sorted(set(names))
    assert all(re.fullmatch(r"(model\w*:)?interlock_\w+:\w+", rule.record) for rule in rules() if rule.record)


@pytest.mark.parametrize("name", list(alerts()))
def test_an_alert_says_how_urgent_it_is_what_was_seen_and_where_to_read_on(name: str) -> None:
    alert = alerts()[name]
    assert alert.labels.keys() == {"severity"}
    assert alert.labels["severity"] in ("page", "ticket")
    assert alert.annotations.keys() == {"summary", "description", "runbook"}
    assert "{{ $" in alert.annotations["summary"] or "absent(" in alert.expr
    assert alert.annotations["runbook"] == f"docs/operating.md#{name.lower()}"


def test_the_runbook_has_an_entry_for_each_alert_and_no_other() -> None:
    text = RUNBOOK.read_text()
    assert re.findall(r"^### (Interlock\w+)$", text, re.MULTILINE) == list(dict.fromkeys(_in_order()))
    for entry in re.split(r"^### ", text.split("\n## The alerts\n")[1], flags=re.MULTILINE)[1:]:
        assert all(f"**{part}**" in entry for part in ("Means", "Look", "Do")), entry.split("\n")[0]


def test_what_the_runbook_points_to_is_there() -> None:
    text = " ".join(RUNBOOK.read_text().split())
    panels = {name: set(_titles(content["panels"])) for name, content in _dashboards()}
    named = re.findall(r"\*\*([A-Z][a-z ]+) / (.+?)\*\*", text)
    assert {name for name, _ in named} == panels.keys()
    assert [(name, panel) for name, panel in named if panel not in panels[name]] == []
    for target in re.findall(r"\]\(([^)]+)\)", text):
        file, _, anchor = target.partition("#")
        there = RUNBOOK.parent / file if file else RUNBOOK
        assert there.is_file(), target
        assert not anchor or anchor in _anchors(there.read_text()), target


def _dashboards() -> Iterator[tuple[str, dict[str, Any]]]:
    for file in (ROOT / "grafana").glob("*.json"):
        content = json.loads(file.read_text())
        yield content["title"].removeprefix("Interlock / "), content


def _titles(panels: list[dict[str, Any]]) -> Iterator[str]:
    for panel in panels:
        yield panel["title"]
        yield from _titles(panel.get("panels", []))


def _anchors(text: str) -> set[str]:
    """As Markdown's readers make them of headings."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _in_order() -> Iterator[str]:
    """As they stand in their files: what is promised first."""
    objectives = FILES[0].with_name("objectives.yml")
    for file in (objectives, *(each for each in FILES if each != objectives)):
        for group in yaml.safe_load(file.read_text())["groups"]:
            yield from (rule["alert"] for rule in group["rules"] if "alert" in rule)


def test_the_fast_alerts_can_fire() -> None:
    budgets = [numbers(rule.expr) for rule in rules() if rule.record.endswith(":budget")]
    assert len(budgets) == 2
    assert all(0 < FASTEST_BURN * budget < 1 for (budget,) in budgets)


def test_the_dashboards_begin_with_the_time_that_is_promised() -> None:
    bounds = {bound for rule in rules() if "late" in rule.record for bound in re.findall(r'le="([^"]+)"', rule.expr)}
    (overview,) = (content for name, content in _dashboards() if name == "Overview")
    (chosen,) = (each["current"]["value"] for each in overview["templating"]["list"] if each["name"] == "objective")
    assert bounds == {chosen}


def test_the_dashboards_are_green_where_what_is_promised_is_kept() -> None:
    promised = [1 - budget for rule in rules() if rule.record.endswith(":budget") for budget in numbers(rule.expr)]
    (overview,) = (content for name, content in _dashboards() if name == "Overview")
    green = []
    for title in ("Availability", "First token within the objective"):
        (panel,) = (each for each in overview["panels"] if each["title"] == title)
        *_, best = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        assert best["color"] == "green"
        green.append(best["value"])
    assert green == pytest.approx(promised)


def test_prometheus_asks_often_enough_and_remembers_long_enough() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    options = dict(option.split("=", 1) for option in compose["services"]["prometheus"]["command"])
    times = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["global"]
    read = {window for rule in rules() for window in windows(rule.expr)}
    assert min(read) >= 4 * max(promql.parse_duration(times[name]) for name in ("scrape_interval", "evaluation_interval"))
    assert max(read) < promql.parse_duration(options["--storage.tsdb.retention.time"])
    assert options["--enable-feature"] == "exemplar-storage"


def test_prometheus_loads_the_rules() -> None:
    (pattern,) = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["rule_files"]
    assert sorted((ROOT / "deploy/prometheus").glob(pattern)) == FILES
