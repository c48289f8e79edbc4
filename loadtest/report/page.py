"""A self-contained HTML page for a run or a sweep; it loads nothing from the network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.axes import Axes

from loadtest.report import charts, tables
from loadtest.report.canvas import svg_for_page
from loadtest.report.charts import region_lanes
from loadtest.report.document import RunDocument, TargetResult
from loadtest.report.tables import Table

_TEMPLATE = "page.html.j2"


@dataclass(frozen=True, slots=True)
class Picture:
    """A chart with its caption."""

    caption: str
    axes: Axes | None
    """A chart that is None is left out."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with charts and tables."""

    title: str
    subtitle: str = ""
    pictures: Sequence[Picture] = ()
    tables: Sequence[Table] = ()


def render_page(document: RunDocument) -> str:
    """Return the page of a run."""
    scenario = document.scenario
    facts = {
        "scenario": str(scenario.get("name", "?")),
        "started": document.started_at,
        "sessions": str(scenario.get("sessions", "?")),
        "duration": f"{max((each.stats.duration_s for each in document.targets), default=0):g} s",
        "trace": document.schedule_digest[:16],
        "version": document.version,
    }
    first = Section("", tables=[tables.summary(document), tables.gates(document), tables.terms(document)])
    overlays = [_overlays(document)] if document.targets else []
    sections = [first, *overlays, *(_section(each, document) for each in document.targets)]
    if document.targets:
        sections.append(Section("All figures", tables=[tables.all_figures(document.targets)]))
    title = f"Load test: {scenario.get('name', '?')}"
    return render(title, str(scenario.get("description", "")), facts, tables.troubles(document), sections)


def render(
    title: str, description: str, facts: Mapping[str, str], troubles: Sequence[str], sections: Sequence[Section]
) -> str:
    """Return a page of sections."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    numbers = count(1)

    def svg(axes: Axes) -> Markup:
        # Its text is escaped by matplotlib, which writes it as XML.
        return Markup(svg_for_page(axes, f"picture-{next(numbers)}"))

    return environment.get_template(_TEMPLATE).render(
        title=title, description=description, facts=facts, troubles=troubles, sections=sections, svg=svg
    )


def _overlays(document: RunDocument) -> Section:
    stats_by_target = {each.name: each.stats for each in document.targets}
    budget_ms = document.criteria.slo_ttft_ms
    found = [
        Picture(
            "How soon the first text came",
            charts.ttft_distribution(stats_by_target, budget_ms),
            "Of pause requests, the share whose first text had come by then; a line ends where its requests had text.",
        )
    ]
    if len(stats_by_target) > 1:
        found = [
            Picture("Completions seen", charts.seen_by_target(stats_by_target, document.events)),
            Picture("TTFT of pauses, p95", charts.latency_by_target(stats_by_target, budget_ms, document.events)),
            *found,
        ]
    return Section("All targets" if len(stats_by_target) > 1 else "", pictures=found)


def _section(target: TargetResult, document: RunDocument) -> Section:
    stats, events = target.stats, document.events
    found = [
        Picture(
            "Where editors went",
            region_lanes(stats, document.criteria.slo_ttft_ms, events),
            "Each editor asks the nearest server that works.",
        ),
        Picture(
            "Asked and seen",
            charts.seen_and_offered(stats, events),
            "Seen: the first text came soon enough, and long enough before the user's next key.",
        ),
        Picture("Latency over time", charts.latency_over_time(stats, document.criteria.slo_ttft_ms, events)),
        Picture("What became of the requests", charts.outcomes_over_time(stats, events)),
        Picture(
            "TTFT by cause",
            charts.ttft_by_cause(stats),
            "Each stage's own percentile; they need not add up to that of the whole.",
        ),
        Picture("TTFT by region", charts.regions(stats)),
    ]
    listed = (tables.times(target), tables.outcomes(target), tables.regions(target), tables.errors(target))
    return Section(target.name, f"{target.kind}  {target.uri}", found, listed)
