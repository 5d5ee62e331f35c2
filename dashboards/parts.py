"""What the dashboards are made of: queries, kinds of panel, and a whole dashboard with its variables and links.

Every panel has a unit and says how to read it; every query asks the data source that the reader chose, about the models and
engines that they chose. Expressions are raw: they work without recording rules.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.builders import heatmap, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from gateway.routing.retry import EXCUSED

MODEL = 'model=~"$model"'
PAIR = f'{MODEL},engine=~"$engine"'
SERVED = f'{PAIR},engine!="none"'
"""Of requests that an engine was asked for."""
OURS = 'outcome!~"client_error|client_gone"'
"""Requests that are ours to answer: a client's own mistakes, and those who left, count on neither side."""
FAILED = 'outcome!~"ok|client_error|client_gone"'
SICK = f'{PAIR},reason!~"{"|".join(EXCUSED)}"'
"""Attempts that failed by their engine's doing: neither for what the client asked or did, nor with a whole answer."""
EVERY = "[$__rate_interval]"
RANGE = "[$__range]"
TOKENS = "si:tok/s"
UID = "interlock-"

_SOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
_TAG = "interlock"
_SEARCH = quote(
    '{"t":{"datasource":"${traces}","queries":[{"refId":"A","queryType":"traceql",'
    '"query":"{resource.service.name=\\"interlock\\"}"}],"range":{"from":"${__from}","to":"${__to}"}}}',
    safe="${}:,",  # braces for the variables
)

Steps = Sequence[tuple[float | None, str]]
"""From which value on which colour; the first from None."""
GOOD_IS_LOW: Steps = ((None, "green"), (0.01, "orange"), (0.05, "red"))
FILLING: Steps = ((None, "green"), (0.7, "orange"), (0.9, "red"))
ANY_IS_BAD: Steps = ((None, "green"), (1, "red"))
PLAIN: Steps = ((None, "text"),)


Panel = timeseries.Panel | stat.Panel | heatmap.Panel | table.Panel | statetimeline.Panel


@dataclass(frozen=True)
class Query:
    """An expression, and what its series are called."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Column:
    """A column of a table: an expression with a value for each of its rows."""

    name: str
    expr: str
    unit: str
    steps: Steps = PLAIN
    names: Mapping[str, tuple[str, str]] | None = None


def ratio(part: str, whole: str, by: str = "") -> str:
    """The sum of one by that of another; nothing where there is none of the other, instead of 0 by 0."""
    group = f"sum by ({by})" if by else "sum"
    return f"{group} ({part}) / ({group} ({whole}) > 0)"


def quantile(share: float, name: str, by: str = "", where: str = PAIR) -> str:
    """A quantile of a histogram, for each of `by`."""
    group = f"sum by ({', '.join(filter(None, ['le', by]))})"
    return f"histogram_quantile({share}, {group} (rate(interlock_{name}_bucket{{{where}}}{EVERY})))"


def mean(total: str, window: str, by: str) -> str:
    """Of each request that an engine was asked for, how much of a counter: both begin at zero, and at the same time."""
    requests = f"sum by (model) (increase(interlock_requests_total{{{SERVED}}}{window}))"
    return f"sum by ({by}) (increase({total}{{{SERVED}}}{window})) / on (model) group_left () ({requests} > 0)"


def quantiles(name: str, by: str = "", where: str = PAIR, shares: Sequence[float] = (0.5, 0.95)) -> list[Query]:
    """Some of them as lines."""
    each = " ".join(f"{{{{{label.strip()}}}}}" for label in by.split(",")) if by else ""
    return [Query(quantile(share, name, by, where), f"{each} p{share * 100:g}".strip()) for share in shares]


def lines(
    title: str,
    text: str,
    unit: str,
    queries: Sequence[Query],
    *,
    width: int = 12,
    stacked: bool = False,
    most: float | None = None,
) -> Panel:
    """Values over time. Those of histograms have the traces of single requests beside them."""
    legend = common_builders.VizLegendOptions().display_mode(common.LegendDisplayMode.TABLE).show_legend(True)
    panel = (
        timeseries.Panel()
        .title(title)
        .description(text)
        .datasource(_SOURCE)
        .unit(unit)
        .min(0)
        .span(width)
        .height(8)
        .fill_opacity(40 if stacked else 8)
        .line_width(1)
        .show_points(common.VisibilityMode.NEVER)
        .legend(legend.placement(common.LegendPlacement.BOTTOM).calcs(["mean", "max"]))
        .tooltip(common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING))
        .targets([target.exemplar("_bucket{" in query.expr) for query, target in _targets(queries)])
    )
    if stacked:
        panel.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL))
    if most is not None:
        panel.max(most)
    return panel


def number(
    title: str, text: str, unit: str, expr: str, *, legend: str = "", width: int = 4, steps: Steps = PLAIN, over: bool = False
) -> Panel:
    """One value, or one a series. `over`: with a small line of how it went, of an expression that is no sum of the whole time."""
    target = prometheus.Dataquery().expr(expr).ref_id("A").datasource(_SOURCE).legend_format(legend)
    colour = common.BigValueColorMode.NONE if steps is PLAIN else common.BigValueColorMode.VALUE
    return (
        stat.Panel()
        .title(title)
        .description(text)
        .datasource(_SOURCE)
        .unit(unit)
        .span(width)
        .height(4)
        .no_value("none")
        .graph_mode(common.BigValueGraphMode.AREA if over else common.BigValueGraphMode.NONE)
        .color_mode(colour)
        .reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(_thresholds(steps))
        .with_target(target.range() if over else target.instant())
    )


def heat(title: str, text: str, name: str, *, unit: str = "s", width: int = 12, where: str = PAIR) -> Panel:
    """How often which values came: a histogram over time."""
    labels = f"{{{where}}}" if where else ""
    expr = f"sum by (le) (increase(interlock_{name}_bucket{labels}{EVERY}))"
    target = prometheus.Dataquery().expr(expr).ref_id("A").datasource(_SOURCE).legend_format("{{le}}").range()
    return (
        heatmap.Panel()
        .title(title)
        .description(text)
        .datasource(_SOURCE)
        .unit("short")
        .span(width)
        .height(8)
        .calculate(False)
        .y_axis(heatmap.YAxisConfig().unit(unit).axis_placement(common.AxisPlacement.LEFT))
        .show_tooltip()
        .show_y_histogram()
        .with_target(target.format(PromQueryFormat.HEATMAP).exemplar(True))
    )


def rows(title: str, text: str, columns: Sequence[Column], *, width: int = 24, sort: str | None = None) -> Panel:
    """A table: the labels that the columns' expressions have in common, then their values, of two columns at the least."""
    letters = [chr(ord("A") + at) for at in range(len(columns))]
    panel = _table(title, text, width)
    for letter, column in zip(letters, columns, strict=True):
        panel.with_target(_row_target(column.expr, letter))
        panel.override_by_name(column.name, list(_cell(column)))
    renamed = {f"Value #{letter}": column.name for letter, column in zip(letters, columns, strict=True)}
    panel.with_transformation(model.DataTransformerConfig("merge", options={}))
    panel.with_transformation(_organized({"Time"}, renamed))
    if sort is not None:
        panel.sort_by([common_builders.TableSortByFieldState().display_name(sort).desc(True)])
    return panel.unit(columns[0].unit)


def labels(title: str, text: str, expr: str, *, width: int = 12) -> Panel:
    """A table of an expression's labels alone."""
    return _table(title, text, width).with_target(_row_target(expr, "A")).with_transformation(_organized({"Time", "Value"}, {}))


def matrix(title: str, text: str, unit: str, expr: str, *, down: str, across: str, width: int = 12, steps: Steps) -> Panel:
    """A table with one label's values down and another's across."""
    options = {"rowField": down, "columnField": across, "valueField": "Value", "emptyValue": "null"}
    panel = _table(title, text, width).unit(unit).with_target(_row_target(expr, "A"))
    panel.with_transformation(model.DataTransformerConfig("groupingToMatrix", options=options))
    return panel.thresholds(_thresholds(steps)).override_by_field_type("number", [_coloured()])


def states(title: str, text: str, query: Query, names: Mapping[str, tuple[str, str]], *, width: int = 24) -> Panel:
    """Which of some states each series was in, over time. `names` are words and colours of the values."""
    ((_, target),) = _targets([query])
    return (
        statetimeline.Panel()
        .title(title)
        .description(text)
        .datasource(_SOURCE)
        .unit("none")
        .span(width)
        .height(7)
        .show_value(common.VisibilityMode.NEVER)
        .mappings([_mapping(names)])
        .with_target(target)
    )


def assembled(name: str, title: str, text: str, parts: Sequence[tuple[str, Sequence[Panel]]]) -> model.Dashboard:
    """Rows of panels under their titles, with the variables, and the links to the other dashboards and to traces."""
    board = (
        build.Dashboard(f"Interlock / {title}")
        .uid(f"{UID}{name}")
        .description(text)
        .tags([_TAG])
        .timezone("browser")
        .time("now-1h", "now")
        .refresh("30s")
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .readonly()
        .variables(list(_variables()))
        .links(list(_links()))
    )
    number = 0
    for heading, panels in parts:
        number += 1
        board.with_row(build.Row(heading).id(number))
        for panel in panels:
            number += 1
            board.with_panel(panel.id(number))
    return board.build()


def _variables() -> Iterator[Builder[model.VariableModel]]:
    yield build.DatasourceVariable("datasource").label("Data source").type("prometheus")
    yield _choice("model", "label_values(interlock_model_engines_ready, model)")
    yield _choice("engine", f"label_values(interlock_inflight_requests{{{MODEL}}}, engine)")
    bounds = "0.25,0.5,1.0,2.5,5.0,10.0,20.0"  # of the histogram: between two of them nothing is known
    promised = build.CustomVariable("objective").label("TTFT objective (s)").values(bounds)
    yield promised.current(model.VariableOption(selected=True, text="2.5", value="2.5"))
    yield build.DatasourceVariable("traces").label("Traces").type("tempo")


def _choice(name: str, query: str) -> build.QueryVariable:
    every = model.VariableOption(selected=True, text=["All"], value=["$__all"])
    made = build.QueryVariable(name).label(name.capitalize()).datasource(_SOURCE).query({"query": query, "refId": name})
    refresh, sort = model.VariableRefresh.ON_TIME_RANGE_CHANGED, model.VariableSort.ALPHABETICAL_ASC
    return made.multi(True).include_all(True).all_value(".*").current(every).refresh(refresh).sort(sort)


def _links() -> Iterator[build.DashboardLink]:
    others = build.DashboardLink("Dashboards").type(model.DashboardLinkType.DASHBOARDS).tags([_TAG])
    yield others.as_dropdown(False).include_vars(True).keep_time(True)
    text = "The requests one by one, of a Tempo among the data sources. Without one this leads nowhere"
    traces = build.DashboardLink("Traces (with a Tempo)").type(model.DashboardLinkType.LINK).tooltip(text)
    yield traces.url(f"/explore?schemaVersion=1&panes={_SEARCH}").icon("external link").target_blank(True)


def _targets(queries: Sequence[Query]) -> Iterator[tuple[Query, prometheus.Dataquery]]:
    for at, query in enumerate(queries):
        target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).range()
        yield query, target.ref_id(chr(ord("A") + at)).datasource(_SOURCE)


def _row_target(expr: str, letter: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(expr).ref_id(letter).datasource(_SOURCE).instant().format(PromQueryFormat.TABLE)


def _table(title: str, text: str, width: int) -> table.Panel:
    made = table.Panel().title(title).description(text).datasource(_SOURCE).unit("none")
    return made.span(width).height(8).show_header(True).no_value("none")


def _organized(left_out: set[str], renamed: Mapping[str, str]) -> model.DataTransformerConfig:
    excluded = dict.fromkeys(sorted(left_out), True)
    return model.DataTransformerConfig("organize", options={"excludeByName": excluded, "renameByName": dict(renamed)})


def _cell(column: Column) -> Iterator[model.DynamicConfigValue]:
    yield model.DynamicConfigValue("unit", column.unit)
    if column.names is not None:
        yield model.DynamicConfigValue("mappings", [_mapping(column.names)])
    if column.steps is not PLAIN or column.names is not None:
        yield model.DynamicConfigValue("thresholds", _thresholds(column.steps).build())
        yield _coloured()


def _coloured() -> model.DynamicConfigValue:
    return model.DynamicConfigValue("custom.cellOptions", {"type": "color-background", "mode": "basic"})


def _thresholds(steps: Steps) -> build.ThresholdsConfig:
    made = [model.Threshold(value=value, color=colour) for value, colour in steps]
    return build.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(made)


def _mapping(names: Mapping[str, tuple[str, str]]) -> model.ValueMap:
    return model.ValueMap({value: model.ValueMappingResult(text=word, color=colour) for value, (word, colour) in names.items()})
