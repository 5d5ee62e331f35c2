"""The dashboards as Grafana reads them: `grafana/*.json`, their panels, and what Prometheus is asked for each."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "grafana"
EVERYTHING: Mapping[str, str] = {"model": ".*", "engine": ".*", "objective": "2.5"}


@dataclass(frozen=True)
class Asked:
    """One query of one panel, or of one of the variables."""

    board: str
    panel: str
    expression: str

    def filled(self, interval: str, window: str, variables: Mapping[str, str] = EVERYTHING) -> str:
        """The expression as Grafana sends it."""
        text = self.expression.replace("$__rate_interval", interval).replace("$__range", window)
        for name, value in variables.items():
            text = text.replace(f"${name}", value)
        return text


def boards() -> dict[str, dict[str, Any]]:
    """The content of each file, by its name without the ending."""
    return {file.stem: json.loads(file.read_text()) for file in sorted(FOLDER.glob("*.json"))}


def panels(board: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Everything on the grid, rows and what is in those that are closed too."""
    for panel in board["panels"]:
        yield panel
        yield from panel.get("panels") or []


def queries() -> list[Asked]:
    """Every query of every panel."""
    return [
        Asked(name, panel["title"], target["expr"])
        for name, board in boards().items()
        for panel in panels(board)
        for target in panel.get("targets") or []
    ]


def variable_queries() -> list[Asked]:
    """What the choices of variables are made of: `label_values(SERIES, LABEL)`."""
    variables = [(name, each) for name, board in boards().items() for each in board["templating"]["list"]]
    return [Asked(name, each["name"], each["query"]["query"]) for name, each in variables if each["type"] == "query"]
