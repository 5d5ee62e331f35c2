"""Each dashboard is whole: what Grafana would not show, would show twice, or would show without saying what it is."""

import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest
import yaml
from support.boards import FOLDER, Asked, boards, panels, queries

from dashboards.__main__ import made, main

BOARDS = boards()
NAMES = ["capture", "engines", "formats", "latency", "overview", "routing"]
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
KNOWN_UNITS = re.compile(r"percentunit|s|reqps|ops|short|none|watt|celsius|si:tok/s")
each_board = pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS.keys())


def shown(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The panels that are no rows."""
    return (panel for panel in panels(board) if panel["type"] != "row")


def test_what_is_committed_is_what_the_code_makes(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    assert main(["--check"]) == 0
    monkeypatch.setattr("dashboards.__main__.FOLDER", tmp_path)
    assert main(["--check"]) == 1
    (tmp_path / "old.json").write_text("{}")
    assert main([]) == 0
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == made()
    assert main(["--check"]) == 0


def test_there_are_the_six_and_no_two_are_called_alike() -> None:
    assert list(BOARDS) == NAMES
    assert {board["uid"] for board in BOARDS.values()} == {f"interlock-{name}" for name in NAMES}
    assert len({board["title"] for board in BOARDS.values()}) == len(NAMES)


@each_board
def test_panels_have_numbers_and_places_of_their_own(board: dict[str, Any]) -> None:
    numbers = [panel["id"] for panel in panels(board)]
    assert len(set(numbers)) == len(numbers)
    assert all(number > 0 for number in numbers)
    places = {panel["title"]: panel["gridPos"] for panel in panels(board)}
    assert len(places) == len(numbers), "two panels have one title"
    for title, place in places.items():
        assert place["x"] + place["w"] <= 24, title
    for (one, first), (other, second) in combinations(places.items(), 2):
        beside = first["x"] + first["w"] <= second["x"] or second["x"] + second["w"] <= first["x"]
        above = first["y"] + first["h"] <= second["y"] or second["y"] + second["h"] <= first["y"]
        assert beside or above, f"{one!r} lies over {other!r}"


@each_board
def test_lines_are_full(board: dict[str, Any]) -> None:
    widths: dict[int, int] = {}
    for panel in panels(board):
        widths[panel["gridPos"]["y"]] = widths.get(panel["gridPos"]["y"], 0) + panel["gridPos"]["w"]
    assert {y: width for y, width in widths.items() if width not in (12, 24)} == {}


@each_board
def test_each_panel_has_a_unit_says_how_to_read_it_and_asks_the_source_chosen(board: dict[str, Any]) -> None:
    for panel in shown(board):
        assert KNOWN_UNITS.fullmatch(panel["fieldConfig"]["defaults"]["unit"]), panel["title"]
        assert len(panel["description"]) > 20, panel["title"]
        assert panel["description"].endswith((".", ")")), panel["title"]
        assert panel["datasource"] == SOURCE
        assert panel["targets"], panel["title"]
        assert all(target["datasource"] == SOURCE for target in panel["targets"])
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        assert panel["type"] != "heatmap" or panel["options"]["yAxis"]["unit"] in ("s", "short")


@each_board
def test_the_reader_chooses_source_model_and_engine(board: dict[str, Any]) -> None:
    variables = {each["name"]: each for each in board["templating"]["list"]}
    assert variables["datasource"]["query"] == "prometheus"
    for name in ("model", "engine"):
        assert (variables[name]["multi"], variables[name]["includeAll"], variables[name]["allValue"]) == (True, True, ".*")
        assert variables[name]["datasource"] == SOURCE
    used = {word for query in queries() for word in re.findall(r"\$([a-z]\w*)", query.expression)}
    assert {"model", "engine", "objective"} == used
    assert used < variables.keys()


@each_board
def test_it_leads_to_the_others_and_to_traces_and_nowhere_where_nothing_is(board: dict[str, Any]) -> None:
    others, traces = board["links"]
    assert (others["type"], others["tags"], others["includeVars"], others["keepTime"]) == (
        "dashboards",
        ["interlock"],
        True,
        True,
    )
    assert others["tags"] == board["tags"]
    variables = {each["name"]: each for each in board["templating"]["list"]}
    assert "${traces}" in traces["url"]
    assert variables["traces"]["query"] == "tempo"
    assert "Tempo" in traces["title"], "where there is none it leads nowhere"
    assert all(link["url"].startswith("/") for link in board["links"] if link["type"] == "link")


@pytest.mark.parametrize("query", queries(), ids=lambda query: f"{query.board}-{query.panel}")
def test_a_query_names_no_place(query: Asked) -> None:
    assert not re.search(r"(instance|job|pod|host)\s*=", query.expression)
    assert not re.search(r"\[\d+[smhd]", query.expression), "a window of its own: what was chosen above counts"


def test_quantiles_and_heatmaps_lead_to_traces() -> None:
    targets = [target for board in BOARDS.values() for panel in shown(board) for target in panel["targets"]]
    of_buckets = [target for target in targets if "_bucket{" in target["expr"] and target.get("range")]
    assert len(of_buckets) > 10
    assert all(target["exemplar"] for target in of_buckets)
    folder = FOLDER.parent / "deploy/grafana/provisioning/datasources"
    (source,) = yaml.safe_load((folder / "prometheus.yaml").read_text())["datasources"]
    assert source["jsonData"]["exemplarTraceIdDestinations"] == [{"name": "trace_id", "datasourceUid": "tempo"}]
