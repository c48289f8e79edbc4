"""Panels and variables that all dashboards use: one look, one way to select series, a unit and a text for each."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from grafana_foundation_sdk.builders import bargauge, common, dashboard, heatmap, prometheus, stat, table, timeseries
from grafana_foundation_sdk.models import common as common_model
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import prometheus as prometheus_model

JOB = 'job="completion-server"'
SCOPE = f'{JOB}, region=~"$region", instance=~"$instance"'
"""Selects the servers that a dashboard's variables choose, but for the revision of their model."""
REVISION = "model_revision"
"""The label of completion_build_info and the variable; no other series has it."""
_BUILD = f'completion_build_info{{{JOB}, {REVISION}=~"${REVISION}"}}'
_SERVER = "region, instance"
"""The labels that name a server; an address alone may be in two regions."""
Variable = tuple[str, str, str]
"""A label, a title and a selector of series with the label."""
OF_REGIONS: Sequence[Variable] = (
    ("region", "Region", f"completion_build_info{{{JOB}}}"),
    (REVISION, "Model's revision", f'completion_build_info{{{JOB}, region=~"$region"}}'),
)
"""The variables that choose regions, and servers by the revision of their model."""
OF_SERVERS: Sequence[Variable] = (
    *OF_REGIONS,
    ("instance", "Instance", f'completion_build_info{{{JOB}, region=~"$region", {REVISION}=~"${REVISION}"}}'),
)
"""The variables that choose servers."""
Section = Sequence[Any]
"""A row's title and its panels, whose widths add up to whole lines."""
TAG = "completion-server"
_WIDTH = 24
"""Of a dashboard, in Grafana's columns."""
PERCENTILES = {"0.5": "p50", "0.95": "p95", "0.99": "p99"}
WAITED_FOR = 'trigger!="prefetch"'
"""Requests that somebody waits for, as in the recording rules and the objective."""
STAGES = ("receive", "admission", "queue", "tokenise", "prefill", "decode_token", "stream")
"""In the order in which a request passes them."""

SECONDS, SHARE, PER_SECOND, COUNT, BYTES = "s", "percentunit", "reqps", "short", "bytes"
TOKENS_PER_SECOND = "suffix: tokens/s"
_DATASOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
_LINE_WIDTH, _FILL = 1, 10
_NEARLY_0 = 1e-9
"""Cells of a heat map up to this value stay empty."""


@dataclass(frozen=True)
class Query:
    """A PromQL expression and the name of its series."""

    expr: str
    legend: str = "__auto"
    has_exemplars: bool = False
    """Whether Grafana draws the buckets' exemplars, which link to traces."""


def select(metric: str, *matchers: str, scope: str = SCOPE) -> str:
    """Return the series of the chosen servers: `select("completion_slots", 'k="v"')`."""
    return f"({_kept(_selector(metric, matchers, scope))})"


def rate(metric: str, *matchers: str, by: Sequence[str] = (), scope: str = SCOPE) -> str:
    """Return the sum of a counter's rates a second. REVISION may be one of the labels `by`."""
    return _over("rate", "$__rate_interval", _selector(metric, matchers, scope), by)


def increase(metric: str, *matchers: str, by: Sequence[str] = (), scope: str = SCOPE) -> str:
    """Return the sum of a counter's growth in the dashboard's time range."""
    return _over("increase", "$__range", _selector(metric, matchers, scope), by)


def changes(metric: str, window: str, by: Sequence[str]) -> str:
    """Return how often the values of a gauge have changed in a window."""
    return _over("changes", window, _selector(metric, (), SCOPE), by)


def rates(metric: str, *matchers: str, by: Sequence[str]) -> Query:
    """Return a query of a counter's rates a second by labels, which name the series."""
    return Query(rate(metric, *matchers, by=by), " ".join(f"{{{{{label}}}}}" for label in by))


def total(metric: str, *matchers: str, by: Sequence[str] = (), scope: str = SCOPE) -> str:
    """Return the sum of a gauge."""
    return _sum(_kept(_selector(metric, matchers, scope)), by)


def _selector(metric: str, matchers: Sequence[str], scope: str) -> str:
    return f"{metric}{{{', '.join((scope, *matchers))}}}"


def _over(function: str, window: str, selector: str, by: Sequence[str]) -> str:
    counted = f"{function}({selector}[{window}])"
    if REVISION in by:
        return _sum(f"{counted} * on ({_SERVER}) group_left ({REVISION}) {_BUILD}", by)
    return _sum(_kept(counted, window), by)


def _kept(expression: str, window: str = "") -> str:
    """Return the part of an expression that is of servers whose model has the chosen revision.

    Servers that were there within the window count, too: a rollout has ended those of the old revision.
    """
    build = f"last_over_time({_BUILD}[{window}])" if window else _BUILD
    return f"{expression} and on ({_SERVER}) {build}"


def quantile(share: str, metric: str, *matchers: str, by: Sequence[str] = (), over_range: bool = False) -> str:
    """Return a percentile of a histogram; of the whole time range with `over_range`."""
    counted = (increase if over_range else rate)(f"{metric}_bucket", *matchers, by=("le", *by))
    return f"histogram_quantile({share}, {counted})"


def ratio(part: str, whole: str) -> str:
    """Return a quotient, and no value where `whole` is 0."""
    return f"{part} / ({whole} > 0)"


def _sum(expression: str, by: Sequence[str]) -> str:
    return f"sum by ({', '.join(by)}) ({expression})" if by else f"sum({expression})"


def lines(
    title: str, text: str, unit: str, *queries: Query, width: int = 8, stacked: bool = False, limit: float | None = None
) -> timeseries.Panel:
    """Return lines over time. `limit` is drawn as a red line."""
    panel = timeseries.Panel().line_width(_LINE_WIDTH).fill_opacity(_FILL)
    panel = panel.show_points(common_model.VisibilityMode.NEVER).span_nulls(False)
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(common_model.StackingMode.NORMAL)).fill_opacity(5 * _FILL)
    if limit is not None:
        style = common_model.GraphTresholdsStyleMode.LINE
        panel = panel.thresholds(_thresholds(("green", None), ("red", limit)))
        panel = panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(style))
    legend = common.VizLegendOptions().show_legend(True).placement(common_model.LegendPlacement.BOTTOM)
    panel = panel.legend(legend.display_mode(common_model.LegendDisplayMode.LIST).calcs([]))
    tooltip = common.VizTooltipOptions().mode(common_model.TooltipDisplayMode.MULTI)
    return _finish(panel.tooltip(tooltip.sort(common_model.SortOrder.DESCENDING)), title, text, unit, queries, width)


half_lines = partial(lines, width=12)
"""Returns lines over half of the width."""


def each_instance(title: str, text: str, metric: str, unit: str = COUNT) -> timeseries.Panel:
    """Return lines over a third of the width: the values of a metric at each server."""
    return lines(title, text, unit, Query(select(metric), "{{instance}}"))


def bars(title: str, text: str, unit: str, *queries: Query, width: int = 8) -> bargauge.Panel:
    """Return horizontal bars, one for each series, over the time range."""
    panel = bargauge.Panel().orientation(common_model.VizOrientation.HORIZONTAL).min(0.0)
    panel = panel.display_mode(common_model.BarGaugeDisplayMode.BASIC).show_unfilled(True)
    panel = panel.value_mode(common_model.BarGaugeValueMode.TEXT).reduce_options(_last())
    panel = panel.color_scheme(dashboard.FieldColor().mode(model.FieldColorModeId.PALETTE_CLASSIC))
    return _finish(panel, title, text, unit, queries, width, is_instant=True)


def number(title: str, text: str, unit: str, query: Query, *steps: tuple[str, float | None]) -> stat.Panel:
    """Return one number over the time range, coloured from each step's value on."""
    panel = stat.Panel().reduce_options(_last()).graph_mode(common_model.BigValueGraphMode.NONE)
    panel = panel.thresholds(_thresholds(*(steps or (("text", None),))))
    return _finish(panel, title, text, unit, (query,), 6, is_instant=True).height(4)


def heat(title: str, text: str, query: Query) -> heatmap.Panel:
    """Return a heat map of a histogram over time; the query is its buckets by `le`."""
    panel = heatmap.Panel().y_axis(heatmap.YAxisConfig().unit(SECONDS))
    panel = panel.filter_values(heatmap.FilterValueRange().le(_NEARLY_0))
    return _finish(panel, title, text, SECONDS, (query,), 12, format_=prometheus_model.PromQueryFormat.HEATMAP)


def grid(title: str, text: str, columns: dict[str, tuple[str, str]], *, by: str) -> table.Panel:
    """Return a table: a row for each value of the label `by`, and columns by title: a unit and an expression each."""
    panel = table.Panel().show_header(True)
    for ref, (name, (unit, _expression)) in zip(_refs(), columns.items(), strict=False):
        matcher = model.MatcherConfig(id_val="byName", options=f"Value #{ref}")
        shown = [model.DynamicConfigValue("displayName", name), model.DynamicConfigValue("unit", unit)]
        panel = panel.with_override(matcher, shown)
    queries = [Query(expression) for _unit, expression in columns.values()]
    format_ = prometheus_model.PromQueryFormat.TABLE
    panel = _finish(panel, title, text, COUNT, queries, _WIDTH, is_instant=True, format_=format_)
    panel = panel.with_transformation(
        model.DataTransformerConfig("joinByField", options={"byField": by, "mode": "outer"})
    )
    hidden = {f"Time {place}": True for place in range(1, len(columns) + 1)} | {"Time": True}
    return panel.with_transformation(model.DataTransformerConfig("organize", options={"excludeByName": hidden}))


def _finish(panel, title, text, unit, queries, width, *, is_instant=False, format_=None):  # noqa: ANN001, ANN202
    """Give a panel of any kind its texts and queries."""
    panel = panel.title(title).description(text).unit(unit).span(width).height(8).datasource(_DATASOURCE)
    for ref, query in zip(_refs(), queries, strict=False):
        target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(ref)
        if query.has_exemplars:
            target = target.exemplar(True)
        target = target.datasource(_DATASOURCE)
        target = target.instant() if is_instant else target.range()
        panel = panel.with_target(target.format(format_) if format_ else target)
    return panel


def _refs() -> Sequence[str]:
    return [chr(ord("A") + place) for place in range(26)]


def _last() -> common.ReduceDataOptions:
    return common.ReduceDataOptions().calcs(["lastNotNull"]).values(False)


def _thresholds(*steps: tuple[str, float | None]) -> dashboard.ThresholdsConfig:
    found = [model.Threshold(value=value, color=color) for color, value in steps]
    return dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(found)


def new_dashboard(
    name: str, title: str, text: str, *sections: Section, variables: Sequence[Variable] = OF_SERVERS
) -> dashboard.Dashboard:
    """Return a dashboard with a row for each section, and the variables datasource and `variables`."""
    made = dashboard.Dashboard(title).uid(f"completion-{name}").description(text).tags([TAG]).readonly()
    made = made.refresh("30s").time("now-1h", "now").timezone("browser")
    made = made.tooltip(model.DashboardCursorSync.CROSSHAIR)
    links = dashboard.DashboardLink("Dashboards of the completion server").type(model.DashboardLinkType.DASHBOARDS)
    links = links.tags([TAG]).as_dropdown(True).include_vars(True).keep_time(True)
    made = made.link(links).with_variable(
        dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")
    )
    for each in variables:
        made = made.with_variable(_label_variable(*each))
    for title_of_row, *panels in sections:
        made = made.with_row(dashboard.Row(title_of_row))
        for panel in panels:
            made = made.with_panel(panel)
    return made


def _label_variable(label: str, title: str, selector: str) -> dashboard.QueryVariable:
    """Return a variable with the values of a label; at first all of them, also those of series without the label."""
    variable = dashboard.QueryVariable(label).label(title).query(f"label_values({selector}, {label})")
    variable = variable.datasource(_DATASOURCE).multi(True).include_all(True).all_value(".*")
    variable = variable.current(model.VariableOption(selected=True, text=["All"], value=["$__all"]))
    variable = variable.refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
    return variable.sort(model.VariableSort.ALPHABETICAL_ASC)
