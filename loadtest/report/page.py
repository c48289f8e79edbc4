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
from loadtest.report.document import RunDocument, TargetResult
from loadtest.report.tables import Table


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
        sections.append(Section("", tables=[tables.all_figures(document.targets)]))
    title = f"Load test: {scenario.get('name', '?')}"
    return render(title, str(scenario.get("description", "")), facts, tables.troubles(document), sections)


def render(
    title: str, description: str, facts: Mapping[str, str], troubles: Sequence[str], sections: Sequence[Section]
) -> str:
    """Return a page of sections."""
    folder = FileSystemLoader(Path(__file__).parent)
    environment = Environment(
        loader=folder, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    numbers = count(1)

    def svg(axes: Axes) -> Markup:
        # Its text is escaped by matplotlib, which writes it as XML.
        return Markup(svg_for_page(axes, f"picture-{next(numbers)}"))

    return environment.get_template("page.html.j2").render(
        title=title, description=description, facts=facts, troubles=troubles, sections=sections, svg=svg
    )


def _overlays(document: RunDocument) -> Section:
    stats_by_target = {each.name: each.stats for each in document.targets}
    budget_ms, is_one = document.criteria.slo_ttft_ms, len(stats_by_target) == 1
    distribution = Picture(
        "How soon the first text came",
        charts.ttft_distribution(stats_by_target, budget_ms),
        "Of pause requests, the share whose first text had come by then; a line ends where its requests had text.",
    )
    if is_one:
        return Section("", pictures=[distribution])
    seen = charts.seen_by_target(stats_by_target, document.events)
    latency = charts.latency_by_target(stats_by_target, budget_ms, document.events)
    pictures = [Picture("Completions seen", seen), Picture("TTFT of pauses, p95", latency), distribution]
    return Section("All targets", pictures=pictures)


def _section(target: TargetResult, document: RunDocument) -> Section:
    stats, events, budget_ms = target.stats, document.events, document.criteria.slo_ttft_ms
    lanes, seen = charts.region_lanes(stats, budget_ms, events), charts.seen_and_offered(stats, events)
    seen_note = "Seen: the first text came soon enough, and long enough before the user's next key."
    cause_note = "Each stage's own percentile; they need not add up to that of the whole."
    found = [
        Picture("Where editors went", lanes, "Each editor asks the nearest server that works."),
        Picture("Asked and seen", seen, seen_note),
        Picture("Latency over time", charts.latency_over_time(stats, budget_ms, events)),
        Picture("What became of the requests", charts.outcomes_over_time(stats, events)),
        Picture("TTFT by cause", charts.ttft_by_cause(stats), cause_note),
        Picture("TTFT by region", charts.regions(stats)),
    ]
    return Section(target.name, f"{target.kind}  {target.uri}", found, tables.of_target(target))
