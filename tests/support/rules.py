"""The rules that Prometheus is given: read from their files, and written with other times for a test."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml
from support.promql import with_windows

FOLDER = Path(__file__).parents[2] / "deploy/prometheus/rules"
FILES = sorted(FOLDER.glob("*.yml"))


@dataclass(frozen=True)
class Rule:
    """One rule. `record` is the name of what it records, `alert` the alert's; one of them is empty."""

    record: str
    alert: str
    expr: str
    labels: dict[str, str]
    annotations: dict[str, str]


def rules() -> list[Rule]:
    """All rules of all files, in their order."""
    return [_rule(each) for file in FILES for group in groups(file) for each in group["rules"]]


def alerts() -> dict[str, Rule]:
    """Those that are alerts, by name."""
    return {rule.alert: rule for rule in rules() if rule.alert}


def groups(file: Path) -> Iterator[dict[str, Any]]:
    """The groups of a file, as they stand in it."""
    yield from yaml.safe_load(file.read_text())["groups"]


def hurried(folder: Path, window: timedelta, every_s: int) -> list[Path]:
    """Copies of the files whose rules look back by this and no more, are evaluated so often, and wait for nothing."""
    folder.mkdir()
    for file in FILES:
        changed = list(groups(file))
        for group in changed:
            group["interval"] = f"{every_s}s"
            for rule in group["rules"]:
                rule["expr"] = with_windows(rule["expr"], window)
                rule.pop("for", None)
        (folder / file.name).write_text(yaml.safe_dump({"groups": changed}))
    return sorted(folder.iterdir())


def _rule(entry: dict[str, Any]) -> Rule:
    record, alert = entry.get("record", ""), entry.get("alert", "")
    return Rule(record, alert, entry["expr"], entry.get("labels", {}), entry.get("annotations", {}))
