"""A self-contained HTML page for a run or a tuning; it loads nothing from the network."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.axes import Axes

from loadtest.report import charts, tables
from loadtest.report.canvas import svg_for_page
from loadtest.report.document import RunDocument
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
    title, description = f"Load test: {facts['scenario']}", str(scenario.get("description", ""))
    return render(title, description, facts, tables.troubles(document), [*_sections(document)])


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

    return environment.get_template("page.html.j2").render(
        title=title, description=description, facts=facts, troubles=troubles, sections=sections, svg=svg
    )


def _sections(document: RunDocument) -> Iterator[Section]:
    yield Section("", tables=[tables.summary(document), tables.gates(document), tables.terms(document)])
    if not document.targets:
        return
    stats_by_target = {each.name: each.stats for each in document.targets}
    budget_ms, events = document.criteria.slo_ttft_ms, document.events
    distribution = Picture(
        "How soon the first text came",
        charts.distribution(stats_by_target, budget_ms),
        "Of the pause requests that the target got, the share whose first text had come by then; a line ends where its "
        "requests had text.",
    )
    overlays = [distribution]
    if len(stats_by_target) > 1:
        seen = charts.by_target(stats_by_target, lambda series: series.per_s("seen"), "seen/s", None, events)
        ttft = charts.by_target(stats_by_target, lambda series: series.ms("ttft/pause", 95), "ms", budget_ms, events)
        overlays = [Picture("Completions seen", seen), Picture("TTFT of pauses, p95", ttft), distribution]
    yield Section("All targets" if len(overlays) > 1 else "", pictures=overlays)
    rates = {"asked": "intended", "asked at a pause": "pauses", "had text": "shown", "seen": "seen"}
    for target in document.targets:
        stats = target.stats
        pictures = [
            Picture("Where editors went", charts.presence(stats, events), "Each asks the nearest server that works."),
            Picture(
                "Asked and seen",
                charts.rates(stats, rates, events),
                "Seen: the first text came soon enough, and long enough before the user's next key.",
            ),
            Picture("Latency over time", charts.latencies(stats, budget_ms, events)),
            Picture("What became of the requests", charts.outcomes(stats, events)),
            Picture(
                "TTFT by cause",
                charts.stages(stats),
                "Each stage's own percentile; they need not add up to that of the whole.",
            ),
        ]
        yield Section(target.name, f"{target.kind}  {target.uri}", pictures, tables.of_target(target))
    yield Section("", tables=[tables.all_figures(document.targets)])
